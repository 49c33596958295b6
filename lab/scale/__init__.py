"""Capacity planning: the machines that a number of streams needs, calculated and checked by a simulation."""
