"""Bases of methods that two or more methods share, beside the gradient machine: what they select, keep and answer."""
