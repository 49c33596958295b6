"""PromptMethod: the base of methods that learn the context of the prompts from views of images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.bases.views import ViewMethod, count_images
from lmr.core.card import Tower
from lmr.core.errors import LmrError
from lmr.core.functional.select import count_kept, rank_confident
from lmr.core.gradients import vjp
from lmr.core.optim import Optimizer
from lmr.core.placement import widen
from lmr.core.prediction import State, Step
from lmr.core.streams import Streams
from lmr.core.text import ContextPrompts, TextSide


class ContextTuner:
    """A text tower and prompts whose context is given as a row [n * w].

    Prompts are encoded ``chunk`` at a time, so that memory does not grow with the number of classes. A gradient keeps
    the graph of one chunk only; the tower's own weights take no part in it.
    """

    def __init__(self, text: TextSide, prompts: ContextPrompts, chunk: int, dtype: torch.dtype) -> None:
        self.tower, self.prompts, self.chunk, self.dtype = text.tower, prompts, chunk, dtype
        with torch.no_grad():
            words = prompts.start(self.tower)
        self.shape = words.shape
        self.start = words.detach().to(widen(words.dtype)).flatten()
        self.start_prototypes = self.encode(self.start)

    def encode(self, row: Tensor) -> Tensor:
        """Return unit prototypes [C, D] of a context, without gradient."""
        with torch.no_grad():
            parts = [(part, self._encode(part, row)) for part in self._split()]
        prototypes = parts[0][1].new_empty(len(self.prompts.order), parts[0][1].shape[1])
        for part, chunk in parts:
            prototypes[part] = chunk
        return prototypes

    def vjp(self, row: Tensor, gradients: Tensor) -> Tensor:
        """Return gradients [m, n * w] along a context of m losses, from their gradients [m, C, D] along its prototypes.

        The prompts are encoded once for all of them.
        """
        total = row.new_zeros(len(gradients), len(row))
        with torch.enable_grad():
            for part in self._split():
                words = row.detach().requires_grad_()
                prototypes = self._encode(part, words)
                for k, gradient in enumerate(gradients[:, part]):
                    total[k] += vjp(prototypes, words, gradient, keep_graph=k + 1 < len(gradients))
        return total

    def _split(self) -> Iterator[Tensor]:
        order = self.prompts.order
        return (order[first : first + self.chunk] for first in range(0, len(order), self.chunk))

    def _encode(self, classes: Tensor, row: Tensor) -> Tensor:
        raw = self.prompts.encode(self.tower, classes, row.view(self.shape))
        return F.normalize(raw.to(self.dtype), dim=-1)


@dataclass(kw_only=True, eq=False, repr=False)
class PromptMethod(ViewMethod):
    """A ViewMethod that learns a context for each image from the original one, in one step, and forgets it.

    The prompts are "context name.", the words of the context given as vectors. Views are encoded once and without
    gradient, as no parameter of the image tower changes.

    Subclasses define ``loss``, the loss of an image; the answer is the image's with its own prompts. All images of a
    batch share the first encoding of the prompts; each has its own gradient, its own step of AdamW and its own second
    encoding.

    Examples:
        >>> import lmr, torch
        >>> @lmr.register("sharp")
        ... class Sharp(lmr.PromptMethod):
        ...     'Raise the largest logit of every confident view.'
        ...
        ...     def loss(self, logits, prototypes):
        ...         return -logits.amax(1).mean()
        >>> clip = lmr.load().classifier(["cat", "dog"])
        >>> method = lmr.create("sharp(views=8)", clip)
        >>> method.step(torch.randn(4, 3, 32, 32)).info["stepped"]
        True
    """

    towers = (Tower.TEXT,)
    memory_span: ClassVar[Literal["stream", "image"]] = "image"
    trained = "context words"

    lr: float = 5e-3  # learning rate of AdamW
    weight_decay: float = 0.01  # weight decay of AdamW
    keep: float = 0.1  # share of the views, the most confident ones, that enters the loss
    context: str = "a photo of a"  # words before the class name, which are learnt
    augmix: bool = False  # AugMix of the crops, as published for fine-grained sets
    chunk: int = 128  # prompts encoded with gradient at once; bounds the memory, does not change results

    def prepare(self) -> None:
        """Check the arguments, write the prompts and encode them with the context's own words."""
        super().prepare()
        self._require_not_negative("lr", "weight_decay")
        self._require_between(1e-9, 1, "keep")
        self._require_count("chunk", most=10**9)
        text = self.classifier.text
        if text is None or text.learn is None:
            lack = "only prototypes" if text is None else "a text tower that takes no vectors in place of words"
            raise LmrError(
                f"{self.name} learns the context of the prompts through the text tower, but this classifier has "
                f"{lack}; create it with backbone.classifier(names, templates=[one template]) of a CLIP model that lmr "
                "loads itself, or give ZeroShot a text=TextSide(..., learn=...)."
            )
        prompts = text.learn(self.context, self.classifier.names)
        self.tuner = ContextTuner(text, prompts, self.chunk, self.classifier.prototypes.dtype)
        self.optim = Optimizer("adamw", self.lr, self.weight_decay)

    @property
    def trainable(self) -> int:
        """The numbers of a context."""
        return len(self.tuner.start)

    def _compare(self, features: Tensor, prototypes: Tensor) -> Tensor:
        """Return logits [..., C] of unit features [..., D] with unit prototypes [C, D]."""
        return self.classifier.logits(self.classifier.cosines(features, prototypes))

    def _count_confident(self, views: int) -> int:
        return count_kept(views, self.keep)

    def loss(self, logits: Tensor, prototypes: Tensor) -> Tensor:
        """Return the loss of one image: logits [k, C] of its confident views with prototypes [C, D]."""
        raise NotImplementedError

    def _answer_image(self, features: Tensor, prototypes: Tensor) -> Tensor:
        """Return the answer [C] to the features [V, D] of an image's views, by its own prototypes [C, D]."""
        return self._compare(features[0], prototypes)

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        """Solve each image and count it."""
        return count_images(state, streams, *self.solve(images, state, streams))

    def answer(self, images: Tensor, state: State, streams: Streams) -> Tensor:
        """Return the logits that ``adapt`` gives, without counting."""
        return self.solve(images, state, streams)[0]

    def solve(self, images: Tensor, state: State, streams: Streams) -> tuple[Tensor, dict[str, Tensor]]:
        """Learn a context for each image and return logits [B, C] with it, and facts [B]."""
        features, tuner = self._encode_views(images, state, streams), self.tuner
        losses, gradients = zip(*(self._differentiate(views) for views in features), strict=True)
        start = tuner.start.expand(len(features), -1)
        learnt, _ = self.optim.step(start, tuner.vjp(tuner.start, torch.stack(gradients)), self.optim.begin(start))
        with torch.no_grad():
            answered = zip(features, map(tuner.encode, learnt), strict=True)
            logits = torch.stack([self._answer_image(views, prototypes) for views, prototypes in answered])
        return logits, {"loss": torch.stack(losses), "stepped": logits.isfinite().all(1)}

    def _differentiate(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of an image and its gradient [C, D] along the prototypes of the original context."""
        prototypes = self.tuner.start_prototypes
        first = rank_confident(self._compare(features, prototypes))[: self._count_confident(len(features))]
        with torch.enable_grad():
            prototypes = prototypes.detach().requires_grad_()
            loss = self.loss(self._compare(features[first], prototypes), prototypes)
            (gradient,) = torch.autograd.grad(loss, prototypes)
        return loss.detach(), gradient
