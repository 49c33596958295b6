"""Experiments behind the figures in docs/: run them with ``python -m lab.NAME`` from the repository."""
