"""Datasets, one file each, and the catalogue that finds them by name."""
