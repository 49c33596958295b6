"""The sources of ``lmr tune``: a folder of images, or the streams of a plan, each with its entries."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lmr.apps.model_options import choose_prompts, create_suited, make_classifier, read_labels
from lmr.apps.options import AnyPath, ModelOptions
from lmr.bench.inputs import AnyMethod, find_dataset, load_backbone
from lmr.bench.plans.plan import MethodEntry, choose_plans, list_plans
from lmr.bench.plans.task import Task, list_tasks
from lmr.bench.running.run import create_method, fit_source
from lmr.bench.tune.trials import TrialBatch, list_entries
from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.registry import load_method_file, split_address
from lmr.data.streams import Stream, shuffle_places
from lmr.images.files import UnreadableImage, list_images, open_image
from lmr.models.catalog import DEFAULT_MODEL
from lmr.version import RESULTS_VERSION

BATCH_SIZE, FOLDER_IMAGES = 64, 2000  # by default
GRID = (0.3, 3.0, 10.0)  # times the learning rate, beside the method as it is
TUNE_VERSION = 2  # of what scores mean; finished scores of another one are measured again


@dataclass(frozen=True)
class TuneSource:
    """Unlabelled images and the entries to try on them, the default first.

    ``key`` is a hash of everything that decides the scores; ``images`` are the stream of a plan, or the files.
    """

    name: str
    key: str
    count: int
    create_methods: Callable[[], list[AnyMethod]]
    read: Callable[[int], Iterator[TrialBatch]]
    images: Stream | list[Path]


def open_sources(
    sources: Sequence[AnyPath],
    *,
    labels: AnyPath | Sequence[str] | None = None,
    method: str = "lmr",
    over: Sequence[str] = (),
    model: str | None = None,
    templates: Sequence[str] | None = None,
    prompts: AnyPath | None = None,
    batch_size: int | None = None,
    images: int | None = None,
    in_order: bool = False,
    root: str | None = None,
    **loading: Any,
) -> list[TuneSource]:
    """Open folders and image files with class names ``labels``; or one plan, whose streams are separate sources.

    The entries are the method as it is and with all values ``over``, such as "lr=3e-4,1e-3". Without ``over`` these are
    the methods of a plan, and for a folder the multiples ``GRID`` of the learning rate. ``loading`` are the arguments
    of ModelOptions.
    """
    for what, number in (("batch size", batch_size), ("number of images", images)):
        if number is not None and (not isinstance(number, int) or number < 1):
            raise LmrError(f"Expected a {what} of at least 1, got {number!r}.")
    plan = find_plan(sources)
    if plan is not None:
        if any(given is not None for given in (labels, model, templates, prompts)) or in_order:
            raise LmrError(
                f"The plan {plan!r} has its own classes, model, prompts and order: leave out --labels, --model, "
                "--template, --prompts and --in-order."
            )
        changes = {"images": images, "batch_sizes": batch_size}
        return open_plan(plan, changes | ({"methods": list_entries(method, over)} if over else {}), root)
    if labels is None:
        raise LmrError("Give the class names: --labels a,b,c, or a file with one per line.")
    names, chosen, options = read_labels(labels), choose_prompts(templates, prompts), ModelOptions(**loading)
    paths = _choose_images(sources, images or FOLDER_IMAGES, in_order)
    backbone = options.load(model or DEFAULT_MODEL)
    classifier = make_classifier(backbone, names, chosen)
    name = os.fspath(sources[0]) if len(sources) == 1 else f"{len(sources)} sources"
    entries = FolderEntries(method, over, classifier)
    facts = [list(map(_describe_file, paths)), entries.specs, entries.digest, batch_size or BATCH_SIZE]
    key = make_key([json.dumps([*facts, classifier.fingerprint, RESULTS_VERSION]), json.dumps(options.note())])

    def read(start: int) -> Iterator[TrialBatch]:
        return _read_images(paths, backbone.preprocess, classifier, start, batch_size or BATCH_SIZE)

    return [TuneSource(name, key, len(paths), entries.create, read, paths)]


def find_plan(sources: Sequence[AnyPath]) -> str | None:
    """Return the plan that is named: a .toml file, or a plan of the package where no folder or file has that name."""
    name = os.fspath(sources[0])
    found = name.endswith(".toml") or (not os.path.exists(name) and name in list_plans())
    if found and len(sources) > 1:
        raise LmrError(f"Give one plan, {name!r}, or folders and image files, not both.")
    return name if found else None


def open_plan(name: str, overrides: Mapping[str, Any], root: str | None = None) -> list[TuneSource]:
    """Return the streams of a plan; its methods are the entries, the first one the default."""
    groups: dict[str, list[Task]] = {}
    plans = choose_plans([name], overrides)
    for task in list_tasks(plans, root, lambda message: print(f"lmr: {message}", file=sys.stderr)):
        blank = dataclasses.replace(task, run="", entry=MethodEntry("", "", 0), source_images=0)
        groups.setdefault(repr(blank), []).append(task)
    for first, *others in groups.values():
        if not others:
            raise LmrError(
                f"There is nothing to choose from: the plan {name!r} has only {first.entry.label!r} in batches of "
                f'{first.batch_size}; give the values to try: --over "lr=3e-4,1e-3,3e-3".'
            )
    return [_open_stream(tasks) for tasks in groups.values()]


def _open_stream(tasks: Sequence[Task]) -> TuneSource:
    first = tasks[0]
    stream = first.open_stream(find_dataset(first.dataset, first.root))

    def create_methods() -> list[AnyMethod]:
        classifier = first.load_classifier()
        methods = [create_method(task.entry, classifier) for task in tasks]
        for task, method in zip(tasks, methods, strict=True):
            if task.source_images:
                fit_source(task, method)
        return methods

    def read(start: int) -> Iterator[TrialBatch]:
        backbone = load_backbone(*first.model)
        place = stream.ends[start - 1] if start else 0
        for batch in stream.batches(start):
            images = backbone.preprocess(batch.images).to(torch.device(first.device))
            yield TrialBatch(images, list(range(place, place + len(images))))
            place += len(images)

    parts = [first.dataset, first.domain, *([f"severity {first.severity}"] if first.severity else [])]
    parts += [f"batches of {first.batch_size}", f"seed {first.order.seed}"]
    key = make_key([task.run for task in tasks])
    return TuneSource(", ".join(parts), key, stream.count, create_methods, read, stream)


def _choose_images(sources: Sequence[AnyPath], most: int, in_order: bool) -> list[Path]:
    """Return at most ``most`` image files of files and folders.

    The order is shuffled, always in the same way, because class sub-folders would otherwise come one after the other;
    ``in_order`` keeps the order of the names.
    """
    paths = list_images(sources)
    if not paths:
        raise LmrError("There is no image to choose by; give at least one image or one folder of images.")
    return paths[:most] if in_order else [paths[place] for place in shuffle_places(len(paths))[:most]]


class FolderEntries:
    """The entries to try on a folder: a method as it is and with the values ``over``, each spec once."""

    def __init__(self, method: str, over: Sequence[str], classifier: ZeroShot) -> None:
        self.method, self.over, self.classifier = method, over, classifier
        self.file = split_address(method)[0]
        self.digest = None if self.file is None else load_method_file(self.file)
        self.specs = [one.spec for one in self.create()]
        if len(self.specs) < 2:
            raise LmrError(f"There is nothing to choose from: all values in --over give {self.specs[0]}.")

    def create(self) -> list[AnyMethod]:
        """Create the methods, the default first."""
        if self.file is not None and load_method_file(self.file) != self.digest:
            raise LmrError(f"The method file {self.file!r} was changed after its scores were looked for; start again.")
        values = self.over or _choose_grid(create_suited(self.method, self.classifier))
        made: list[AnyMethod] = [create_suited(one, self.classifier) for one in list_entries(self.method, values)]
        return list({one.spec: one for one in reversed(made)}.values())[::-1]  # of equal ones the first


def _read_images(
    paths: Sequence[Path], prepare: Callable[[Any], torch.Tensor], classifier: ZeroShot, start: int, batch_size: int
) -> Iterator[TrialBatch]:
    for first in range(start * batch_size, len(paths), batch_size):
        places = range(first, min(first + batch_size, len(paths)))
        found = {place: image for place in places if (image := _open_pixels(paths[place], prepare)) is not None}
        stacked = torch.stack(list(found.values())) if found else torch.empty(0)
        yield TrialBatch(stacked.to(classifier.device, classifier.dtype), list(found))


def _choose_grid(method: AnyMethod) -> list[str]:
    """Return the learning rates to try where no values are given."""
    rate = getattr(method, "lr", None)
    if not isinstance(rate, float) or not rate:
        raise LmrError(
            f'{method.name} has no learning rate to vary; give the values to try, as in --over "lr=3e-4,1e-3,3e-3".'
        )
    return ["lr=" + ",".join(f"{factor * rate:.3g}" for factor in GRID)]


def make_key(parts: Sequence[str]) -> str:
    """Return 16 hexadecimal digits of everything that decides the scores."""
    return hashlib.sha256("\n".join([f"tune {TUNE_VERSION}", *parts]).encode()).hexdigest()[:16]


def _open_pixels(path: Path, prepare: Callable[[Any], torch.Tensor]) -> torch.Tensor | None:
    """Return a preprocessed image, or None if it cannot be read."""
    try:
        return prepare(open_image(path))
    except (UnreadableImage, ValueError, OSError, MemoryError):
        return None


def _describe_file(path: Path) -> list[str]:
    """Return path, size and time, to recognise a file of an earlier run."""
    try:
        facts = path.stat()
    except OSError:
        return [os.path.abspath(path)]
    return [os.path.abspath(path), str(facts.st_size), str(facts.st_mtime_ns)]
