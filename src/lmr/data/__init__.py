"""Datasets, streams and corruptions. Nothing here knows a model."""
