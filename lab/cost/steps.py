"""Steps that are ready to run on the same images, with the number of operations that each needs."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lab.cost.entries import Entry
from lab.cost.plain import PlainLoop, list_plain_loops
from lmr.bench.cost.model import CONTEXT, SHORTEST, MeasuredModel
from lmr.bench.flops import count_passes_of_image, count_passes_of_prompt
from lmr.core.bases.prompts import ContextMethod, ContextTuner
from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.method import Method, list_arguments
from lmr.core.passes import Passes, count_passes
from lmr.core.prediction import Prediction
from lmr.core.registry import create
from lmr.models.formats.export import build_transformers_vision

ONE_FORWARD = Passes(forwards=1)


@dataclass(frozen=True)
class StepResult:
    """The answer to a step and what happened in it; None where that is not known."""

    logits: Tensor
    gate_share: float | None = None  # share of the samples past a gate
    stepped: bool | None = None  # whether the state changed
    passes: Passes | None = None  # counted on the measured model
    largest: int = 0  # images that were encoded at once


@dataclass(frozen=True)
class CostStep:
    """One way to take a step. ``run`` is measured; ``reset`` restores the state before it."""

    entry: Entry
    spec: str
    images: int
    trainable: int
    run: Callable[[], StepResult]
    reset: Callable[[], None] = lambda: None
    passes: Passes | None = ONE_FORWARD  # on a batch whose samples are all confident
    towers: tuple[nn.Module, nn.Module | None] | None = None  # where passes of images and prompts can be counted

    def check(self, result: StepResult) -> None:
        """Raise LmrError if the share of samples past the gate is not the intended one."""
        if not self.entry.gated:
            return
        wanted = self.entry.count_past(self.images) / self.images
        # Where a part of the images enters the loss, the share of it past the gate is exact to one of its images.
        part = self.passes.backwards if self.passes else 1.0
        near = 1 / (part * self.images) if 0 < part < 1 else 1e-9
        if result.gate_share is None or not math.isclose(result.gate_share, wanted, abs_tol=near):
            raise LmrError(
                f"{self.entry.name} should have {wanted:.0%} of its samples past the gate and has "
                f"{result.gate_share}; keep the arguments that decide what passes at their defaults, or measure "
                "another model."
            )


class StepFactory:
    """A model, a batch and classes; builds the steps of entries on them."""

    def __init__(self, model: MeasuredModel, batch_size: int, classes: int) -> None:
        self.model, self.batch_size, self.classes = model, batch_size, classes
        self._twin: nn.Module | None = None  # the image tower in transformers, built once

    def build(self, entry: Entry) -> CostStep:
        """Return the step of an entry."""
        if entry.kind == "forward":
            return self._build_forward(entry)
        if entry.kind in ("prompts", "context"):
            return self._build_prompts(entry)
        if entry.kind in ("transformers", "plain"):
            return self._build_plain(entry)
        return self._build_method(entry)

    def classifier(self, entry: Entry, count: int) -> ZeroShot:
        """Return the classes for an entry: its share of the images passes the gate."""
        text = self.model.write_prompts(self.classes, whole=entry.whole) if entry.needs_text else None
        return self.model.make_classifier(count, self.classes, entry.count_past(count), text)

    def count_flops(self, step: CostStep, result: StepResult) -> int | None:
        """Return the operations of a step with this result; None where the tower or the passes are not known."""
        tower, text, entry = self.model.tower, self.model.text, step.entry
        passes = result.passes or step.passes
        if tower is None or passes is None:
            return None
        needs_images = entry.method is not None and entry.method.needs_images
        total = step.images * count_passes_of_image(tower, passes, self.classes, needs_images=needs_images)
        if entry.needs_text and (passes.text_forwards or passes.text_backwards):
            if text is None:
                return None
            shared = 1 + CONTEXT if entry.learns_context else 0  # all prompts begin with the context
            longest = self.model.longest
            average = (min(SHORTEST, longest) + longest) // 2  # rounded down: such prompts are encoded by length
            tokens = average if shared else text.config.context if entry.whole else longest
            total += self.classes * count_passes_of_prompt(text.config, tokens, passes, shared=shared)
        return round(total)

    @property
    def _towers(self) -> tuple[nn.Module, nn.Module | None]:
        """The modules whose outputs are counted; the last norm of the text tower sees every prompt, however encoded."""
        return self.model.encoder, None if self.model.text is None else self.model.text.ln_final

    def _build_forward(self, entry: Entry) -> CostStep:
        images, clip = self.model.draw_images(self.batch_size), self.classifier(entry, self.batch_size)

        def run() -> StepResult:
            with torch.no_grad():
                return StepResult(clip.logits(clip.cosines(clip.features(images))))

        return CostStep(entry, "", self.batch_size, 0, run)

    def _build_prompts(self, entry: Entry) -> CostStep:
        """Build all prompts once, for one image: encoded, with or without the gradient of a loss to their context."""
        clip = self.classifier(entry, self.batch_size)
        text = clip.text
        if text is None or text.learn is None:
            raise LmrError("The text tower of this model takes no vectors in place of words; measure other methods.")
        prompts = text.learn(ContextMethod.context, clip.names)
        tuner = ContextTuner(text, prompts, ContextMethod.chunk, clip.prototypes.dtype)
        gradient = torch.ones_like(tuner.start_prototypes).unsqueeze(0)
        learns = entry.kind == "context"

        def run() -> StepResult:
            return StepResult(tuner.pull_back(tuner.start, gradient) if learns else tuner.encode(tuner.start))

        return CostStep(entry, "", 1, len(tuner.start) if learns else 0, run, towers=self._towers)

    def _build_plain(self, entry: Entry) -> CostStep:
        """Build the loop of a method on transformers, or a forward of transformers alone."""
        images, clip = self.model.draw_images(self.batch_size), self.classifier(entry, self.batch_size)
        kind = PlainLoop if entry.method is None else list_plain_loops().get(entry.method.name)
        if kind is None:
            raise LmrError(f"There is no plain loop for {entry.spec}.")
        if self._twin is None:
            assert self.model.tower is not None
            self._twin = build_transformers_vision(self.model.tower)
        loop = kind(self._twin, clip.prototypes, clip.logit_scale)

        def run() -> StepResult:
            logits, info = loop.step(images)
            return StepResult(logits, info.get("gate_share"))

        if entry.method is None:
            return CostStep(entry, "", self.batch_size, 0, run, loop.reset)
        trainable = sum(parameter.numel() for parameter in loop.parameters)
        passes = count_passes(create(entry.spec, clip), self.batch_size)
        return CostStep(entry, entry.spec, self.batch_size, trainable, run, loop.reset, passes)

    def _build_method(self, entry: Entry) -> CostStep:
        """Build a step of a method, or streams of one image each: all in one batch, or each with its own method."""
        single = entry.kind in ("streams", "singles")
        count, each = (entry.streams, 1) if single else (self.batch_size, self.batch_size)
        images, clip, tower = self.model.draw_images(count), self.classifier(entry, count), self.model.tower
        calls: list[tuple[Method, Tensor, Tensor | None]]
        if entry.kind == "streams":
            calls = [(create(entry.spec, clip, streams=count), images, torch.arange(count))]
        elif entry.kind == "singles":
            calls = [(create(entry.spec, clip), image, None) for image in images.unsqueeze(1)]
        else:
            arguments: dict[str, Any] = {}
            if entry.whole:
                self._require_memory()
                if entry.method is not None and "chunk" in list_arguments(entry.method):
                    arguments["chunk"] = self.classes
            method = create(entry.spec, clip, **arguments)
            calls = [(method, images, None)] * math.ceil(method.cycle / self.batch_size)
        methods = list(dict.fromkeys(method for method, *_ in calls))

        def run() -> StepResult:
            if tower is not None and entry.lean:
                tower.set_memory("lean")
            answers = [method.step(batch, streams=ids) for method, batch, ids in calls]
            if tower is not None and entry.lean:
                tower.set_memory("fast")
            return _read_result(answers)

        def reset() -> None:
            for method in methods:
                method.reset()
                method.fill_state(images)

        taken = sum(len(batch) for _, batch, _ in calls)
        trainable = sum(method.trainable * method.streams for method in methods)
        passes = count_passes(methods[0], each) if entry.gated else None
        return CostStep(entry, methods[0].spec, taken, trainable, run, reset, passes, self._towers)

    def _require_memory(self) -> None:
        """Raise LmrError if prompts of the full context in one graph need more memory than is free."""
        assert self.model.text is not None
        sizes, available = self.model.text.config, read_available()
        needed = self.classes * estimate_prompt(sizes.context, sizes.depth, sizes.width)
        if available is not None and needed > available:
            raise LmrError(
                f"{self.classes} prompts of {sizes.context} tokens in one graph need about {needed / 1e9:.0f} GB and "
                f"{available / 1e9:.0f} GB are free; measure fewer classes, or leave out the full context."
            )


def _read_result(answers: list[Prediction]) -> StepResult:
    """Return the result of answers to one batch, or to its images one by one."""
    shares = [answer.info["gate_share"] for answer in answers if "gate_share" in answer.info]
    stepped = [answer.info["stepped"] for answer in answers if "stepped" in answer.info]
    return StepResult(
        answers[0].logits if len(answers) == 1 else torch.cat([answer.logits for answer in answers]),
        sum(shares) / len(shares) if shares else None,
        all(stepped) if stepped else None,
    )


def estimate_prompt(tokens: int, depth: int, width: int) -> int:
    """Return about how many bytes a graph keeps for one prompt: 12 widths of float32 per token and block.

    They are two norms, q, k, v, attention, four of the perceptron, and the sums.
    """
    return tokens * depth * width * 4 * 12


def read_available() -> int | None:
    """Return the bytes that a new process could take without swapping; None where the system does not report it."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    return None
