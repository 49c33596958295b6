"""Scores of Gaussians with one precision, against the quadratic form."""

from __future__ import annotations

import torch

from lmr.core.functional.gaussians import measure_likelihood


def test_scores_are_the_quadratic_form_but_for_what_all_classes_share() -> None:
    torch.manual_seed(0)
    features, means, root = (torch.randn(n, 5, dtype=torch.float64) for n in (4, 3, 5))
    precision = root @ root.T
    scores = measure_likelihood(features, means, precision)
    for z, row in zip(features, scores, strict=True):
        full = torch.stack([-(z - mean) @ precision @ (z - mean) / 2 for mean in means])
        torch.testing.assert_close(row, full + z @ precision @ z / 2)
    torch.testing.assert_close(measure_likelihood(features.mean(0, keepdim=True), means, precision)[0], scores.mean(0))
