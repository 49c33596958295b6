"""The execution of plans: workers, checkpoints, rows and metrics."""
