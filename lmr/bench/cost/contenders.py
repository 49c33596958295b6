"""Contenders ready to run: each takes one step on the same images and says what it cost in operations and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.bench.cost.entries import TWO_TOWERS, Entry
from lmr.bench.cost.flops import count_comparison, count_image, count_text
from lmr.bench.cost.gate import lay_prototypes
from lmr.bench.cost.measured_model import Subject
from lmr.bench.cost.memory import estimate_prompt, read_available
from lmr.bench.cost.plain import PlainLMR, PlainTENT
from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.method import Method
from lmr.core.norms import NormBank
from lmr.core.registry import create

# Passes over the image tower that a method needs: forwards and backwards. LMR's depend on its gate.
_PASSES = {"zeroshot": (1, 0), "tda": (1, 0), "ecalp": (1, 0), "tent": (1, 1), "eta": (1, 1), "mint": (2, 1)}
_PASSES |= {"batclip": (1, 1)}


@dataclass(frozen=True)
class Outcome:
    """The answer to a step, and the share of samples that passed LMR's gate where there is one."""

    logits: Tensor
    gate_share: float | None = None


@dataclass(frozen=True)
class Contender:
    """One way to take a step. ``run`` is what is measured; ``reset`` brings back the state before it."""

    entry: Entry
    spec: str
    images: int
    trainable: int
    flops: int | None
    run: Callable[[], Outcome]
    reset: Callable[[], None] = lambda: None

    def check(self, outcome: Outcome) -> None:
        """Refuse a step that was not the one to be measured."""
        if not self.entry.gated:
            return
        wanted = self.entry.count_past(self.images) / self.images
        if outcome.gate_share is None or not math.isclose(outcome.gate_share, wanted, abs_tol=1e-9):
            raise LmrError(
                f"{self.entry.name} was to have {wanted:.0%} of its samples past the gate and had "
                f"{outcome.gate_share}; leave tau and delta of lmr as they are, or measure another model."
            )


class Bench:
    """A model, a batch and classes; makes the contenders that work on them."""

    def __init__(self, subject: Subject, batch_size: int, classes: int) -> None:
        self.subject, self.batch_size, self.classes = subject, batch_size, classes
        self._batches: dict[int, tuple[Tensor, Tensor]] = {}

    def build(self, entry: Entry) -> Contender:
        """A contender by its entry."""
        if entry.kind == "forward":
            return self._build_forward(entry)
        if entry.kind in ("transformers", "plain"):
            return self._build_plain(entry)
        if entry.kind in ("streams", "singles"):
            return self._build_streams(entry)
        return self._build_method(entry)

    def classifier(self, entry: Entry, count: int) -> ZeroShot:
        """The classes for an entry: its share of so many images passes the gate."""
        _, features = self._see(count)
        chosen = torch.arange(count) < entry.count_past(count)
        subject = self.subject
        prototypes = lay_prototypes(features, chosen, self.classes, subject.logit_scale)
        text = subject.write_prompts(self.classes, whole=entry.whole) if entry.method in TWO_TOWERS else None
        return ZeroShot(
            subject.encoder,
            prototypes,
            subject.logit_scale,
            logit_bias=subject.logit_bias,
            input_shape=subject.input_shape,
            text=text,
        )

    def _see(self, count: int) -> tuple[Tensor, Tensor]:
        """Images [count, ...] and their unit features, worked out once."""
        if count not in self._batches:
            images = self.subject.draw_images(count)
            with torch.no_grad():
                features = F.normalize(self.subject.encoder(images).float(), dim=-1)
            self._batches[count] = images, features
        return self._batches[count]

    def _build_forward(self, entry: Entry) -> Contender:
        images, clip = self._see(self.batch_size)[0], self.classifier(entry, self.batch_size)

        def run() -> Outcome:
            with torch.no_grad():
                return Outcome(clip.logits(clip.cosines(clip.features(images))))

        return Contender(entry, "", self.batch_size, 0, self._count_flops(entry), run)

    def _build_plain(self, entry: Entry) -> Contender:
        images, clip = self._see(self.batch_size)[0], self.classifier(entry, self.batch_size)
        kind = PlainTENT if entry.method == "tent" else PlainLMR
        loop = kind(self.subject.build_twin(), clip.prototypes, clip.logit_scale)

        def run() -> Outcome:
            if entry.kind == "transformers":
                return Outcome(loop.forward(images))
            logits, info = loop.step(images)
            return Outcome(logits, info.get("gate_share"))

        trainable = 0 if entry.kind == "transformers" else sum(number.numel() for number in loop.parameters)
        return Contender(entry, entry.spec, self.batch_size, trainable, self._count_flops(entry), run, loop.reset)

    def _build_method(self, entry: Entry) -> Contender:
        images, clip = self._see(self.batch_size)[0], self.classifier(entry, self.batch_size)
        arguments: dict[str, Any] = {}
        if entry.whole:
            self._require_memory()
            arguments["chunk"] = self.classes
        method = create(entry.spec, clip, **arguments)
        tower = self.subject.tower

        def run() -> Outcome:
            if tower is None or not entry.lean:
                answer = method.step(images)
            else:
                tower.set_mode("lean")
                answer = method.step(images)
                tower.set_mode("fast")
            return Outcome(answer.logits, answer.info.get("gate_share"))

        trainable = _count_trainable(method)
        flops = self._count_flops(entry, getattr(method, "emit", "after") == "after")
        return Contender(entry, method.spec, self.batch_size, trainable, flops, run, method.reset)

    def _build_streams(self, entry: Entry) -> Contender:
        """Streams of one image each: all in one batch, or one after the other, each with a method of its own."""
        count = entry.streams
        images, clip = self._see(count)[0], self.classifier(entry, count)
        ids = torch.arange(count)
        together = entry.kind == "streams"
        methods = [create(entry.spec, clip, streams=count)] if together else [create(entry.spec, clip) for _ in ids]

        def run() -> Outcome:
            if together:
                answers = [methods[0].step(images, streams=ids)]
            else:
                answers = [method.step(images[k : k + 1]) for k, method in enumerate(methods)]
            shares = [answer.info["gate_share"] for answer in answers]
            return Outcome(torch.cat([answer.logits for answer in answers]), sum(shares) / len(shares))

        def reset() -> None:
            for method in methods:
                method.reset()

        trainable = count * _count_trainable(methods[0])
        return Contender(entry, methods[0].spec, count, trainable, self._count_flops(entry), run, reset)

    def _count_flops(self, entry: Entry, again: bool = True) -> int | None:
        """What the arithmetic of one step needs; None where it is not known."""
        tower = self.subject.tower
        if tower is None:
            return None
        image, seen = count_image(tower.config), count_comparison(tower.config.features, self.classes)
        forward, backward = image.forward + seen.forward, image.backward + seen.backward
        if entry.kind in ("forward", "transformers"):
            return self.batch_size * forward
        count = entry.streams if entry.kind in ("streams", "singles") else self.batch_size
        if entry.gated:
            past = entry.count_past(count)
            return count * forward * (2 if again and past else 1) + past * backward
        if entry.method not in _PASSES:
            return None
        forwards, backwards = _PASSES[entry.method]
        total = count * (forwards * forward + backwards * backward)
        if entry.method == "batclip":
            if self.subject.text is None:
                return None
            tokens = self.subject.text.config.context if entry.whole else self.subject.longest
            text = count_text(self.subject.text.config, tokens)
            total += self.classes * (text.forward + text.backward)
        return total

    def _require_memory(self) -> None:
        """Prompts of the full context in one graph may take more than there is; then say so and do not begin."""
        assert self.subject.text is not None
        sizes, available = self.subject.text.config, read_available()
        needed = self.classes * estimate_prompt(sizes.context, sizes.depth, sizes.width)
        if available is not None and needed > available:
            raise LmrError(
                f"{self.classes} prompts of {sizes.context} tokens in one graph need about {needed / 1e9:.0f} GB and "
                f"{available / 1e9:.0f} GB are free; measure fewer classes, or leave the full context out."
            )


def _count_trainable(method: Method) -> int:
    """How many numbers of the model a method adapts."""
    bank = getattr(method, "bank", None)
    return bank.size if isinstance(bank, NormBank) else 0
