"""An answer and its update go together: where the answer fails, however late, the state is the old one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lmr
from lmr.core.labelled import Labelled
from lmr.core.runner import Runner
from lmr.watch import watched as watched_module
from lmr.watch.watched import Watched

IDS = [0, 2, 2, 0, 2, 0, 2, 2]


def make(kind: str, streams: int) -> Any:
    method = lmr.create("tent", lmr.load("photo").classifier(["cat", "dog", "ship"]), streams=streams)
    return {"plain": lambda: method, "watched": lambda: Watched(method), "both": lambda: Labelled(Watched(method))}[
        kind
    ]()


def step(method: Any, seed: int) -> torch.Tensor:
    images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
    answer = method.step(images, None if method.streams == 1 else IDS)
    assert answer.info["stepped"]
    return answer.logits


def fail(*given: object, **more: object) -> None:
    raise MemoryError("no memory left")


PLACES = [
    ("plain", Runner, "_make_prediction"),
    ("plain", Runner, "_count_predictions"),
    ("watched", Watched, "_observe"),
    ("watched", watched_module, "describe_batch"),
    ("both", Labelled, "adjust"),
    ("both", Labelled, "_note"),
    ("both", Labelled, "_list_taught"),  # after the own tensors were changed
]


@pytest.mark.parametrize(("kind", "owner", "name"), PLACES)
@pytest.mark.parametrize("streams", [1, 3])
def test_state_is_the_old_one_after_a_late_failure(
    kind: str, owner: Any, name: str, streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, twin = make(kind, streams), make(kind, streams)
    assert torch.equal(step(method, 1), step(twin, 1))
    before = {key: value.clone() for key, value in method.state.items()}
    with monkeypatch.context() as patch:
        if name == "_list_taught":
            calls = iter([set[int]()])  # the first is before the change
            patch.setattr(owner, name, lambda self: next(calls, None) or fail())
        else:
            patch.setattr(owner, name, fail)
        with pytest.raises(MemoryError):
            step(method, 2)
    assert method.state.keys() == before.keys()
    assert all(torch.equal(value, before[key]) for key, value in method.state.items())
    assert torch.equal(step(method, 3), step(twin, 3))
    assert all(torch.equal(value, twin.state[key]) for key, value in method.state.items())
