"""Tasks: the single runs of a plan, each identified by a hash of everything that determines its numbers."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lmr.bench.plans.alternatives import settle_datasets
from lmr.bench.plans.plan import Contender, Part, Plan
from lmr.bench.plans.prompt_sets import PromptSet
from lmr.bench.running.inputs import (
    describe_backbone,
    find_clean_dataset,
    find_dataset,
    make_task_stream,
    name_clean_set,
)
from lmr.bench.running.studied import count_studied
from lmr.core.errors import LmrError
from lmr.core.registry import find_method
from lmr.core.spec import parse_spec
from lmr.data.dataset import CLEAN, Dataset
from lmr.data.frames import BLEND
from lmr.version import RESULTS_VERSION


@dataclass(frozen=True)
class Task:
    """One run, as a worker gets it."""

    run: str  # content hash
    contender: Contender
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
    order: str
    order_hash: str
    concentration: float  # of the order "dirichlet"
    block: int | None  # of the order "classes"
    reset: str
    rounds: int
    mix: bool
    images: int  # length of the stream
    limit: int | None  # as the plan gives it
    forgetting: int
    recovery: bool
    dtype: str
    device: str
    root: str | None
    studied: int = 0  # clean images that the method sees before the stream

    @property
    def method(self) -> str:
        """The registered name of the method."""
        return parse_spec(self.contender.spec)[0]

    @property
    def domain(self) -> str:
        """What the row states: the domain, or how several domains form one stream."""
        if self.order == "haul":
            return BLEND
        return self.domains[0] if len(self.domains) == 1 else "mixed" if self.mix else "continual"

    @property
    def order_facts(self) -> dict[str, str]:
        """What the row states about the order: its kind, what that depends on, and the hash of the result."""
        facts = {"kind": self.order}
        if self.order == "dirichlet":
            facts["concentration"] = f"{self.concentration:g}"
        if self.order == "classes" and self.block:
            facts["block"] = str(self.block)
        if self.rounds > 1:
            facts["rounds"] = f"{self.rounds} rounds"
        return facts | {"hash": self.order_hash}

    @property
    def order_words(self) -> str:
        """The order in words: its kind and what that depends on."""
        return " ".join(value for key, value in self.order_facts.items() if key != "hash")

    @property
    def group(self) -> tuple[str, ...]:
        """Tasks of one group share the model and the images: a worker runs them one after the other."""
        return (self.backbone, self.dtype, self.prompts.name, self.dataset, *self.domains, str(self.severity))

    @property
    def command(self) -> str:
        """The command that repeats this run and no other."""
        words = ["lmr", "bench", "--methods", self.contender.address, "--datasets", self.dataset]
        words += ["--corruptions", *self.domains, "--severities", str(self.severity or 5)]
        words += ["--backbones", self.backbone, "--prompts", self.prompts.word]
        words += ["--watch", self.contender.watch] if self.contender.watch else []
        words += ["--batch-sizes", str(self.batch_size), "--seeds", str(self.seed)]
        words += ["--images", str(self.limit)] if self.limit is not None else []
        words += ["--order", self.order] if self.order != "shuffle" else []
        words += ["--concentration", str(self.concentration)] if self.order == "dirichlet" else []
        words += ["--block", str(self.block)] if self.order == "classes" and self.block else []
        words += ["--reset", "never"] if (len(self.domains) > 1 or self.rounds > 1) and not self.mix else []
        words += ["--rounds", str(self.rounds)] if self.rounds > 1 else []
        words += ["--mix"] if self.mix else []
        words += ["--forgetting", str(self.forgetting)] if self.forgetting else []
        words += ["--recovery"] if self.recovery else []
        words += ["--dtype", self.dtype] if self.dtype != "float32" else []
        words += ["--device", self.device] if self.device != "cpu" else []
        words += ["--root", self.root] if self.root else []
        return shlex.join(words)


def list_tasks(
    plans: Sequence[Plan], root: str | None = None, say: Callable[[str], object] = lambda words: None
) -> list[Task]:
    """Every run of the plans once, those of one group together; missing data or models raise LmrError.

    ``say`` is called with messages for the user: which dataset is used instead of one that is not there.
    """
    settled, choices = settle_datasets(plans, root)
    for choice in choices:
        if choice.words:
            say(choice.words)
    found: dict[str, Task] = {}
    for plan in settled:
        for part in plan.parts:
            for task in _expand(part, root):
                found.setdefault(task.run, task)
    groups: dict[tuple[str, ...], list[Task]] = {}
    for task in found.values():
        groups.setdefault(task.group, []).append(task)
    return list(itertools.chain.from_iterable(groups.values()))


def _expand(part: Part, root: str | None) -> Iterator[Task]:
    for backbone, dataset, prompts in itertools.product(part.backbones, part.datasets, part.prompts):
        opened = find_dataset(dataset, root)
        if part.forgetting:
            find_clean_dataset(dataset, root)  # fail now, not after the first stream
        streams = itertools.product(_choose_domains(part, opened), part.severities, part.seeds)
        for domains, severity, seed in streams:
            first = Task(
                run="",
                contender=part.methods[0],
                backbone=backbone,
                weights=describe_backbone(backbone, part.dtype, part.device),
                dataset=dataset,
                data_digest=opened.digest_part(domains, severity),  # a corruption added later changes no finished run
                domains=domains,
                severity=0 if set(domains) == {CLEAN} and part.order != "haul" else severity,
                prompts=prompts,
                prompt_facts=_describe_prompts(prompts, opened.classes),
                batch_size=1,
                seed=seed,
                order=part.order,
                order_hash="",
                concentration=part.concentration,
                block=part.block,
                reset="domain" if len(domains) == 1 else "never",
                rounds=part.rounds,
                mix=part.mix and len(domains) > 1,
                images=0,
                limit=part.images,
                forgetting=part.forgetting,
                recovery=part.recovery,
                dtype=part.dtype,
                device=part.device,
                root=root,
            )
            stream = make_task_stream(first, opened)
            first = dataclasses.replace(first, images=stream.count, order_hash=stream.hash)
            for contender in (one.suit(len(opened.classes)) for one in part.methods):
                for batch_size in part.batch_sizes or (contender.batch_size,):
                    task = dataclasses.replace(first, contender=contender, batch_size=batch_size)
                    kind = find_method(task.method)
                    task = dataclasses.replace(task, studied=count_studied(kind, dataset, root, part.forgetting))
                    yield dataclasses.replace(task, run=_hash(task))


@lru_cache
def _describe_prompts(prompts: PromptSet, classes: tuple[str, ...]) -> dict[str, Any]:
    return prompts.describe(classes)


def _choose_domains(part: Part, dataset: Dataset) -> list[tuple[str, ...]]:
    """The domains of each stream: one per stream, or all in one."""
    chosen = part.corruptions or dataset.domains
    if unknown := [domain for domain in chosen if domain not in (*dataset.domains, *dataset.others)]:
        known = ", ".join((*dataset.domains, *dataset.others))
        hint = f" `lmr fetch {name_clean_set(dataset.name)}` gets the clean images." if unknown[0] == CLEAN else ""
        raise LmrError(f"The dataset {dataset.name!r} has no {unknown[0]!r}; it has: {known}.{hint}")
    alone = part.reset == "domain" and not part.mix
    return [(domain,) for domain in chosen] if alone else [tuple(chosen)]


def _hash(task: Task) -> str:
    """16 hexadecimal digits of everything that determines the numbers; labels and paths do not."""
    content = dataclasses.asdict(task) | {"contender": task.contender.spec, "lmr": RESULTS_VERSION}
    for key in ("run", "root", "limit", "backbone", "prompts", "rounds"):  # the hash of the order holds the rounds
        del content[key]
    content["prompt_facts"] = task.prompt_facts["digest"]
    if task.studied:
        content["studied_digest"] = find_clean_dataset(task.dataset, task.root).digest_part((CLEAN,), 0)
    else:
        del content["studied"]  # so that all other runs keep their hashes
    if task.contender.watch:
        content["watch"] = task.contender.watch
    if task.contender.file_digest is not None:
        content["method_file"] = task.contender.file_digest
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
