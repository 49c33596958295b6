"""Datasets, image files, streams and corruptions. Nothing here knows a model."""
