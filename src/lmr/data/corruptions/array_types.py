"""The array types that all corruptions share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

ImageBatch = npt.NDArray[np.uint8]  # [N, H, W, 3], RGB
Floats = npt.NDArray[np.float64]
Generators = Sequence[np.random.Generator]  # one per image
