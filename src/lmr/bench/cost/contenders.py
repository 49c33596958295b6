"""Contenders ready to run: each takes one step on the same images and knows what arithmetic the step needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.bench.cost.entries import Entry
from lmr.bench.cost.flops import count_passes_of_image, count_texts
from lmr.bench.cost.gate import NOBODY, build_prototypes
from lmr.bench.cost.measured_model import MeasuredModel, assign_colours
from lmr.bench.cost.memory import estimate_prompt, read_available
from lmr.bench.cost.plain.loop import PlainLoop, find_plain_loop
from lmr.core.bases.prompts import ContextMethod, ContextTuner
from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.method import Method, list_arguments
from lmr.core.passes import Passes
from lmr.core.prediction import Prediction
from lmr.core.registry import create
from lmr.core.views.pixel_scale import PixelScale


@dataclass(frozen=True)
class StepOutcome:
    """The answer to a step and what happened in it; None where that is not known."""

    logits: Tensor
    gate_share: float | None = None  # share of the samples past a gate
    stepped: bool | None = None  # whether the state moved
    forwards: float | None = None  # passes per image, where they were watched
    backwards: float | None = None
    widest: int = 0  # images of the largest pass that was watched


@dataclass(frozen=True)
class CostContender:
    """One way to take a step. ``run`` is what is measured; ``reset`` restores the state before it."""

    entry: Entry
    spec: str
    images: int
    trainable: int
    run: Callable[[], StepOutcome]
    reset: Callable[[], None] = lambda: None
    count_passes: Callable[[float], Passes | None] = lambda learning: Passes(forwards=1)
    encoder: nn.Module | None = None  # where a backward can be watched

    def check(self, outcome: StepOutcome) -> None:
        """Refuse a step that was not the one to be measured."""
        if not self.entry.gated:
            return
        wanted = self.entry.count_past(self.images) / self.images
        passes = self.count_passes(1.0)
        # Where a part of the images learns, the share of it past the gate can be as near as one of its images.
        near = 1 / (passes.backwards * self.images) if passes and 0 < passes.backwards < 1 else 1e-9
        if outcome.gate_share is None or not math.isclose(outcome.gate_share, wanted, abs_tol=near):
            raise LmrError(
                f"{self.entry.name} should have {wanted:.0%} of its samples past the gate and has "
                f"{outcome.gate_share}; keep the arguments that decide what passes at their defaults, or measure "
                "another model."
            )


class PassWatch:
    """Counts the images that are encoded, and those to whose features a gradient comes: the others have no backward."""

    def __init__(self, images: int) -> None:
        self.images, self._encoded, self._taught = images, 0, 0
        self.widest = 0  # images that were encoded at once

    @property
    def forwards(self) -> float:
        """Forward passes per image of the step."""
        return self._encoded / self.images

    @property
    def backwards(self) -> float:
        """Backward passes per image of the step."""
        return self._taught / self.images

    @contextmanager
    def observe(self, encoder: nn.Module) -> Iterator[None]:
        """Count while this context is open."""
        handle = encoder.register_forward_hook(self._watch)
        try:
            yield
        finally:
            handle.remove()

    def _watch(self, encoder: nn.Module, given: tuple[Any, ...], features: Tensor) -> None:
        self._encoded += len(features)
        self.widest = max(self.widest, len(features))
        if features.requires_grad:
            features.register_hook(self._count)  # type: ignore[no-untyped-call]

    def _count(self, gradient: Tensor) -> None:
        self._taught += int((gradient != 0).flatten(1).any(1).sum())


class ContenderFactory:
    """A model, a batch and classes; makes the contenders that work on them."""

    def __init__(self, model: MeasuredModel, batch_size: int, classes: int) -> None:
        self.model, self.batch_size, self.classes = model, batch_size, classes
        self._batches: dict[int, tuple[Tensor, Tensor]] = {}

    def build(self, entry: Entry) -> CostContender:
        """A contender by its entry."""
        if entry.kind == "forward":
            return self._build_forward(entry)
        if entry.kind in ("prompts", "context"):
            return self._build_prompts(entry)
        if entry.kind in ("transformers", "plain"):
            return self._build_plain(entry)
        if entry.kind in ("streams", "singles"):
            return self._build_streams(entry)
        return self._build_method(entry)

    def classifier(self, entry: Entry, count: int) -> ZeroShot:
        """The classes for an entry: its share of so many images passes the gate, each colour with its own class."""
        _, features = self._encode(count)
        past = entry.count_past(count)
        target = torch.full((count,), NOBODY)
        target[:past] = torch.unique(assign_colours(count)[:past], return_inverse=True)[1]
        prototypes = build_prototypes(features, target, self.classes, self.model.logit_scale)
        text = self.model.write_prompts(self.classes, whole=entry.whole) if entry.needs_text else None
        return ZeroShot(
            self.model.encoder,
            prototypes,
            self.model.logit_scale,
            logit_bias=self.model.logit_bias,
            input_shape=self.model.input_shape,
            text=text,
            reader=self.model.make_reader(),
            pixels=PixelScale((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
        )

    def count_flops(self, contender: CostContender, outcome: StepOutcome) -> int | None:
        """The operations that a step with this outcome needs; None where the tower or the passes are not known.

        Passes that the step left out, because of the images or of what its state holds, are not counted.
        """
        forwards, backwards = outcome.forwards, outcome.backwards
        tower, text = self.model.tower, self.model.text
        passes = contender.count_passes(1.0 if backwards is None else min(1.0, backwards))
        if tower is None or passes is None:
            return None
        seen = passes.forwards if forwards is None else min(passes.forwards, forwards)
        taken = passes.backwards if backwards is None else min(passes.backwards, backwards)
        passes, method = replace(passes, forwards=seen, backwards=taken), contender.entry.method
        needed = method is not None and method.needs_images
        per_image = count_passes_of_image(tower, passes, self.classes, needs_images=needed)
        total = contender.images * per_image
        if passes.text_forwards or passes.text_backwards:
            if text is None:
                return None
            own = self.model.average if passes.shared_tokens else self.model.longest
            tokens = text.config.context if contender.entry.whole and not passes.shared_tokens else own
            total += self.classes * count_texts(text.config, tokens, passes, contender.images)
        return round(total)

    def _encode(self, count: int) -> tuple[Tensor, Tensor]:
        """Images [count, ...] and their unit features, computed once."""
        if count not in self._batches:
            images = self.model.draw_images(count)
            with torch.no_grad():
                features = F.normalize(self.model.encoder(images).float(), dim=-1)
            self._batches[count] = images, features
        return self._batches[count]

    def _build_forward(self, entry: Entry) -> CostContender:
        images, clip = self._encode(self.batch_size)[0], self.classifier(entry, self.batch_size)

        def run() -> StepOutcome:
            with torch.no_grad():
                return StepOutcome(clip.logits(clip.cosines(clip.features(images))))

        return CostContender(entry, "", self.batch_size, 0, run)

    def _build_prompts(self, entry: Entry) -> CostContender:
        """All prompts once, for one image: encoded, or encoded with the gradient of a loss along their context."""
        clip = self.classifier(entry, self.batch_size)
        text = clip.text
        if text is None or text.learn is None:
            raise LmrError("The text tower of this model takes no vectors in place of words; measure other methods.")
        prompts = text.learn(ContextMethod.context, clip.names)
        tuner = ContextTuner(text, prompts, ContextMethod.chunk, clip.prototypes.dtype)
        slopes = torch.ones_like(tuner.start_prototypes).unsqueeze(0)
        learns = entry.kind == "context"

        def run() -> StepOutcome:
            return StepOutcome(tuner.pull_back(tuner.start, slopes) if learns else tuner.encode(tuner.start))

        shared = 1 + tuner.shape[0]
        passes = Passes(0, text_forwards=1, text_backwards=float(learns), own_prompts=True, shared_tokens=shared)
        trainable = len(tuner.start) if learns else 0
        return CostContender(entry, "", 1, trainable, run, count_passes=lambda learning: passes)

    def _build_plain(self, entry: Entry) -> CostContender:
        """The loop of a method on transformers, or a forward of transformers alone."""
        images, clip = self._encode(self.batch_size)[0], self.classifier(entry, self.batch_size)
        kind = PlainLoop if entry.method is None else find_plain_loop(entry.method.name)
        if kind is None:
            raise LmrError(f"There is no plain loop for {entry.spec}.")
        loop = kind(self.model.build_twin(), clip.prototypes, clip.logit_scale)

        def run() -> StepOutcome:
            logits, info = loop.step(images)
            return StepOutcome(logits, info.get("gate_share"))

        if entry.method is None:
            return CostContender(entry, "", self.batch_size, 0, run, loop.reset)
        trainable = sum(parameter.numel() for parameter in loop.parameters)
        passes = create(entry.spec, clip).count_passes
        return CostContender(entry, entry.spec, self.batch_size, trainable, run, loop.reset, passes)

    def _build_method(self, entry: Entry) -> CostContender:
        images, clip = self._encode(self.batch_size)[0], self.classifier(entry, self.batch_size)
        arguments: dict[str, Any] = {}
        if entry.whole:
            self._require_memory()
            if entry.method is not None and "chunk" in list_arguments(entry.method):
                arguments["chunk"] = self.classes
        method = create(entry.spec, clip, **arguments)
        tower, turns = self.model.tower, math.ceil(method.cycle / self.batch_size)

        def run() -> StepOutcome:
            if tower is None or not entry.lean:
                return _read_outcome([method.step(images) for _ in range(turns)])
            tower.set_mode("lean")
            answers = [method.step(images) for _ in range(turns)]
            tower.set_mode("fast")
            return _read_outcome(answers)

        return self._wrap(entry, [method], images, run, self.batch_size, turns)

    def _build_streams(self, entry: Entry) -> CostContender:
        """Streams of one image each: all in one batch, or one after the other, each with its own method."""
        count = entry.streams
        images, clip = self._encode(count)[0], self.classifier(entry, count)
        ids = torch.arange(count)
        together = entry.kind == "streams"
        methods = [create(entry.spec, clip, streams=count)] if together else [create(entry.spec, clip) for _ in ids]

        def run() -> StepOutcome:
            if together:
                return _read_outcome([methods[0].step(images, streams=ids)])
            return _read_outcome([method.step(images[k : k + 1]) for k, method in enumerate(methods)])

        return self._wrap(entry, methods, images, run, 1)

    def _wrap(
        self,
        entry: Entry,
        methods: list[Method],
        images: Tensor,
        run: Callable[[], StepOutcome],
        each: int,
        turns: int = 1,
    ) -> CostContender:
        """A contender whose run takes ``turns`` steps on the images, ``each`` of every stream."""

        def count_passes(learning: float) -> Passes | None:
            passes = first.count_passes(learning)
            return None if passes is None else passes.of_batch(each)

        def reset() -> None:
            for method in methods:
                method.reset()
                method.fill_state(images)

        trainable = sum(method.trainable * method.streams for method in methods)
        first, encoder, count = methods[0], self.model.encoder, turns * len(images)
        return CostContender(entry, first.spec, count, trainable, run, reset, count_passes, encoder)

    def _require_memory(self) -> None:
        """Prompts of the full context in one graph may take more memory than is free; then refuse to begin."""
        assert self.model.text is not None
        sizes, available = self.model.text.config, read_available()
        needed = self.classes * estimate_prompt(sizes.context, sizes.depth, sizes.width)
        if available is not None and needed > available:
            raise LmrError(
                f"{self.classes} prompts of {sizes.context} tokens in one graph need about {needed / 1e9:.0f} GB and "
                f"{available / 1e9:.0f} GB are free; measure fewer classes, or leave out the full context."
            )


def _read_outcome(answers: list[Prediction]) -> StepOutcome:
    """Answers to one batch, or to its images one by one."""
    shares = [answer.info["gate_share"] for answer in answers if "gate_share" in answer.info]
    stepped = [answer.info["stepped"] for answer in answers if "stepped" in answer.info]
    return StepOutcome(
        answers[0].logits if len(answers) == 1 else torch.cat([answer.logits for answer in answers]),
        sum(shares) / len(shares) if shares else None,
        all(stepped) if stepped else None,
    )
