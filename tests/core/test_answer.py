"""The answer to one image, and the one way in which outputs write it."""

from __future__ import annotations

import json

import torch

from lmr.core.answer import NOT_FINITE, Answer, make_answers, rank
from lmr.service.json_text import find_adapter

NAMES = ["cat", "dog", "ship"]


def test_answers_follow_from_logits() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0], [float("nan"), 0.0, 0.0]])
    first, second, third = make_answers(rank(logits, NAMES, 2), [0.5, 0.1, 0.0], [False, True, False], {0: "cat"})
    assert (first.label, first.text, [name for name, _ in first.top]) == ("dog", "dog", ["dog", "ship"])
    assert first.probability == first.top[0][1] == logits[0].softmax(0)[1].item()
    assert (second.label, second.text, second.known, second.top[0][0]) == (None, "unknown", 0.1, "cat")
    assert (third.error, third.text, third.format()) == (NOT_FINITE, None, {"error": NOT_FINITE})


def test_what_is_written_is_read_again() -> None:
    answer = Answer("dog", 0.123456789, 0.5, (("dog", 0.123456789),), frozen="cat")
    written = json.loads(json.dumps(answer.format()))
    assert written == {
        "label": "dog",
        "probability": 0.123457,
        "known": 0.5,
        "top": [["dog", 0.123457]],
        "frozen": "cat",
    }
    assert find_adapter(Answer).validate_python(written).format() == answer.format()
    assert Answer().format() == {"label": None, "probability": None, "known": None, "top": []}
