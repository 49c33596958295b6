"""Experiment: the cost of steps compared with plain loops on transformers, and with the aims of cost.toml."""
