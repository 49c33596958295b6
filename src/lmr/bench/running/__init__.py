"""How plans are run: workers, checkpoints, rows and metrics."""
