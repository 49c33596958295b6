"""MTA (Zanella & Ben Ayed 2024): the mode of the features of an image's views, found by a robust mean shift."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.bases.views import EpisodicMethod
from lmr.core.card import Card, Preset
from lmr.core.prediction import State
from lmr.core.registry import register
from lmr.core.streams import Streams

ROUNDS = 5  # of the outer loop, and at most of each inner one
CLOSE = 1e-6  # an inner loop ends when its last change was smaller
SHARE = 0.3  # of the other views, which give a view's bandwidth
_CARD = Card(
    source="Zanella & Ben Ayed 2024",
    year=2024,
    presets={"default": Preset({}, "the authors' released code", batch_size=1)},
)


@register("mta", _CARD)
class MTA(EpisodicMethod):
    """Mean shift over the views of an image, with a learnt weight for each view. Nothing is trained.

    Views that are far from the mode, or whose probabilities agree with few others, lose weight. The answer is that of
    the mode in place of the image's feature.
    """

    def solve(self, images: Tensor, state: State, streams: Streams) -> tuple[Tensor, dict[str, Tensor]]:
        clip, features = self.classifier, self._encode_views(images, state, streams)
        modes = torch.stack([find_mode(own, clip.logits(clip.cosines(own)).softmax(1)) for own in features])
        logits = torch.cat([clip.logits(clip.cosines(mode)) for mode in modes.unsqueeze(1)])
        return logits, {"shift": torch.linalg.vector_norm(modes - features[:, 0], dim=1)}


def find_mode(features: Tensor, probabilities: Tensor, sharpness: float = 0.2, affinity: float = 4.0) -> Tensor:
    """Return the mode [D] of unit features [V, D] of the views of an image; the first is the image itself.

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
