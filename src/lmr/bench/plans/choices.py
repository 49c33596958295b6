"""Keys, choices and defaults of plans, for the command line. This module imports nothing, so that help is fast."""

from __future__ import annotations

FOLDER = "lmr-runs"  # default folder of runs
RESETS = ("domain", "never")
TIMINGS = ("wait", "live")
DTYPES = ("float32", "bfloat16", "float16")
KEYS = (
    "methods", "preset", "datasets", "corruptions", "severities", "backbones", "prompts", "batch_sizes", "seeds",
    "images", "order", "concentration", "block", "majority", "tail", "dominant", "onset", "reset", "rounds", "mix",
    "latin", "timing", "forgetting", "recovery", "dtype", "device", "watch",
)  # fmt: skip
