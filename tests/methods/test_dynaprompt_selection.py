"""The selection of prompts: hand-made cases; tests/methods/test_dynaprompt.py compares whole streams."""

from __future__ import annotations

import math

import torch

from lmr.methods.dynaprompt import (
    measure_logit_drop,
    measure_probability_drop,
    move_to_back,
    select_by_code,
    select_by_paper,
)


def make_logits(*prompts: tuple[tuple[float, float], ...]) -> torch.Tensor:
    """Logits [M, V, 2], one tuple of views per prompt."""
    return torch.tensor(prompts, dtype=torch.float64)


def test_drops_are_those_of_logits_and_of_the_image_s_class() -> None:
    logits = make_logits(((3.0, 0.0), (0.0, 2.0), (1.0, 0.0)))
    assert measure_logit_drop(logits).tolist() == [((3 - 2) + (3 - 1)) / 2]
    p = [1 / (1 + math.exp(-margin)) for margin in (3, -2, 1)]
    torch.testing.assert_close(
        measure_probability_drop(logits), torch.tensor([((p[0] - p[1]) + (p[0] - p[2])) / 2], dtype=torch.float64)
    )
    assert measure_logit_drop(logits[:, :1]).tolist() == measure_probability_drop(logits[:, :1]).tolist() == [0.0]


def test_code_uses_numbers_of_prompts_as_places() -> None:
    """By entropy, the largest first: 2, 1, 0. The reference 1 has place 1; 0 follows it, and falls furthest."""
    logits = make_logits(((9.0, 0.0), (4.0, 0.0)), ((2.0, 0.0), (2.0, 0.0)), ((1.0, 0.0), (1.0, 0.0)))
    assert select_by_code(logits, 1) == [2, 1]  # place 0 of the ranking is prompt 2, not prompt 0


def test_code_takes_the_reference_alone_where_it_is_the_least_certain() -> None:
    logits = make_logits(((9.0, 0.0), (4.0, 0.0)), ((2.0, 0.0), (2.0, 0.0)), ((1.0, 0.0), (1.0, 0.0)))
    assert select_by_code(logits, 2) == [2]


def test_code_may_take_the_reference_twice() -> None:
    """The most certain prompt of two is followed by none, so it is its own candidate; its number is its place."""
    logits = make_logits(((1.0, 0.0), (1.0, 0.0)), ((9.0, 0.0), (4.0, 0.0)))
    assert select_by_code(logits, 1) == [1, 1]


def test_paper_takes_used_prompts_that_are_certain_and_sensitive() -> None:
    initial = make_logits(((2.0, 0.0), (1.5, 0.0)))[0]
    logits = make_logits(
        ((3.0, 0.0), (1.5, 0.0)),  # as the third, but unused
        ((9.0, 0.0), (9.0, 0.0)),  # certain, but does not fall
        ((3.0, 0.0), (1.5, 0.0)),  # certain and falls
        ((1.0, 0.0), (-1.0, 0.0)),  # falls, but is not certain
    )
    used = torch.tensor([False, True, True, True])
    assert select_by_paper(logits, initial, used) == [2]
    assert select_by_paper(logits, initial, torch.zeros(4, dtype=torch.bool)) == []


def test_used_prompts_go_to_the_back_in_their_order() -> None:
    assert move_to_back(torch.tensor([3, 1, 0, 2]), [0, 3, 0]).tolist() == [1, 2, 3, 0]
