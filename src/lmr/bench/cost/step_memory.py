"""The peak memory of one step above the loaded model, measured in a fresh process."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from lmr.bench.cost.contenders import ContenderFactory
from lmr.bench.cost.entries import Entry
from lmr.bench.cost.fresh_process import call_fresh
from lmr.bench.cost.measured_model import ModelSource, find_measured_model
from lmr.bench.cost.memory import measure_peak

_FEW_IMAGES, _FEW_CLASSES = 2, 12  # in the warm-up; of two images one passes a gate that half of them pass


def measure_step_memory(source: ModelSource, entry: Entry, batch_size: int, classes: int, threads: int) -> int | None:
    """Bytes by which one step raises the peak of a fresh process; None if the system killed it for lack of memory."""
    return call_fresh(
        measure_here,
        f"the memory of {entry.name}",
        source=dataclasses.asdict(source),
        entry=dataclasses.asdict(entry),
        batch_size=batch_size,
        classes=classes,
        threads=threads,
    )


def measure_here(source: dict[str, Any], entry: dict[str, Any], batch_size: int, classes: int, threads: int) -> int:
    """The same in this process, which should be fresh: load, warm up on few images and classes, measure."""
    torch.set_num_threads(threads)
    model, measured = find_measured_model(ModelSource(**source)), Entry(**entry)
    ContenderFactory(model, _FEW_IMAGES, _FEW_CLASSES).build(dataclasses.replace(measured, streams=1)).run()
    contender = ContenderFactory(model, batch_size, classes).build(measured)
    contender.reset()
    if model.tower is not None:
        model.tower.set_mode()  # memory that the warm-up left for the next step would hide a part of this one's
    return measure_peak(contender.run)
