"""``lmr scale``: how many machines a number of streams needs, worked out and checked by a simulation."""
