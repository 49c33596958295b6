"""How it is run: workers, checkpoints, rows and metrics."""
