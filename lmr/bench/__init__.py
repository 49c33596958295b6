"""Benchmarks, demonstrations and the training of the embedded model: everything that measures."""
