"""Experiment: the time and memory of steps, compared with plain loops on transformers and with another checkout."""
