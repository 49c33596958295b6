"""Benchmarks, demonstrations and the training of the embedded models: everything that measures."""
