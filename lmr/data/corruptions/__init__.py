"""Common corruptions of pictures: drift that can be made on demand, at five known strengths.

The 15 corruptions of CIFAR-C and ImageNet-C and the 4 extra ones, after Hendrycks and Dietterich, "Benchmarking Neural
Network Robustness to Common Corruptions and Perturbations", ICLR 2019, with the constants of both sets, so that a
number measured here can stand beside a published one. docs/corruptions.md says how near they are to the authors' code.
"""

from lmr.data.corruptions.apply import corrupt, corrupt_batch
from lmr.data.corruptions.constants import CONSTANTS, CORRUPTIONS, EXTRA

__all__ = ["CONSTANTS", "CORRUPTIONS", "EXTRA", "corrupt", "corrupt_batch"]
