"""Rows and samples made by hand, for everything that reads runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lmr.bench.plans.task import Task
from lmr.bench.running.row import Row
from lmr.core.spec import format_spec, parse_spec
from lmr.report.protocol import PRESETS
from lmr.report.published import find_published
from lmr.report.traits import expand_spec

CORRUPTIONS = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "snow",
    "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
B16, L14 = "openai/clip-vit-base-patch16", "openai/clip-vit-large-patch14"


def complete(spec: str, preset: str | None = None) -> str:
    """The canonical spec, every argument with its value."""
    return format_spec(parse_spec(spec)[0], expand_spec(spec, preset))


def make_row(label: str, spec: str, domain: str, accuracy: float | None, **changes: Any) -> Row:
    """A row of CIFAR-10-C as the paper ran it, but for the changes; unknown keys are metrics."""
    metrics: dict[str, float | None] = {"accuracy": accuracy, "ms_per_image": 2.0}
    fields: dict[str, Any] = {
        "backbone": {"name": B16, "weights": "w" * 16, "dtype": "float32"},
        "dataset": "cifar10-c",
        "data_digest": "d" * 16,
        "severity": 5,
        "prompts": {"name": "a photo of a {}.", "count": 10, "digest": "p" * 16},
        "batch_size": 64,
        "seed": 1,
        "order": {"kind": "shuffle", "hash": "o" * 16},
        "reset": "domain",
        "images": 10000,
        "emit": "after",
        "versions": {"lmr": "0", "torch": "0"},
        "curve": {"images": [64.0, 128.0], "accuracy": [(accuracy or 0.0) / 2, accuracy or 0.0]},
        "command": f"lmr bench --methods '{spec}' --corruptions {domain}",
        "finished": "2026-01-01T00:00:00",
    }
    for key, value in changes.items():
        (fields if key in fields or key in ("domains", "protocol", "watch") else metrics)[key] = value
    name = parse_spec(spec)[0]
    content = json.dumps([label, spec, domain, {k: v for k, v in fields.items() if k != "curve"}], sort_keys=True)
    run = hashlib.sha256(content.encode()).hexdigest()[:16]
    return Row(run=run, method=name, spec=spec, label=label, domain=domain, metrics=metrics, **fields)


def make_task_rows(tasks: Iterable[Task]) -> list[Row]:
    """Rows of the runs of plans, with made-up numbers."""
    return [
        make_row(
            task.entry.label, task.entry.spec, task.domain, 0.3 + place % 50 / 100, late_top_share=0.2,
            peak_mb=1.0, trainable=3.0, dataset=task.dataset, data_digest=task.data_digest, images=task.images,
            backbone={"name": task.backbone, "weights": task.weights, "dtype": task.dtype}, seed=task.seed,
            batch_size=task.batch_size, severity=task.severity or 5, prompts=task.prompt_facts,
        )
        for place, task in enumerate(tasks)
    ]  # fmt: skip


def make_published_rows(name: str, shift: float = 0.0, **changes: Any) -> list[Row]:
    """Runs that come out as a published table, moved by some points; an average has no run."""
    table = find_published(name)
    rows = []
    for published in table.rows:
        for column in table.columns:
            dataset = table.protocol["dataset"] or column
            if column == "average":
                continue
            fields: dict[str, Any] = {
                "dataset": dataset,
                "backbone": {"name": table.protocol["backbone"], "weights": "w", "dtype": "float32"},
                "prompts": {"name": table.protocol["prompts"], "count": 1, "digest": "p"},
                "batch_size": published.batch_size or 64,
                "images": table.describe(column)["images"] or 5000,
                "severity": table.protocol["severity"] or 0,
            }
            spec = complete(published.spec, PRESETS.get(dataset))
            label = {"CLIPZS": "zero-shot", "Ours": "LMR"}.get(published.printed, published.printed)
            if name == "efficiency":
                fields |= {key: published.value(key) for key in table.columns}
                domains, accuracy = ["gaussian_noise"], 0.5
            else:
                accuracy = (float(published.cells[column]) + shift) / 100
                domains = list(CORRUPTIONS) if name == "ablation-components" else [column]
                domains = ["clean"] if name == "imagenet-variants" else domains
            rows += [make_row(label, spec, domain, accuracy, **(fields | changes)) for domain in domains]
    return rows


def make_samples(row: Row, classes: int = 20, images: int = 200) -> dict[str, np.ndarray]:
    """Answers of about the row's accuracy, made up but consistent: a gap of zero where the answer is right."""
    random = np.random.default_rng(int(row.run[:8], 16))
    true = np.random.default_rng(5).integers(0, classes, images)
    right = random.random(images) < (row.metrics["accuracy"] or 0)
    predicted = np.where(right, true, (true + 1 + random.integers(0, 3, images)) % classes)
    return {
        "index": np.arange(images),
        "true": true,
        "predicted": predicted,
        "confidence": random.random(images).astype(np.float32),
        "gap": np.where(predicted == true, 0, random.exponential(0.03, images)).astype(np.float32),
        "margin": random.exponential(0.02 / max(1, row.severity), images).astype(np.float32),
        "recovery": np.where(right, np.nan, random.normal(row.metrics["accuracy"], 0.2, images)).astype(np.float32),
    }


def write_runs(folder: Path, rows: list[Row], samples: bool = True) -> Path:
    """A folder of runs, written at once: flushing every row to the disk is for those who cannot make it again."""
    (folder / "samples").mkdir(parents=True, exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(row.to_json() for row in rows), encoding="utf-8")
    for row in rows if samples else ():
        np.savez(folder / "samples" / f"{row.run}.npz", **make_samples(row))
    return folder


def make_world(dataset: str = "photo-c", **changes: Any) -> list[Row]:
    """Rows for every table and figure, made up: nine methods, parts, sweeps, severities, clean pictures."""
    fields: Mapping[str, Any] = {"dataset": dataset, "images": 1000, **changes}
    base = "cifar100-c"
    methods = {"zero-shot": "zeroshot", "TDA": "tda", "ECALP": "ecalp", "TENT": "tent", "ETA": "eta",
               "BATCLIP": "batclip", "MINT": "mint", "BITTA": "bitta", "LMR": "lmr"}  # fmt: skip
    rows = []
    for number, (label, name) in enumerate(methods.items()):
        for place, domain in enumerate(CORRUPTIONS):
            accuracy = 0.3 + 0.02 * number + 0.01 * place
            rows.append(make_row(label, complete(name, base), domain, accuracy, ece=0.1, top_share=0.2, **fields))
    rows.append(make_row("zero-shot", "zeroshot()", "clean", 0.8, **fields))
    parts = {"BC alone": "lmr(pmr=False)", "PMR": "lmr(am=False, bc=False)", "PMR+AM": "lmr(bc=False)",
             "PMR+BC": "lmr(am=False)"}  # fmt: skip
    for number, (label, spec) in enumerate(parts.items()):
        for domain in CORRUPTIONS:
            share = 0.3 - 0.05 * number
            row = make_row(label, complete(spec, base), domain, 0.35 + 0.02 * number, late_top_share=share, **fields)
            rows.append(row)
    for severity in (1, 2, 3, 4):
        for domain in ("frost", "fog", "gaussian_noise", "contrast"):
            rows.append(make_row("zero-shot", "zeroshot()", domain, 0.6, severity=severity, **fields))
    for domain in ("frost", "fog"):
        for label, name in (("MINT", "mint"), ("BATCLIP", "batclip"), ("LMR", "lmr")):
            for size in (1, 4, 16):
                accuracy = {"LMR": 0.44, "MINT": 0.40, "BATCLIP": 0.25}[label] + size / 200
                rows.append(make_row(label, complete(name, base), domain, accuracy, batch_size=size, **fields))
        for delta in (0.01, 0.02, 0.05, 0.1):
            spec = complete(f"lmr(delta={delta})", base)
            rows.append(make_row(f"LMR (delta={delta})", spec, domain, 0.46 - abs(delta - 0.03), **fields))
        for positives in ("gap", "top1"):
            for negatives in (1, 3, 10, 20) if positives == "gap" else (1, 3, 5, 10, 20):
                spec = complete(f"lmr(negatives={negatives}, positives={positives!r})", base)
                accuracy = (0.46 if positives == "gap" else 0.43) - negatives / 1000
                rows.append(make_row(f"LMR ({positives}, {negatives})", spec, domain, accuracy, **fields))
    return rows
