"""Benchmarks: plans are expanded into tasks, tasks are run and give rows."""
