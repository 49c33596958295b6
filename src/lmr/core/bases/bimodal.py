"""BimodalMethod: the base of methods that adapt the norms of both towers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.core.bases.norms import NormMethod
from lmr.core.card import Tower
from lmr.core.errors import LmrError
from lmr.core.optim import Optimizer, OptimizerName
from lmr.core.prediction import AdaptedParameters, State
from lmr.core.streams import Streams
from lmr.core.text import differentiate_towers

T = TypeVar("T")


@dataclass(kw_only=True, eq=False, repr=False)
class BimodalMethod(NormMethod):
    """A NormMethod whose norms are those of the image tower and of the text tower.

    All class prompts are encoded again at every batch. Subclasses write ``adapt`` with ``_differentiate``.

    Examples:
        >>> import lmr, torch
        >>> @lmr.register("aligned")
        ... class Aligned(lmr.BimodalMethod):
        ...     'Pull images and the prototypes of their classes together.'
        ...
        ...     def adapt(self, images, state, streams):
        ...         def objective(features, prototypes, logits):
        ...             return -logits.amax(1).mean(), None
        ...         loss, logits, _, gradient = self._differentiate(images, state["norms"], streams, objective)
        ...         return lmr.Step(logits, self.optim.descend(state, gradient), {"loss": loss.view(1)})
        >>> clip = lmr.load().classifier(["cat", "dog"])
        >>> lmr.create("aligned", clip).step(torch.randn(4, 3, 32, 32)).info["finite"]
        True
    """

    towers = (Tower.IMAGE, Tower.TEXT)
    single_stream_reason = "every stream would need all class prompts encoded with its own text norms at every batch"

    lr: float = 1e-3  # learning rate
    optimizer: OptimizerName = "adamw"  # adam, adamw, or sgd with Nesterov momentum 0.9
    weight_decay: float = 0.01  # weight decay of the optimiser
    chunk: int = 128  # prompts encoded with gradient at once; bounds the memory, does not change results

    def prepare(self) -> None:
        """Check that there is a text tower for the classes, and find the norms of both towers."""
        if self.classifier.text is None:
            raise LmrError(
                f"{self.name} also adapts the text tower and encodes one prompt per class, but this classifier has "
                "only prototypes; create it with backbone.classifier(names, templates=[one template]), or give "
                "ZeroShot a text=TextSide(...)."
            )
        self._require_not_negative("lr", "weight_decay")
        self._require_count("chunk", most=10**9)
        self.text = self.classifier.text
        super().prepare()
        self.optim = Optimizer(self.optimizer, self.lr, self.weight_decay)

    def _find_module(self) -> nn.Module:
        return nn.ModuleList([self.classifier.encoder, self.text.tower])

    def _differentiate(
        self,
        images: Tensor,
        norms: Tensor,
        streams: Streams,
        objective: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, T]],
    ) -> tuple[Tensor, Tensor, T, Tensor]:
        """Return value, logits [B, C], by-product and gradient [1, P] of an objective at ``norms`` [1, P].

        ``objective`` takes the image features [B, D] as the tower gives them, the unit prototypes [C, D] and the logits
        [B, C], and returns its value and a by-product. The images are encoded once.
        """
        norms = norms.detach().requires_grad_()

        def evaluate(raw: Tensor, prototypes: Tensor) -> tuple[Tensor, tuple[Tensor, T]]:
            logits = self._compare(raw, prototypes)
            value, rest = objective(raw, prototypes, logits)
            return value, (logits.detach(), rest)

        with torch.enable_grad(), self.bank.serve(norms):
            value, (logits, rest), gradient = differentiate_towers(
                evaluate, lambda: self.tower.encode(images, norms, streams), norms, self.text, self.chunk
            )
        return value, logits, rest, gradient

    def _differentiate_streams(
        self, images: Tensor, norms: Tensor, streams: Streams, loss: Callable[[Tensor, int], Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradient [1, P], loss [1] and logits [B, C] of a loss of the whole stream."""

        def objective(raw: Tensor, prototypes: Tensor, logits: Tensor) -> tuple[Tensor, None]:
            return loss(logits, 0), None

        value, logits, _, gradient = self._differentiate(images, norms, streams, objective)
        return gradient, value.view(1), logits

    def _compare(self, raw: Tensor, prototypes: Tensor) -> Tensor:
        """Return logits [B, C] of image features [B, D] with unit prototypes [C, D]."""
        return self.classifier.logits(self.classifier.cosines(F.normalize(raw, dim=-1), prototypes.to(raw.dtype)))

    def answer(self, images: Tensor, state: State, streams: Streams, text: Tensor | None = None) -> Tensor:
        """Return logits with the adapted norms of both towers; with ``text`` the prompts have these norms [1, P]."""
        raw = self.tower.encode(images, state["norms"], streams)
        with self.bank.serve(state["norms"] if text is None else text):
            return self._compare(raw, self.text.all_prototypes(self.chunk))

    def export(self, state: State) -> AdaptedParameters:
        """Return the adapted norms, and what else the answer adds."""
        with self.bank.serve(state["norms"]):
            prototypes = self.text.all_prototypes(self.chunk)
        return AdaptedParameters(prototypes, norms=self._name_norms(state["norms"][0]))

    def _name_norms(self, row: Tensor) -> dict[Tower, dict[str, Tensor]]:
        named = self.bank.name_parameters(row.clone())
        return {
            tower: {key.removeprefix(number): value for key, value in named.items() if key.startswith(number)}
            for tower, number in ((Tower.IMAGE, "0."), (Tower.TEXT, "1."))
        }
