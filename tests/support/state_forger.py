"""Forged states: what a stranger may send instead of a state, made from a real one by a seeded choice of changes."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lmr.core.state import decode_state, encode_state

VALUES: list[Any] = [
    None, True, -1, 0, 1, 7, 2**40, 2**63, 10**30, 0.5, -0.5, 1e300, float("nan"), float("inf"), "", "x", "ok", "reset",
    "rolled back", "a" * 300, [], [0], [1, 1], [10**9], ["x"], [None], {}, {"x": 1}, [[]], [{}],
]  # fmt: skip
DTYPES = (torch.float16, torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8)


def forge_states(content: bytes, seed: int, count: int) -> Iterator[bytes]:
    """Contents of state files with one or two things wrong, each with a digest that is right."""
    tensors, facts = decode_state(content, "the original")
    choose = random.Random(seed)
    for _ in range(count):
        changed, own = dict(tensors), dict(facts)
        for _ in range(choose.choice((1, 1, 1, 2))):
            if choose.random() < 0.6:
                own["watch"] = _change_text(choose, own["watch"])
            else:
                _change_tensors(choose, changed)
        yield encode_state({name: value.clone() for name, value in changed.items()}, own)


def forge_events(content: bytes, **values: Any) -> bytes:
    """The state with an event of these values more."""
    tensors, facts = decode_state(content, "the original")
    watch = json.loads(facts["watch"])
    signals = dict.fromkeys(("concentration", "top_share", "entropy", "frozen_entropy", "canaries", "canary_fall"))
    signals |= {"compared": 0, "not_finite": 0, "drift": None, "agreement": None, "steps": 0}
    signals |= dict.fromkeys(("sureness", "sure_classes", "sure_agreement"))
    event = {
        "stream": 0,
        "step": 1,
        "before": "ok",
        "after": "reset",
        "action": "reset",
        "alarms": [],
        "operator": False,
    }
    watch[0]["events"].append(event | {"signals": signals} | values)
    return encode_state(tensors, facts | {"watch": json.dumps(watch)})


def _change_text(choose: random.Random, text: str) -> str:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if choose.random() < 0.05:
        return choose.choice(["", "{", "[]", "[5]", "null", "[" * 5000 + "]" * 5000, "[" + "9" * 5000 + "]", text * 2])
    places = list(_list_places(values))
    if not places:
        return text
    holder, key = choose.choice(places)
    if isinstance(holder, dict) and choose.random() < 0.15:
        del holder[key]
    elif isinstance(holder, dict) and choose.random() < 0.1:
        holder[choose.choice(["x", "images", "stream"])] = choose.choice(VALUES)
    elif isinstance(holder, list) and choose.random() < 0.2:
        holder.extend(copy.deepcopy(holder[:1]) * choose.choice([1, 200]))
    else:
        holder[key] = copy.deepcopy(choose.choice(VALUES))
    return json.dumps(values)


def _list_places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    for key in keys:
        yield value, key
        yield from _list_places(value[key])


def _change_tensors(choose: random.Random, tensors: dict[str, Tensor]) -> None:
    name = choose.choice(sorted(tensors))
    value = tensors[name]
    match choose.randrange(7):
        case 0:
            del tensors[name]
        case 1:
            tensors[choose.choice(["watch/0/x", "watch/1/sums", "watch/0/snapshot/99/norms", "x"])] = value
        case 2:
            tensors[name] = value.to(choose.choice(DTYPES))
        case 3:
            tensors[name] = choose.choice(
                [value.flatten(), value[:0], value.unsqueeze(0), torch.zeros(()), value[..., :1]]
            )
        case _:
            numbers = [0.0, -1.0, 1e-30, 3.0, 1e30, float("nan"), float("inf"), -1e30]
            if not value.is_floating_point():
                numbers = [0, -1, 3, 2**31 - 1, 2**62]
            changed = value.clone()
            if changed.numel() and choose.random() < 0.5:
                changed.view(-1)[choose.randrange(changed.numel())] = choose.choice(numbers)
            else:
                changed.fill_(choose.choice(numbers))
            tensors[name] = changed
