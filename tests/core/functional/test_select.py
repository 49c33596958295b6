"""What is computed from several views: entropies, selections and weights against loops in NumPy."""

from __future__ import annotations

import pytest
import torch

from lmr.core.functional.losses import marginal_entropy
from lmr.core.functional.select import count_kept, rank_confident
from lmr.methods.rtpt import weigh_views


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return 4 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_marginal_entropy_of_certain_views_is_finite_with_its_gradient() -> None:
    logits = torch.tensor([[1e4, 0.0, -1e4], [1e4, 0.0, -1e4]], requires_grad=True)
    value = marginal_entropy(logits)
    value.backward()
    assert value.item() == 0
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_confident_views_come_first_and_equal_ones_keep_their_order() -> None:
    logits = torch.tensor([[0.0, 1.0], [0.0, 3.0], [1.0, 0.0], [3.0, 0.0], [0.0, 9.0]])
    assert rank_confident(logits).tolist() == [4, 1, 3, 0, 2]
    assert rank_confident(torch.stack([logits, logits.flip(0)]))[1].tolist() == [0, 1, 3, 2, 4]


@pytest.mark.parametrize(
    ("views", "share", "kept"), [(64, 0.1, 6), (64, 0.3, 19), (8, 0.1, 1), (1, 1.0, 1), (9, 1.0, 9)]
)
def test_share_is_rounded_down_to_one_at_least(views: int, share: float, kept: int) -> None:
    assert count_kept(views, share) == kept


def test_weights_do_not_depend_on_how_a_view_compares_with_itself() -> None:
    """In float32 the cosine of a unit vector with itself is 1 or a little less; it must not decide."""
    features = torch.nn.functional.normalize(draw(30, 12), dim=1)
    single = weigh_views(features.float(), 5, 0.01)
    torch.testing.assert_close(single.double(), weigh_views(features, 5, 0.01), atol=1e-4, rtol=0)
