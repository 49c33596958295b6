"""Common corruptions of images at five severities.

The 15 corruptions of CIFAR-C and ImageNet-C and the 4 extra ones, after Hendrycks and Dietterich, "Benchmarking Neural
Network Robustness to Common Corruptions and Perturbations", ICLR 2019, with the constants of both sets, so that
results can be compared with published ones. docs/corruptions.md says how close they are to the authors' code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmr.data.corruptions.constants import CONSTANTS, CORRUPTIONS, EXTRA

if TYPE_CHECKING:
    from lmr.data.corruptions.apply import corrupt, corrupt_batch

__all__ = ["CONSTANTS", "CORRUPTIONS", "EXTRA", "corrupt", "corrupt_batch"]


def __getattr__(name: str) -> object:
    """Import the functions when they are first used: the command line needs only the names, without NumPy."""
    if name not in ("corrupt", "corrupt_batch"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lmr.data.corruptions import apply

    globals().update(corrupt=apply.corrupt, corrupt_batch=apply.corrupt_batch)
    return getattr(apply, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
