"""MTA's robust mode of the views of an image: a pure function."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

ROUNDS = 5  # of the outer loop, and at most of each inner one
CLOSE = 1e-6  # an inner loop ends when its last change was smaller
SHARE = 0.3  # of the other views, which give a view's bandwidth


def find_mode(features: Tensor, probabilities: Tensor, sharpness: float = 0.2, affinity: float = 4.0) -> Tensor:
    """The mode [D] of unit features [V, D] of the views of an image; the first is the image itself.

    Inlierness scores y and the mode m take turns. With the kernel k_i = exp(-|z_i - m|^2 / (2 h_i^2)), whose squared
    bandwidth is half of the mean squared distance to the nearest views, y becomes softmax((k + affinity A y) /
    sharpness), where A holds the products of the views' ``probabilities`` [V, C]; m becomes the direction of the sum of
    y_i k_i z_i. Each runs to its fixed point, or five times.
    """
    views = len(features)
    if views == 1:
        return features[0]
    squared = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist").square()
    near = squared.sort(dim=1).values[:, 1 : 1 + max(1, int(SHARE * (views - 1)))]  # without the view itself
    width = (0.5 * near.mean(1)).clamp(min=torch.finfo(features.dtype).eps)  # views can be equal
    alike, mode = probabilities @ probabilities.T, features[0]
    scores = features.new_full((views,), 1 / views)

    def measure_kernel(mode: Tensor) -> Tensor:
        return (-(features - mode).square().sum(1) / (2 * width)).exp()

    for _ in range(ROUNDS):
        kernel = measure_kernel(mode)
        for _ in range(ROUNDS):
            before, scores = scores, ((kernel + affinity * (alike @ scores)) / sharpness).softmax(0)
            if torch.linalg.vector_norm(scores - before) < CLOSE:
                break
        for _ in range(ROUNDS):
            before, mode = mode, F.normalize(((scores * measure_kernel(mode)).unsqueeze(1) * features).sum(0), dim=0)
            if torch.linalg.vector_norm(mode - before) < CLOSE:
                break
    return mode
