"""PromptMethod: the base of methods that learn the context of the prompts from the views of one image."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.core.functional.by_stream import choose_rows
from lmr.core.functional.views import count_kept, rank_confident
from lmr.core.method import Mix
from lmr.core.optim import Optimizer
from lmr.core.prompts.context_tuner import ContextTuner
from lmr.core.traits import Passes, Tower, Trained
from lmr.core.views.view_method import EpisodicMethod, ViewMethod


@dataclass(kw_only=True, eq=False, repr=False)
class ContextMethod(ViewMethod):
    """A ViewMethod whose prompts are "context name.", the words of the context given as vectors.

    Views are encoded once and without gradient, as no parameter of the image tower changes.
    """

    towers = (Tower.TEXT,)
    trained = Trained.CONTEXT

    lr: float = 5e-3
    weight_decay: float = 0.01
    keep: float = 0.1  # the share of the views, the most confident ones, that the loss sees
    context: str = "a photo of a"
    augmix: bool = False  # AugMix of the crops, as published for fine-grained sets
    chunk: int = 128  # prompts encoded with gradient at once; bounds the memory, does not change results

    def prepare(self) -> None:
        """Check the arguments, write the prompts and encode them with the context's own words."""
        super().prepare()
        self._require_not_negative("lr", "weight_decay")
        if not 0 < self.keep <= 1:
            raise LmrError(f"Expected 'keep' of {self.name} above 0 and at most 1, got {self.keep}.")
        if self.chunk < 1:
            raise LmrError(f"Expected 'chunk' of {self.name} to be at least 1 prompt, got {self.chunk}.")
        text = self.classifier.text
        if text is None or text.learn is None:
            lack = "only prototypes" if text is None else "a text tower that takes no vectors in place of words"
            raise LmrError(
                f"{self.name} learns the context of the prompts through the text tower, but this classifier has "
                f"{lack}; create it with backbone.classifier(names, templates=[one template]) of a CLIP model that lmr "
                "loads itself, or give ZeroShot a text=TextSide(..., learn=...)."
            )
        prompts = text.learn(self.context, self.classifier.names)
        if len(prompts.order) != self.classifier.classes:
            raise LmrError(
                f"Expected one prompt for each of the {self.classifier.classes} classes, got {len(prompts.order)}."
            )
        self.tuner = ContextTuner(text, prompts, self.chunk, self.classifier.prototypes.dtype)
        self.optim = Optimizer("adamw", self.lr, self.weight_decay)

    @property
    def trainable(self) -> int:
        """The numbers in a context."""
        return len(self.tuner.start)

    def compare(self, features: Tensor, prototypes: Tensor) -> Tensor:
        """Logits [..., C] of unit features [..., D] with unit prototypes [C, D]."""
        return self.classifier.logits(features @ prototypes.T)

    def count_confident(self, views: int) -> int:
        """How many views the loss sees."""
        return count_kept(views, self.keep)


@dataclass(kw_only=True, eq=False, repr=False)
class PromptMethod(ContextMethod, EpisodicMethod):
    """A ContextMethod that learns a context for each image from the original one, in one step, and forgets it.

    Subclasses write ``judge``, the loss of an image; the answer is the image's with its own prompts. All images of a
    batch share the first encoding of the prompts; each has its own gradient, its own step of AdamW and its own second
    encoding.

    Examples:
        >>> import lmr, torch
        >>> @lmr.register("sharp")
        ... class Sharp(lmr.PromptMethod):
        ...     'Raise the largest logit of every confident view.'
        ...
        ...     def judge(self, logits, prototypes):
        ...         return -logits.amax(1).mean()
        >>> clip = lmr.load("pocket").classifier(["red ring", "blue star"])
        >>> method = lmr.create("sharp(views=8)", clip)
        >>> method.step(torch.randn(4, 3, 32, 32)).info["stepped"]
        True
    """

    def count_passes(self, learning: float = 1.0) -> Passes:
        """All views, and the prompts once with and once without gradient for each image."""
        shared = 1 + self.tuner.shape[0]
        return Passes(self.views, text_forwards=1, text_backwards=1, own_prompts=True, shared_tokens=shared)

    @abstractmethod
    def judge(self, logits: Tensor, prototypes: Tensor) -> Tensor:
        """The loss of one image: logits [k, C] of its confident views with prototypes [C, D]."""

    def answer_image(self, features: Tensor, prototypes: Tensor) -> Tensor:
        """The answer [C] to the features [V, D] of an image's views, by its own prototypes [C, D]."""
        return self.compare(features[0], prototypes)

    def solve(self, images: Tensor, mix: Mix) -> tuple[Tensor, dict[str, Tensor]]:
        """Learn a context for each image and answer with it."""
        features, tuner = self.encode_views(images, mix), self.tuner
        losses, slopes = zip(*(self._differentiate(own) for own in features), strict=True)
        start = tuner.start.expand(len(features), -1)
        learnt, _ = self.optim.step(start, tuner.pull_back(tuner.start, torch.stack(slopes)), self.optim.begin(start))
        with torch.no_grad():
            plain = torch.stack([self.answer_image(own, tuner.start_prototypes) for own in features])
            answered = zip(features, map(tuner.encode, learnt), strict=True)
            logits = torch.stack([self.answer_image(own, prototypes) for own, prototypes in answered])
        stepped = logits.isfinite().all(1)
        return choose_rows(stepped, logits, plain), {"loss": torch.stack(losses), "stepped": stepped}

    def _differentiate(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of an image and its gradient [C, D] along the prototypes of the original context."""
        prototypes = self.tuner.start_prototypes
        first = rank_confident(self.compare(features, prototypes))[: self.count_confident(len(features))]
        with torch.enable_grad():
            prototypes = prototypes.detach().requires_grad_()
            loss = self.judge(self.compare(features[first], prototypes), prototypes)
            (slope,) = torch.autograd.grad(loss, prototypes)
        return loss.detach(), slope
