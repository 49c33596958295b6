"""GradientMethod: what the methods share that take one optimiser step on norm numbers per batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lmr.core.method import Method, Mix
from lmr.core.norms import NormBank
from lmr.core.optim import Optimizer, OptimizerName


@dataclass(kw_only=True, eq=False, repr=False)
class GradientMethod(Method):
    """A method whose state is the norm numbers of one stream and the moments of their optimiser.

    Subclasses change the defaults below, write ``adapt`` with :meth:`leaf`, ``self.bank.serve`` and :meth:`descend`,
    and override :meth:`tower` where the text tower adapts too.
    """

    lr: float = 1e-3
    optimizer: OptimizerName = "adam"
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.state["norms"] = self.bank.rows

    def prepare(self) -> None:
        """Check the optimiser's arguments and open a bank on the tower."""
        self._require_not_negative("lr", "weight_decay")
        self.bank = NormBank(self.tower())
        self.optim = Optimizer(self.optimizer, self.lr, self.weight_decay)

    @property
    def trainable(self) -> int:
        """The norm parameters of one stream."""
        return self.bank.size

    def tower(self) -> nn.Module:
        """The module whose norms adapt."""
        return self.classifier.encoder

    def begin(self, streams: int) -> dict[str, Tensor]:
        """Norm numbers as the tower has them, moments of an optimiser that has not moved."""
        norms = self.bank.start.repeat(streams, 1)
        return {"norms": norms} | self.optim.begin(norms)

    def leaf(self) -> Tensor:
        """A copy of the norm numbers [1, P] that collects gradient."""
        return self.state["norms"].clone().requires_grad_()

    def propose(self, gradient: Tensor) -> dict[str, Tensor] | None:
        """The norms and moments after one step along ``gradient`` [1, P]; None if anything in it is not finite."""
        norms, moments = self.optim.step(self.state["norms"], gradient, self.state)
        new = {"norms": norms, **moments}
        return new if all(bool(value.isfinite().all()) for value in (gradient, *new.values())) else None

    def commit(self, new: dict[str, Tensor]) -> None:
        """Make a proposed state the present one."""
        for key, value in new.items():
            self.state[key].copy_(value)

    def descend(self, gradient: Tensor) -> bool:
        """Take one step along ``gradient`` unless something is not finite; says whether it was taken."""
        new = self.propose(gradient)
        if new is not None:
            self.commit(new)
        return new is not None

    def logits(self, images: Tensor, norms: Tensor) -> Tensor:
        """Logits [B, C] with the given norm numbers and the frozen prototypes."""
        with self.bank.serve(norms):
            return self.classifier.logits(self.classifier.cosines(self.classifier.features(images)))

    def sum_slopes(self, images: Tensor, judge: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """The gradient [1, P] of a sum of losses, the logits [B, C], and all that ``judge`` says of each sample [B].

        ``judge`` maps logits to the loss of every sample, and more if it likes, without a look at the other samples.
        So a batch that is encoded in parts is differentiated in parts, and what one of them keeps is gone when the
        next one comes.
        """
        norms = self.leaf()
        gradient, seen = torch.zeros_like(norms), []
        for part in self.classifier.split(len(images)):
            with torch.enable_grad():
                logits = self.logits(images[part], norms)
                losses, *rest = judge(logits)
            if bool(losses.any()):
                gradient += torch.autograd.grad(losses.sum(), norms)[0]
            seen.append((logits.detach(), losses.detach(), *rest))
            del logits, losses
        return gradient, *(torch.cat(pieces) for pieces in zip(*seen, strict=True))

    def answer(self, images: Tensor, mix: Mix) -> Tensor:
        """Logits with the adapted norms and the frozen prototypes."""
        return self.logits(images, self.state["norms"])

    def drift(self) -> float:
        """How far the norm numbers are from their start, relative to its length."""
        start = self.bank.start
        return float(torch.linalg.vector_norm(self.state["norms"] - start) / torch.linalg.vector_norm(start))
