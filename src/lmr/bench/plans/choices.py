"""What the command line offers for plans: keys, choices and defaults. It imports nothing, so that help is fast."""

from __future__ import annotations

FOLDER = "lmr-runs"  # where runs go and reports look by default
RESETS = ("domain", "never")
DTYPES = ("float32", "bfloat16", "float16")
KEYS = (
    "methods", "preset", "datasets", "corruptions", "severities", "backbones", "prompts", "batch_sizes", "seeds",
    "images", "order", "concentration", "block", "reset", "rounds", "mix", "forgetting", "recovery", "dtype", "device",
    "watch",
)  # fmt: skip
