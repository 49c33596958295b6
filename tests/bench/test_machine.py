"""What a measurement says of the process it runs in."""

from __future__ import annotations

import torch

from lmr.bench.machine import measure_peak, read_peak, reset_peak


def test_peak_of_a_piece_of_work_is_its_own() -> None:
    held = torch.ones(20_000_000)
    before = read_peak()
    assert before > 80_000_000
    del held
    if reset_peak():
        assert read_peak() < before
        assert 79_000_000 < measure_peak(lambda: torch.ones(20_000_000)) < 90_000_000
    assert measure_peak(lambda: None) < 2_000_000
