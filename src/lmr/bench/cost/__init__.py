"""What one step of each method costs: time, memory and the share of the machine's arithmetic it reaches."""
