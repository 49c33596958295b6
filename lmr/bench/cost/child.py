"""The fresh process in which the peak memory of one contender is measured: ``python -m lmr.bench.cost.child ORDER``."""

from __future__ import annotations

import dataclasses
import json
import sys

import torch

from lmr.bench.cost.contenders import Bench
from lmr.bench.cost.entries import Entry
from lmr.bench.cost.measured_model import Source, find_subject
from lmr.bench.cost.memory import measure_peak
from lmr.core.errors import LmrError

_FEW = 12  # classes in the warm-up


def measure_here(source: Source, entry: Entry, batch_size: int, classes: int, threads: int) -> int:
    """Bytes by which one step raises the peak: load, warm up on one image and few classes, measure."""
    torch.set_num_threads(threads)
    subject = find_subject(source)
    Bench(subject, 1, _FEW).build(dataclasses.replace(entry, streams=1)).run()
    contender = Bench(subject, batch_size, classes).build(entry)
    contender.reset()
    if subject.tower is not None:
        subject.tower.set_mode()  # memory that the warm-up left for the next step would hide some of the step's own
    return measure_peak(contender.run)


def main(order: str) -> None:
    """Do what a JSON text asks for and print the answer as JSON."""
    asked = json.loads(order)
    source, entry = Source(**asked.pop("source")), Entry(**asked.pop("entry"))
    try:
        peak = measure_here(source, entry, **asked)
    except (LmrError, MemoryError, torch.OutOfMemoryError) as error:
        sys.exit(str(error) or "out of memory")
    print(json.dumps({"peak": peak}))


if __name__ == "__main__":
    main(sys.argv[1])
