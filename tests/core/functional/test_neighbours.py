"""Links to the nearest images of a batch."""

from __future__ import annotations

import torch

from lmr.core.functional.select import link_nearest


def test_links_go_to_the_nearest_others() -> None:
    likeness = torch.tensor([[9.0, 0.5, 0.1, 0.3], [0.5, 9.0, 0.2, 0.9], [0.1, 0.2, 9.0, 0.4], [0.3, 0.9, 0.4, 9.0]])
    assert link_nearest(likeness, 1).tolist() == [[0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 1], [0, 1, 0, 0]]
    weighted = link_nearest(likeness, 2, likeness)
    assert torch.equal(weighted[0], torch.tensor([0.0, 0.5, 0.0, 0.3]))
    assert torch.equal(link_nearest(likeness, 7), 1 - torch.eye(4))
    assert torch.equal(link_nearest(torch.ones(1, 1), 3), torch.zeros(1, 1))
