from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from lab.load.inputs import find_photo
from lab.load.throughput import BareLoop, choose


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_bare_loop_computes_as_the_service() -> None:
    """One thread for a small model, and a watched method that may reuse answers, but on new frames alone."""
    torch.set_num_threads(2)
    loop = BareLoop(find_photo(), 2, 3)
    assert torch.get_num_threads() == 1
    answers = list[torch.Tensor | None]()
    step = loop._method.step
    loop._method.step = lambda *given, **named: answers.append((out := step(*given, **named)).reused) or out
    assert "Watched" in type(loop._method).__name__
    assert loop.run(0.05).images % 6 == 0
    assert answers
    assert not any(reused.any() for reused in answers if reused is not None)
    assert choose(1, 2, 3) == [7, 8, 9]
