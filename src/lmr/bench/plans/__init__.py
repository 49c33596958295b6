"""What is run: plans, and the tasks that they consist of."""
