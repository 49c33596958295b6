"""The cost of one step of each method: time, memory, and the share of the machine's arithmetic that it reaches."""
