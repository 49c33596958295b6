"""Common corruptions of images at five severities: their names here, the functions in ``apply``.

The 15 corruptions of CIFAR-C and ImageNet-C and the 4 extra ones, after Hendrycks and Dietterich, "Benchmarking Neural
Network Robustness to Common Corruptions and Perturbations", ICLR 2019, with the constants of both sets, so that
results can be compared with published ones. docs/corruptions.md says how close they are to the authors' code.
The command line imports this package: it needs no NumPy.
"""

from lmr.data.corruptions.constants import CONSTANTS as CONSTANTS
from lmr.data.corruptions.constants import CORRUPTIONS as CORRUPTIONS
from lmr.data.corruptions.constants import EXTRA as EXTRA
