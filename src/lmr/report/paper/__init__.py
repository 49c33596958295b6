"""The numbers the paper publishes."""
