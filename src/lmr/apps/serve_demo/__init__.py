"""The demonstration of the service: simulated cameras whose weather turns bad, and one that breaks."""
