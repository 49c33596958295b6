"""What is run: plans, and the tasks they come to."""
