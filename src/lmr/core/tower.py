"""AdaptedTower: the image tower of a classifier, run and differentiated with the norm parameters of each stream."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lmr.core.classifier import ZeroShot
from lmr.core.gradients import pull_back
from lmr.core.norms import NormBank
from lmr.core.streams import Streams


@dataclass(frozen=True)
class Measured:
    """Numbers measured of every sample, and how a loss on them reaches the norms.

    ``values`` are the measured tensors [B, ...] without gradient. ``pull_back`` maps the gradient of a loss along the
    first of them [B] to its gradient along the norms [A, P].
    """

    values: tuple[Tensor, ...]
    pull_back: Callable[[Tensor], Tensor]


class AdaptedTower:
    """The image tower of a classifier with norm parameters [A, P] of the streams of a batch.

    Nothing couples two streams: a batch may mix them, and each gets the gradient that it gets alone. A batch of one
    stream runs on a view of its row; in mixed batches every sample gets a copy of its row. A batch that is best encoded
    in parts is differentiated in parts, so that the graph of one part is freed before the next one is encoded.

    Examples:
        >>> import lmr, torch
        >>> clip = lmr.load("pocket").classifier(["red ring", "blue star"])
        >>> method = lmr.create("tent", clip, streams=2)
        >>> method.state["norms"].shape == (2, method.tower.bank.size)
        True
    """

    def __init__(self, classifier: ZeroShot, module: nn.Module | None = None, skip: Collection[str] = ()) -> None:
        self.classifier = classifier
        self.bank = NormBank(module or classifier.encoder, skip)

    def features(self, images: Tensor, norms: Tensor, streams: Streams) -> Tensor:
        """Return unit features [B, D] with the norms [A, P] of each sample's stream."""
        if len(norms) > 1:
            self.bank.locate_batch(images, self.classifier.encode)
        with self.bank.serve(norms, streams.index):
            return self.classifier.features(images)

    def cosines(self, images: Tensor, norms: Tensor, streams: Streams) -> Tensor:
        """Return cosines [B, C] with the frozen prototypes."""
        return self.classifier.cosines(self.features(images, norms, streams))

    def logits(self, images: Tensor, norms: Tensor, streams: Streams) -> Tensor:
        """Return logits [B, C] with the frozen prototypes."""
        return self.classifier.logits(self.cosines(images, norms, streams))

    @torch.no_grad()
    def recompute_logits(
        self, logits: Tensor, samples: Tensor, images: Tensor, norms: Tensor, streams: Streams
    ) -> Tensor:
        """Return ``logits`` [B, C] with those of some ``samples`` [B] computed anew, with norms [A, P]."""
        if bool(samples.all()):
            return self.logits(images, norms, streams)
        if bool(samples.any()):
            logits = logits.clone()
            logits[samples] = self.logits(images[samples], norms, streams.take(samples))
        return logits

    def sum_gradients(
        self, images: Tensor, norms: Tensor, streams: Streams, loss: Callable[[Tensor, Tensor], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """Return the gradients [A, P] of each stream's sum of losses, the logits [B, C], and the results of ``loss``.

        ``loss`` maps logits [n, C] and the streams of their samples [n] to the loss of each sample [n], and optionally
        to more tensors [n]. It gets one part of the batch at a time.
        """
        norms = norms.detach().requires_grad_()
        gradient, results = torch.zeros_like(norms), []
        for part in self.classifier.split(len(images)):
            own = streams.take(part)
            with torch.enable_grad():
                logits = self.logits(images[part], norms, own)
                losses, *rest = loss(logits, own.index)
            if bool(losses.any()):
                gradient += torch.autograd.grad(losses.sum(), norms)[0]
            results.append((logits.detach(), losses.detach(), *rest))
            del logits, losses
        return gradient, *(torch.cat(pieces) for pieces in zip(*results, strict=True))

    def measure(
        self, images: Tensor, norms: Tensor, streams: Streams, measure: Callable[[Tensor], tuple[Tensor, ...]]
    ) -> Measured:
        """Measure every sample, for a loss of the whole batch that depends on one number of each sample.

        ``measure`` maps cosines [n, C] to that number [n], to a bool [n] that is true for the samples that may enter
        the loss, and optionally to more. The gradient of the loss is the gradient of each sample's number times a
        factor that depends on the rest of the batch and is known only after the last part. With several parts the
        gradients are kept, a row [P] for each sample.
        """
        norms, parts = norms.detach(), self.classifier.split(len(images))
        if len(parts) == 1:
            norms.requires_grad_()
            with torch.enable_grad():
                measured = measure(self.cosines(images, norms, streams))
            values = tuple(value.detach() for value in measured)
            return Measured(values, lambda gradient: pull_back(measured[0], norms, gradient))
        results, gradients = [], []
        for part in parts:
            rows = norms[streams.index[part]].requires_grad_()
            each = torch.arange(len(rows), device=rows.device)
            with torch.enable_grad():
                number, used, *rest = measure(self.cosines(images[part], rows, Streams(each, each)))
            gradients.append(torch.zeros_like(rows))
            if bool(used.any()):
                gradients[-1] = pull_back(number, rows, used.to(number.dtype))
            results.append((number.detach(), used, *(value.detach() for value in rest)))
            del number, rest
        values = tuple(torch.cat(pieces) for pieces in zip(*results, strict=True))
        return Measured(values, lambda gradient: streams.sum(gradient.unsqueeze(1) * torch.cat(gradients)))

    def differentiate(
        self, images: Tensor, norms: Tensor, streams: Streams, loss: Callable[[Tensor, int], Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return gradients [A, P], losses [A] and features [B, D] for a loss that compares a stream's images.

        ``loss`` maps the unit features [n, D] of a stream's images, and its position among the active ones, to one
        number. The batch is encoded as a whole.
        """
        norms = norms.detach().requires_grad_()
        with torch.enable_grad():
            features = self.features(images, norms, streams)
            losses = torch.stack([loss(streams.pick(features, k), k) for k in range(streams.count)])
            (gradient,) = torch.autograd.grad(losses.sum(), norms)
        return gradient, losses.detach(), features.detach()

    def drift(self, norms: Tensor) -> Tensor:
        """Return the distance of norms [A, P] from the tower's own, relative to their length: [A]."""
        start = self.bank.start
        length: Tensor = torch.linalg.vector_norm(norms - start, dim=1) / torch.linalg.vector_norm(start)
        return length
