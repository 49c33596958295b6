"""Whole streams of a method with a seed, saved and loaded before every batch."""

from __future__ import annotations

from pathlib import Path

import torch

import lmr
from pocket import load_pocket


def check_seed(template: str, size: int, folder: Path) -> None:
    """Check that the norms after a stream depend on the seed alone, not on torch's or on a resume between batches.

    ``template`` is the spec of a method without its closing bracket; ``size`` is the number of images in a batch.
    """
    clip = load_pocket().classifier(["red ring", "blue star", "green heart"])
    images = torch.randn(24, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    ends = []
    for seed in (0, 0, 1):
        spec = f"{template}, seed={seed})"
        method = lmr.create(spec, clip)
        for batch in images.split(size):
            torch.manual_seed(len(ends))
            method.save(folder / "state")
            method = lmr.create(spec, clip)
            method.load(folder / "state")
            method.step(batch)
        ends.append(method.state["norms"].clone())
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])
