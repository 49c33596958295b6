"""Clean images that a method studies before its stream, where it asks for some: the dataset's own, without labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmr.bench.running.inputs import find_clean_dataset, load_backbone, preprocess
from lmr.core.errors import LmrError
from lmr.core.method import Method
from lmr.data.dataset import CLEAN
from lmr.data.streams import make_stream

if TYPE_CHECKING:
    from lmr.bench.plans.task import Task

STUDIED_BATCH = 64  # images at a time; what a method makes of them may depend on it


def count_studied(method: type[Method], dataset: str, root: str | None, forgetting: int) -> int:
    """How many clean images a method gets: not those that forgetting is measured on, and none where there are none."""
    if not method.card.source_images:
        return 0
    try:
        clean = find_clean_dataset(dataset, root)
    except LmrError:
        return 0
    return max(0, min(method.card.source_images, clean.count(CLEAN) - forgetting))


def study_clean(task: Task, method: Method) -> None:
    """Show the method the clean images that follow, in the task's order, those that forgetting is measured on."""
    clean, backbone = find_clean_dataset(task.dataset, task.root), load_backbone(task.backbone, task.dtype, task.device)
    chosen = make_stream(clean, CLEAN, seed=task.seed, limit=task.forgetting + task.studied).index[task.forgetting :]
    parts = (chosen[first : first + STUDIED_BATCH] for first in range(0, len(chosen), STUDIED_BATCH))
    device = method.classifier.device
    method.fit_source(preprocess(backbone, clean.read(CLEAN, 0, part.tolist()), device) for part in parts)


def describe_studied(task: Task) -> dict[str, str]:
    """What the row's protocol says about it."""
    if not task.studied:
        return {}
    name = find_clean_dataset(task.dataset, task.root).name
    words = f"{task.studied} clean images of {name} before the stream, {STUDIED_BATCH} at a time, unlabelled"
    return {"studied": words}
