"""Tasks: the single runs of a plan, each identified by a hash of everything that determines its numbers.

An item of a plan's datasets that ends with ``|`` is left out if it is not under the root. Only a missing dataset is
passed over; a damaged one is an error.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from lmr.bench.inputs import describe_backbone, find_clean_dataset, find_dataset, load_classifier, name_clean_set
from lmr.bench.plans.fields import RunSettings
from lmr.bench.plans.plan import MethodEntry, Part, Plan
from lmr.bench.plans.prompts import PromptSet
from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.method import Method
from lmr.core.registry import find_method, shorten_address
from lmr.core.spec import format_spec, parse_spec, suggest
from lmr.data.dataset import CLEAN, Dataset, MissingData
from lmr.data.frames import BLEND
from lmr.data.names import describe_order
from lmr.data.streams import Order, Stream, make_stream
from lmr.version import RESULTS_VERSION

OPTIONAL = "|"  # at the end of a dataset that may be missing
ORDERING = {"order", *(item.name for item in fields(Order))}  # what the hash of the order covers
ALWAYS_HASHED = ("dtype", "reset", "forgetting", "recovery")  # the defaults of others are not in the hash


@dataclass(frozen=True, kw_only=True)
class Task(RunSettings):
    """One run, as a worker gets it."""

    run: str  # content hash
    entry: MethodEntry
    backbone: str
    weights: str  # digest of both towers
    dataset: str
    data_digest: str
    domains: tuple[str, ...]
    severity: int
    prompts: PromptSet
    prompt_facts: dict[str, Any]
    batch_size: int
    seed: int
    dominant: str = ""
    labels: int = 0
    order_hash: str
    images: int  # length of the stream
    limit: int | None  # as the plan gives it
    root: str | None
    source_images: int = 0  # clean images that the method is fitted on before the stream

    @property
    def method(self) -> str:
        """The registered name of the method."""
        return parse_spec(self.entry.spec)[0]

    @property
    def model(self) -> tuple[str, str, str]:
        """The model, its precision and its device, as ``load_backbone`` takes them."""
        return self.backbone, self.dtype, self.device

    def load_classifier(self) -> ZeroShot:
        """Return the classifier that the method adapts; a process holds one at a time."""
        classes = find_dataset(self.dataset, self.root).classes
        return load_classifier(*self.model, classes, self.prompts.templates)

    @property
    def domain(self) -> str:
        """The domain in the row, or how several domains form one stream."""
        if self.order == "haul":
            return BLEND
        return self.domains[0] if len(self.domains) == 1 else "mixed" if self.mix else "continual"

    @property
    def full_order(self) -> Order:
        """The order of the images with everything that it depends on."""
        shape = {name: getattr(self, name) for name in ORDERING - {"order", "kind"}}
        return Order(self.order, **shape)

    @property
    def order_facts(self) -> dict[str, str]:
        """The order in the row: its kind, what that depends on, and the hash of the result."""
        facts = {"kind": self.order}
        for key, value in self.full_order.settings.items():
            facts[key] = f"{value:g}" if isinstance(value, float) else str(value)
        if self.rounds > 1:
            facts["rounds"] = f"{self.rounds} rounds"
        if self.timing != "wait":
            facts["timing"] = self.timing
        if self.labels:
            facts["labels"] = f"{self.labels} {self.labels_when}"
        return facts | {"hash": self.order_hash}

    @property
    def order_text(self) -> str:
        """The order for people: its kind and what that depends on."""
        return describe_order(self.order_facts)

    @property
    def group(self) -> tuple[str, ...]:
        """The model and images; a worker runs tasks of one group one after the other."""
        return (self.backbone, self.dtype, self.prompts.name, self.dataset, *self.domains, str(self.severity))

    @property
    def command(self) -> str:
        """The command that repeats this run and no other."""
        never = (len(self.domains) > 1 or self.rounds > 1) and not self.mix
        values = {item.name: getattr(self, item.name) for item in fields(RunSettings)}
        values |= {
            "reset": "never" if never else "domain",
            "dominant": self.dominant,
            "labels": self.labels,
            "watch": self.entry.watch,
        }
        changed = [f"{name}={_write_value(value)}" for name, value in values.items()
                   if value and value != getattr(Part, name)]  # fmt: skip
        changed += [f"prompts={self.prompts.argument}"] if (self.prompts,) != Part.prompts else []
        words = ["lmr", "bench", "--methods", self.entry.address, "--datasets", self.dataset]
        words += ["--corruptions", *self.domains, "--severities", str(self.severity or 5)]
        words += ["--backbones", self.backbone, "--batch-sizes", str(self.batch_size), "--seeds", str(self.seed)]
        words += ["--images", str(self.limit)] if self.limit is not None else []
        words += ["--set", *changed] if changed else []
        words += ["--root", self.root] if self.root else []
        return shlex.join(words)

    def open_stream(self, dataset: Dataset) -> Stream:
        """Return the stream of images of this task."""
        return make_stream(
            dataset, self.domains, order=self.full_order, severity=self.severity or 5, limit=self.limit,
            batch_size=self.batch_size,
        )  # fmt: skip


def _write_value(value: Any) -> str:
    """Return a value as --set reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def list_tasks(
    plans: Sequence[Plan], root: str | None = None, log: Callable[[str], object] = lambda message: None
) -> list[Task]:
    """Return every run of the plans once, those of one group together; missing data or models raise LmrError.

    ``log`` is called with messages about datasets that are left out.
    """
    found: dict[str, Task] = {}
    for plan in leave_out_missing(plans, root, log):
        for part in plan.parts:
            for task in _expand(part, root):
                found.setdefault(task.run, task)
    groups: dict[tuple[str, ...], list[Task]] = {}
    for task in found.values():
        groups.setdefault(task.group, []).append(task)
    return list(itertools.chain.from_iterable(groups.values()))


def leave_out_missing(
    plans: Sequence[Plan], root: str | None = None, log: Callable[[str], object] = lambda message: None
) -> list[Plan]:
    """Return the plans without the datasets that may be missing and are; ``log`` is told each of them once.

    A plan without any dataset left raises LmrError with the commands that get its datasets.
    """
    missing: dict[str, str] = {}
    for item in dict.fromkeys(item for plan in plans for part in plan.parts for item in part.datasets):
        try:
            find_dataset(item.removesuffix(OPTIONAL), root)
        except MissingData as error:
            if not item.endswith(OPTIONAL):
                raise
            missing[item] = f"The dataset {item[:-1]!r} is not in {str(error.root)!r}: it is left out. {error.advice}"
            log(missing[item])
    chosen = []
    for plan in plans:
        parts = []
        for part in plan.parts:
            names = tuple(dict.fromkeys(item.removesuffix(OPTIONAL) for item in part.datasets if item not in missing))
            parts += [replace(part, datasets=names)] if names else []
        if not parts:
            lost = dict.fromkeys(missing[item] for part in plan.parts for item in part.datasets)
            raise LmrError(f"The plan {plan.name!r} has nothing left to run. {' '.join(lost)}")
        chosen.append(replace(plan, parts=tuple(parts)))
    return chosen


def _expand(part: Part, root: str | None) -> Iterator[Task]:
    shared = {field.name: getattr(part, field.name) for field in fields(RunSettings)}
    for backbone, dataset, prompts in itertools.product(part.backbones, part.datasets, part.prompts):
        opened = find_dataset(dataset, root)
        if part.forgetting:
            find_clean_dataset(dataset, root)  # fail now, not after the first stream
        domains_list = _choose_domains(part, opened)
        streams = itertools.product(domains_list, part.severities, part.seeds, part.dominant, part.labels)
        for domains, severity, seed, dominant, labels in streams:
            several = len(domains) > 1
            first = Task(
                run="",
                entry=part.methods[0],
                backbone=backbone,
                weights=describe_backbone(backbone, part.dtype, part.device),
                dataset=dataset,
                data_digest=opened.digest_part((*domains, CLEAN) if part.onset else domains, severity),
                domains=domains,
                severity=_find_severity(part, opened, domains, severity),
                prompts=prompts,
                prompt_facts=_describe_prompts(prompts, opened.classes),
                batch_size=1,
                seed=seed,
                dominant=dominant,
                labels=labels,
                order_hash="",
                images=0,
                limit=part.images,
                root=root,
                **(shared | {"mix": part.mix and several, "reset": "never" if several else "domain"}),
            )
            stream = first.open_stream(opened)
            first = replace(first, images=stream.count, order_hash=stream.hash)
            for entry in (one.suit(len(opened.classes)) for one in part.methods):
                count = count_source_images(find_method(parse_spec(entry.spec)[0]), dataset, root, part.forgetting)
                for batch_size in part.batch_sizes or (entry.batch_size,):
                    task = replace(first, entry=entry, batch_size=batch_size, source_images=count)
                    yield replace(task, run=_hash(task))


@lru_cache
def _describe_prompts(prompts: PromptSet, classes: tuple[str, ...]) -> dict[str, Any]:
    return prompts.describe(classes)


def _find_severity(part: Part, dataset: Dataset, domains: Sequence[str], severity: int) -> int:
    """Return the severity in the row: 0 where nothing is corrupted."""
    plain = set(domains) == {CLEAN} or dataset.severities == (0,)
    return 0 if plain and part.order != "haul" else severity


def _choose_domains(part: Part, dataset: Dataset) -> list[tuple[str, ...]]:
    """Return the domains of each stream: one per stream, or all in one."""
    chosen, known = part.corruptions or dataset.domains, (*dataset.domains, *dataset.others)
    if unknown := [domain for domain in chosen if domain not in known]:
        hint = f" `lmr fetch {name_clean_set(dataset.name)}` gets the clean images." if unknown[0] == CLEAN else ""
        raise LmrError(
            f"The dataset {dataset.name!r} has no {unknown[0]!r}.{suggest(unknown[0], known)} It has: "
            f"{', '.join(known)}.{hint}"
        )
    if part.latin:
        return make_latin_square(chosen)
    alone = part.reset == "domain" and not part.mix
    return [(domain,) for domain in chosen] if alone else [tuple(chosen)]


def make_latin_square(domains: Sequence[str]) -> list[tuple[str, ...]]:
    """Return as many orders of the domains as there are: each domain is once at every place.

    If their number is even, each also follows every other one once (Williams, 1949).

    Examples:
        >>> make_latin_square("abcd")
        [('a', 'b', 'd', 'c'), ('b', 'c', 'a', 'd'), ('c', 'd', 'b', 'a'), ('d', 'a', 'c', 'b')]
    """
    count = len(domains)
    steps = [(place + 1) // 2 * (1 if place % 2 else -1) for place in range(count)]  # 0, 1, -1, 2, -2, …
    return [tuple(domains[(first + step) % count] for step in steps) for first in range(count)]


def count_source_images(method: type[Method], dataset: str, root: str | None, forgetting: int) -> int:
    """Return the number of clean images that a method is fitted on.

    Images that forgetting is measured on are not among them; there are none where the dataset has no clean images.
    """
    if not method.card.source_images:
        return 0
    try:
        clean = find_clean_dataset(dataset, root)
    except LmrError:
        return 0
    return max(0, min(method.card.source_images, clean.count(CLEAN) - forgetting))


def _hash(task: Task) -> str:
    """Return 16 hexadecimal digits of everything that determines the numbers; labels and paths do not."""
    name, values = parse_spec(task.entry.spec)
    content = {
        "lmr": RESULTS_VERSION,
        "spec": format_spec(name, values | dict(find_method(name).card.former)),  # as rows of earlier versions have it
        "watch": task.entry.watch,
        "method_file": task.entry.file_digest,
        "weights": task.weights,
        "prompts": task.prompt_facts["digest"],
        "dataset": shorten_address(task.dataset),
        "data": task.data_digest,
        "domains": task.domains,
        "severity": task.severity,
        "order": task.order_hash,  # of the images in their order: rounds and limits are in it
        "order_kind": task.order,
        "mix": task.mix,
        "images": task.images,
        "batch_size": task.batch_size,
        "seed": task.seed,
        "source_images": task.source_images,
        "device": RunSettings.device,  # a run is the same on every one; its row says where it was made
    }
    for item in fields(RunSettings):
        value = getattr(task, item.name)
        if item.name not in (*ORDERING, "device") and (item.name in ALWAYS_HASHED or value != item.default):
            content[item.name] = value
    if task.timing == "live":
        content["timing"] = "live, in passes"  # earlier rows counted operations
    if task.labels:
        content["labels"] = task.labels
    if task.source_images:
        content["source_data"] = find_clean_dataset(task.dataset, task.root).digest_part((CLEAN,), 0)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
