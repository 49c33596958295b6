"""Training of the embedded models."""
