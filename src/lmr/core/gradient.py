"""The gradient machine: what methods share that adapt the parameters of norms, for one stream or for many.

``NormMethod`` runs the tower with a row of norm parameters per stream, differentiates a batch in parts, and takes
one optimiser step per stream. ``GradientMethod`` adds the arguments of an optimiser to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from lmr.core.batch import FrozenAnswer
from lmr.core.functional.by_stream import choose_rows
from lmr.core.functional.gradients import pull_back
from lmr.core.method import COUNTS, Method, Mix, Ranges
from lmr.core.norms import NormBank
from lmr.core.optim import Optimizer, OptimizerName
from lmr.core.traits import Tower


@dataclass(frozen=True)
class TracedBatch:
    """What was measured of every sample, and how a loss of it reaches the norms.

    ``values`` are the measured tensors [B, ...] without gradient. ``pull_back`` maps the slope of a loss along the
    first of them [B] to its gradient along the norms [A, P].
    """

    values: tuple[Tensor, ...]
    pull_back: Callable[[Tensor], Tensor]


class NormMethod(Method):
    """A method that runs its tower with norm parameters of each stream: rows [streams, P], P = ``self.bank.size``.

    Rows that adapt step by step are ``self.state["norms"]``, with the moments of ``self.optim``. Nothing in a step
    couples two streams: a batch may mix them, and each gets the gradient and the step it would get alone. A batch of
    one stream runs on a view of its row; only in mixed batches every sample gets a copy of its row.

    Examples:
        >>> import lmr, torch
        >>> clip = lmr.load("pocket").classifier(["red ring", "blue star"])
        >>> method = lmr.create("lmr", clip, streams=2)
        >>> isinstance(method, lmr.NormMethod), method.state["norms"].shape == (2, method.bank.size)
        (True, True)
    """

    towers: ClassVar[tuple[Tower, ...]] = (Tower.IMAGE,)
    optim: Optimizer

    def prepare(self) -> None:
        """Find the norms of the tower, or of its last blocks."""
        self.bank = NormBank(self.tower(), self.last_blocks, self.list_skipped())
        self.first = self.classifier.find_start(self.last_blocks)  # block that passes start from; None: the images

    @property
    def last_blocks(self) -> int | None:
        """How many of the last blocks adapt, with the norms after them; None for the whole tower."""
        return None

    def list_skipped(self) -> Collection[str]:
        """The names of norms that do not adapt."""
        return ()

    @property
    def trainable(self) -> int:
        """P, the norm parameters of one stream."""
        return self.bank.size

    def tower(self) -> nn.Module:
        """The module whose norms adapt."""
        return self.classifier.encoder

    def begin(self, streams: int) -> dict[str, Tensor]:
        """Norm parameters as the tower has them, and the moments of an optimiser before its first step."""
        norms = self.bank.start.repeat(streams, 1)
        return {"norms": norms} | self.optim.begin(norms)

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        """Norms that a tower can compute with, squares, counts."""
        own: Ranges = {"second": (0, None), "steps": COUNTS}
        if "norms" in state:
            own["norms"] = (-self.bank.limit, self.bank.limit)
        return super().ranges(state) | own

    def approach(self, images: Tensor) -> Tensor:
        """What the passes of a step start from: the images, or their activations before the blocks that adapt.

        The methods below take it in place of images.
        """
        return images if self.first is None else self.classifier.embed_until(images, self.first)

    def image_features(self, images: Tensor, norms: Tensor, index: Tensor) -> Tensor:
        """Unit features [B, D] with the norms [A, P] of each sample's stream."""
        if len(norms) > 1:
            self.bank.locate_batch(images, lambda some: self.classifier.encode(some, self.first))
        with self.bank.serve(norms, index):
            return self.classifier.features(images, self.first)

    def image_cosines(self, images: Tensor, norms: Tensor, index: Tensor) -> Tensor:
        """Cosines [B, C] with the frozen prototypes."""
        return self.classifier.cosines(self.image_features(images, norms, index))

    @torch.no_grad()
    def ask_again(self, images: Tensor, asked: Tensor, norms: Tensor, logits: Tensor, mix: Mix) -> Tensor:
        """The logits [B, C], with those of the images that are ``asked`` [B] replaced: computed with norms [A, P]."""
        if bool(asked.any()):
            logits = logits.clone()
            logits[asked] = self.classifier.logits(self.image_cosines(images[asked], norms, mix.index[asked]))
        return logits

    def answer(self, images: Tensor, mix: Mix) -> Tensor:
        """Logits with the adapted norms and the frozen prototypes."""
        images = self.approach(images)
        return self.classifier.logits(self.image_cosines(images, self.take(mix, "norms")["norms"], mix.index))

    def settle(self, stream: int) -> FrozenAnswer:
        """The norms of the stream, if it has its own, and its offset; refused where norms do not stay."""
        if self.episodic or self.restarts:
            return super().settle(stream)
        offset = self.logit_offset()
        return FrozenAnswer(
            self.classifier.prototypes.clone(),
            None if offset is None else offset[stream].clone(),
            self.name_norms(self.state["norms"][stream]) if "norms" in self.state else {},
        )

    def name_norms(self, row: Tensor) -> dict[Tower, dict[str, Tensor]]:
        """A row [P] of norms as parameters of the tower, copied, under their names."""
        return {Tower.IMAGE: self.bank.name_parameters(row.clone())}

    # Gradients. A batch that is best encoded in parts is differentiated in parts, so that what autograd keeps of one
    # part is freed before the next one is encoded.

    def sum_gradients(
        self, images: Tensor, mix: Mix, norms: Tensor, judge: Callable[[Tensor, Tensor], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """Gradients [A, P] of each stream's sum of losses, the logits [B, C], and all that ``judge`` gives [B].

        ``judge`` maps logits [n, C] and the streams of their samples [n] to the loss of each sample, and optionally
        to more. It sees one part of the batch at a time.
        """
        norms = norms.detach().requires_grad_()
        gradient, seen = torch.zeros_like(norms), []
        for part in self.classifier.split(len(images)):
            index = mix.index[part]
            with torch.enable_grad():
                logits = self.classifier.logits(self.image_cosines(images[part], norms, index))
                losses, *rest = judge(logits, index)
            if bool(losses.any()):
                gradient += torch.autograd.grad(losses.sum(), norms)[0]
            seen.append((logits.detach(), losses.detach(), *rest))
            del logits, losses
        return gradient, *(torch.cat(pieces) for pieces in zip(*seen, strict=True))

    def trace(
        self, images: Tensor, mix: Mix, norms: Tensor, measure: Callable[[Tensor], tuple[Tensor, ...]]
    ) -> TracedBatch:
        """Measure every sample, for a loss of the whole batch that sees each sample through one number.

        ``measure`` maps cosines [n, C] to that number [n], to the samples [n] for which the loss may depend on it
        (bool), and optionally to more. The gradient of the loss is the slope of each sample's number, times a factor
        that depends on the rest of the batch and is known only after the last part. With several parts the slopes are
        kept, a row [P] per sample.
        """
        norms, parts = norms.detach(), self.classifier.split(len(images))
        if len(parts) == 1:
            norms.requires_grad_()
            with torch.enable_grad():
                measured = measure(self.image_cosines(images, norms, mix.index))
            values = tuple(value.detach() for value in measured)
            return TracedBatch(values, lambda slope: pull_back(measured[0], norms, slope))
        seen, slopes = [], []
        for part in parts:
            rows = norms[mix.index[part]].requires_grad_()
            each = torch.arange(len(rows), device=rows.device)
            with torch.enable_grad():
                number, used, *rest = measure(self.image_cosines(images[part], rows, each))
            slopes.append(torch.zeros_like(rows))
            if bool(used.any()):
                slopes[-1] = pull_back(number, rows, used.to(number.dtype))
            seen.append((number.detach(), used, *(value.detach() for value in rest)))
            del number, rest
        values = tuple(torch.cat(pieces) for pieces in zip(*seen, strict=True))
        return TracedBatch(values, lambda slope: mix.sum(slope.unsqueeze(1) * torch.cat(slopes)))

    def differentiate(
        self, images: Tensor, mix: Mix, norms: Tensor, loss: Callable[[Tensor, int], Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients [A, P] of losses that compare the images of a stream with each other, the losses [A], the features.

        ``loss`` maps the unit features [n, D] of a stream's images and its place among the active ones to one number.
        The batch is encoded as a whole. A stream whose loss is not finite spoils only its own gradient.
        """
        norms = norms.detach().requires_grad_()
        with torch.enable_grad():
            features = self.image_features(images, norms, mix.index)
            losses = torch.stack([loss(mix.pick(features, k), k) for k in range(mix.count)])
            (gradient,) = torch.autograd.grad(losses.sum(), norms)
        return gradient, losses.detach(), features.detach()

    # Steps.

    def propose(
        self, old: Mapping[str, Tensor], gradient: Tensor, wanted: Tensor, taken: int | Tensor = 1
    ) -> tuple[dict[str, Tensor], Tensor]:
        """One step of the streams that are ``wanted`` [A] along their ``gradient`` [A, P], from their ``old`` rows.

        Gives the new norms and moments (none if no stream is wanted), and which streams stepped [A]. A stream whose
        step would leave the ranges of the state, or would not be finite, keeps its old rows. ``taken`` is what the step
        counts for, see ``Optimizer.step``.
        """
        if not bool(wanted.any()):
            return {}, wanted
        norms, moments = self.optim.step(old["norms"], gradient, old, taken)
        new = {"norms": norms, **moments}
        stepped = wanted & self.find_sound(new)
        return {key: choose_rows(stepped, value, old[key]) for key, value in new.items()}, stepped

    def descend(self, gradient: Tensor, logits: Tensor, mix: Mix) -> Tensor:
        """Take one step along ``gradient`` [A, P] in every stream whose ``logits`` [B, C] are finite.

        For methods that answer before the step. Gives the streams that stepped, as ``propose`` does.
        """
        new, stepped = self.propose(self.take(mix), gradient, mix.all(logits.isfinite().all(1)))
        self.put(new, mix)
        return stepped

    def drift(self, mix: Mix) -> Tensor:
        """How far the norms of each stream are from their start, relative to its length: [A]."""
        return self.measure_drift(self.take(mix, "norms")["norms"])

    def measure_drift(self, norms: Tensor) -> Tensor:
        """How far norms [A, P] are from the tower's own, relative to their length: [A]."""
        start = self.bank.start
        length: Tensor = torch.linalg.vector_norm(norms - start, dim=1) / torch.linalg.vector_norm(start)
        return length


@dataclass(kw_only=True, eq=False, repr=False)
class GradientMethod(NormMethod):
    """A NormMethod with an optimiser to choose. Subclasses change the defaults and write ``adapt``.

    Examples:
        >>> import lmr, torch
        >>> @lmr.register("certain")
        ... class Certain(lmr.GradientMethod):
        ...     'Raise the largest logit of every image.'
        ...
        ...     lr: float = 1e-4
        ...
        ...     def adapt(self, images, mix):
        ...         norms = self.take(mix, "norms")["norms"]
        ...         judge = lambda logits, index: (-logits.amax(1),)
        ...         gradient, logits, loss = self.sum_gradients(images, mix, norms, judge)
        ...         return lmr.Prediction(logits, {"stepped": bool(self.descend(gradient, logits, mix).any())})
        >>> clip = lmr.load("pocket").classifier(["red ring", "blue star"])
        >>> method = lmr.create("certain(optimizer='sgd')", clip, streams=2)
        >>> method.step(torch.randn(4, 3, 32, 32), streams=[0, 0, 1, 1]).info["stepped"]
        True
    """

    many_streams = True

    lr: float = 1e-3
    optimizer: OptimizerName = "adam"
    weight_decay: float = 0.0

    def prepare(self) -> None:
        """Check the optimiser's arguments and find the norms."""
        self._require_not_negative("lr", "weight_decay")
        super().prepare()
        self.optim = Optimizer(self.optimizer, self.lr, self.weight_decay)
