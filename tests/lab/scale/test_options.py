"""Invalid values are refused with the name of their option."""

from __future__ import annotations

from typing import Any

import pytest

from lab.scale.options import ScaleOptions
from lmr.core.errors import LmrError
from lmr.service.settings import ServiceSettings

GOOD: dict[str, Any] = {"streams": 1000, "fps": 0.2, "model": "ViT-B-16", "gpu_tflops": 400.0}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"streams": 0}, "--streams to be positive"),
        ({"streams": 10**12}, "at most 1e\\+10 streams"),
        ({"fps": float("nan")}, "--fps to be positive and finite, got nan"),
        ({"fps": float("inf")}, "--fps to be positive and finite"),
        ({"utilisation": 1.5}, "--utilisation to be above 0 and at most 1, got 1.5"),
        ({"load": 0.0}, "--load to be above 0 and at most 1"),
        ({"learning": -0.1}, "--learning to be from 0 to 1"),
        ({"interval": -1.0}, "--interval to be finite and not negative"),
        ({"classes": 1}, "at least two classes"),
        ({"images_per_request": 65}, "raise --max-batch or lower --images-per-request"),
    ],
)
def test_bad_values_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(LmrError, match=message):
        ScaleOptions(**GOOD | values)


def test_replicas_have_the_settings_of_the_service() -> None:
    plain = ServiceSettings()
    made = ScaleOptions(**GOOD).make_settings(7)
    assert made.resident == 7
    assert (made.max_batch, made.max_step_ms, made.max_wait_ms) == (
        plain.max_batch,
        plain.max_step_ms,
        plain.max_wait_ms,
    )
    assert (made.durability, made.interval_s) == (plain.durability, plain.interval_s)
    assert ScaleOptions(**GOOD, max_batch=1000).make_settings(1).queue_images == 4000


def test_a_request_makes_one_step() -> None:
    assert ScaleOptions(**GOOD).requests_per_second == 200
    assert ScaleOptions(**GOOD, images_per_request=8).requests_per_second == 25
