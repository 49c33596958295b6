"""Folders of finished runs with made-up answers, for everything that packs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmr.bench.running.row import Row, append_row, write_samples
from row_maker import complete, make_row

IMAGES = 300


def make_answers(seed: int, right: float, classes: int = 10, images: int = IMAGES) -> dict[str, NDArray[Any]]:
    """Answers to images whose order depends on the seed, and whose labels do not."""
    order = np.random.default_rng(seed).permutation(images)
    true = np.random.default_rng(0).integers(0, classes, images)[order]
    wrong = np.random.default_rng(round(1000 * right)).integers(0, classes, images)[order]
    sure = np.random.default_rng(1).random(images)[order] < right
    answers = {"index": order, "true": true, "predicted": np.where(sure, true, wrong), "domain": np.zeros_like(order)}
    floats = np.random.default_rng(seed + 1).random((4, images))
    return answers | dict(zip(("confidence", "gap", "margin", "recovery"), floats, strict=True))


def write_runs(
    folder: Path, domains: tuple[str, ...] = ("fog", "contrast"), seeds: tuple[int, ...] = (1, 2)
) -> list[Row]:
    """A folder with the runs of three methods."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for domain in domains:
        for label, spec, right in (("zero-shot", "zeroshot", 0.5), ("TENT", "tent", 0.55), ("LMR", "lmr", 0.6)):
            for seed in seeds:
                answers = make_answers(seed, right)
                accuracy = float((answers["true"] == answers["predicted"]).mean())
                row = make_row(label, complete(spec), domain, accuracy, seed=seed, images=IMAGES)
                write_samples(folder, row.run, answers)
                append_row(folder, row)
                rows.append(Row.from_json(row.to_json()))
    return rows
