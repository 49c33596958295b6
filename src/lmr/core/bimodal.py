"""BimodalMethod: the base of methods that adapt the norms of both towers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.core.batch import FrozenAnswer
from lmr.core.errors import LmrError
from lmr.core.gradient import GradientMethod
from lmr.core.method import Mix
from lmr.core.optim import OptimizerName
from lmr.core.text import differentiate_towers
from lmr.core.traits import Tower

T = TypeVar("T")


@dataclass(kw_only=True, eq=False, repr=False)
class BimodalMethod(GradientMethod):
    """A GradientMethod whose row holds the norms of the image tower and of the text tower.

    All class prompts are encoded again at every batch. Subclasses write ``adapt`` with ``differentiate_objective``.

    Examples:
        >>> import lmr, torch
        >>> @lmr.register("aligned")
        ... class Aligned(lmr.BimodalMethod):
        ...     'Pull images and the prototypes of their classes together.'
        ...
        ...     def adapt(self, images, mix):
        ...         def objective(features, prototypes, logits):
        ...             return -logits.amax(1).mean(), None
        ...         value, logits, _, gradient = self.differentiate_objective(images, objective)
        ...         return lmr.Prediction(logits, {"stepped": bool(self.descend(gradient, logits, mix))})
        >>> clip = lmr.load("pocket").classifier(["red ring", "blue star"])
        >>> lmr.create("aligned", clip).step(torch.randn(4, 3, 32, 32)).info["stepped"]
        True
    """

    towers = (Tower.IMAGE, Tower.TEXT)
    many_streams = False
    one_stream_because = "every stream would need all class prompts encoded with its own text norms at every batch"

    optimizer: OptimizerName = "adamw"
    weight_decay: float = 0.01
    chunk: int = 128  # prompts encoded with gradient at once; bounds the memory, does not change results

    def prepare(self) -> None:
        """Check that there is a text tower for the classes and open one bank on both towers."""
        if self.classifier.text is None:
            raise LmrError(
                f"{self.name} also adapts the text tower and encodes one prompt per class, but this classifier has "
                "only prototypes; create it with backbone.classifier(names, templates=[one template]), or give "
                "ZeroShot a text=TextSide(...)."
            )
        if self.chunk < 1:
            raise LmrError(f"Expected 'chunk' of {self.name} to be at least 1 prompt, got {self.chunk}.")
        self.text = self.classifier.text
        if self.text.classes != self.classifier.classes:
            raise LmrError(
                f"Expected a text side with one prompt for each of the {self.classifier.classes} classes, got "
                f"{self.text.classes} prompts."
            )
        super().prepare()

    def tower(self) -> nn.Module:
        """Both towers."""
        return nn.ModuleList([self.classifier.encoder, self.text.tower])

    def differentiate_objective(
        self, images: Tensor, objective: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, T]]
    ) -> tuple[Tensor, Tensor, T, Tensor]:
        """Value, logits [B, C], by-product and gradient [1, P] of an objective at the present norms.

        ``objective`` takes the image features [B, D] as the tower gives them, the unit prototypes [C, D] and the logits
        [B, C], and gives its value and a by-product. The images are encoded once.
        """
        norms = self.state["norms"].detach().requires_grad_()

        def judge(raw: Tensor, prototypes: Tensor) -> tuple[Tensor, tuple[Tensor, T]]:
            logits = self.compare(raw, prototypes)
            value, rest = objective(raw, prototypes, logits)
            return value, (logits.detach(), rest)

        with torch.enable_grad(), self.bank.serve(norms):
            value, (logits, rest), gradient = differentiate_towers(
                judge, lambda: self.classifier.encode(images), norms, self.text, self.chunk
            )
        return value, logits, rest, gradient

    def compare(self, raw: Tensor, prototypes: Tensor) -> Tensor:
        """Logits [B, C] of image features [B, D] with unit prototypes [C, D]."""
        return self.classifier.logits(F.normalize(raw, dim=-1) @ prototypes.to(raw.dtype).T)

    def logits(self, images: Tensor, norms: Tensor) -> Tensor:
        """Logits [B, C] with the given norms [1, P] of both towers, the prompts encoded without gradient."""
        with self.bank.serve(norms):
            return self.compare(self.classifier.encode(images), self.text.all_prototypes(self.chunk))

    def answer(self, images: Tensor, mix: Mix) -> Tensor:
        """Logits with the adapted norms of both towers."""
        return self.logits(images, self.state["norms"])

    def settle(self, stream: int) -> FrozenAnswer:
        """The norms of both towers, and the prototypes that the adapted text tower gives."""
        with self.bank.serve(self.state["norms"]):
            prototypes = self.text.all_prototypes(self.chunk)
        return FrozenAnswer(prototypes, None, self.name_norms(self.state["norms"][stream]))

    def name_norms(self, row: Tensor) -> dict[Tower, dict[str, Tensor]]:
        """The same for both towers; the bank's names begin with the number of the tower."""
        named = self.bank.name_parameters(row.clone())
        return {
            tower: {key.removeprefix(begin): value for key, value in named.items() if key.startswith(begin)}
            for tower, begin in ((Tower.IMAGE, "0."), (Tower.TEXT, "1."))
        }
