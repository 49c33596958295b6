"""Plans, and the tasks that they consist of."""
