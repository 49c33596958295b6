"""AdaptedTower: the image tower of a classifier, run and differentiated with the norm parameters of each stream."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lmr.core.classifier import ZeroShot
from lmr.core.gradients import vjp
from lmr.core.norms import NormBank
from lmr.core.streams import Streams

# Parts of a batch whose graphs are kept at once, for a loss that needs all images: 12 images of ViT-B/16 on a CPU.
_KEPT_PARTS = 3


@dataclass(frozen=True)
class Measured:
    """Numbers measured of every sample, and how a loss on them reaches the norms.

    ``values`` are the measured tensors [B, ...] without gradient. ``vjp`` maps the gradient of a loss along the
    first of them [B] to its gradient along the norms [A, P].
    """

    values: tuple[Tensor, ...]
    vjp: Callable[[Tensor], Tensor]


class AdaptedTower:
    """The image tower of a classifier with norm parameters [A, P] of the streams of a batch.

    Nothing couples two streams: a batch may mix them, and each gets the gradient that it gets alone. A batch of one
    stream runs on a view of its row; in mixed batches every sample gets a copy of its row. A batch that is best encoded
    in parts is differentiated in parts, so that the graph of one part is freed before the next one is encoded.
    """

    def __init__(self, classifier: ZeroShot, module: nn.Module | None = None, skip: Collection[str] = ()) -> None:
        self.classifier = classifier
        self.bank = NormBank(module or classifier.encoder, skip)

    def encode(self, images: Tensor, norms: Tensor, streams: Streams) -> Tensor:
        """Return features [B, D] as the encoder gives them, with the norms [A, P] of each sample's stream.

        Of a large batch the last parts keep their graph, which the backward frees first; the others run again in it.
        """
        if len(norms) > 1:
            self.bank.locate_batch(images, self.classifier.encode)
        slow = getattr(self.classifier.encoder, "slow_to_embed", False)
        tokens = self.classifier.embed(images) if slow else None

        def run(part: slice, norms: Tensor) -> Tensor:
            with self.bank.serve(norms, streams.index[part]):
                return self.classifier.encode_part(images[part], None if tokens is None else tokens[part])

        features, parts = [], list(self.classifier.split(len(images)))
        for left, part in zip(range(len(parts), 0, -1), parts, strict=True):
            if left <= _KEPT_PARTS or not torch.is_grad_enabled():
                features.append(run(part, norms))
            else:
                features.append(checkpoint(run, part, norms, use_reentrant=False, preserve_rng_state=False))
        return torch.cat(features)

    def features(self, images: Tensor, norms: Tensor, streams: Streams) -> Tensor:
        """Return unit features [B, D] with the norms [A, P] of each sample's stream."""
        return F.normalize(self.encode(images, norms, streams), dim=-1)

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
        """Return ``logits`` [B, C] with those of some ``samples``, numbers [n], computed anew with norms [A, P]."""
        if len(samples) == len(logits):
            return self.logits(images, norms, streams)
        if len(samples):
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
        for part, its_streams in self._split(images, streams):
            with torch.enable_grad():
                logits = self.logits(part, norms, its_streams)
                losses, *rest = loss(logits, its_streams.index)
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
        norms, parts = norms.detach(), list(self._split(images, streams))
        if len(parts) == 1:
            norms.requires_grad_()
            with torch.enable_grad():
                measured = measure(self.cosines(images, norms, streams))
            values = tuple(value.detach() for value in measured)
            return Measured(values, lambda gradient: vjp(measured[0], norms, gradient))
        results, gradients = [], []
        for part, its_streams in parts:
            rows = norms[its_streams.index].requires_grad_()
            each = torch.arange(len(rows), device=rows.device)
            with torch.enable_grad():
                number, used, *rest = measure(self.cosines(part, rows, Streams(each, each)))
            gradients.append(torch.zeros_like(rows))
            if bool(used.any()):
                gradients[-1] = vjp(number, rows, used.to(number.dtype))
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

    def _split(self, images: Tensor, streams: Streams) -> Iterator[tuple[Tensor, Streams]]:
        """Yield the parts of a batch that are best differentiated one after the other."""
        parts = self.classifier.split(len(images))
        yield from [(images, streams)] if len(parts) == 1 else ((images[part], streams.take(part)) for part in parts)

    def drift(self, norms: Tensor) -> Tensor:
        """Return the distance of norms [A, P] from the tower's own, relative to their length: [A]."""
        start = self.bank.start
        length: Tensor = torch.linalg.vector_norm(norms - start, dim=1) / torch.linalg.vector_norm(start)
        return length
