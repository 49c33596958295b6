"""Other readings of what the paper of LMR leaves open, each as LMR with one function replaced.

The file is for ``lmr bench --methods lab/readings.py:NAME``; the plan beside it, ``lmr bench lab/readings.toml``, runs
all. docs/readings.md has the results.
"""

from __future__ import annotations

import math
from unittest.mock import patch

import torch
from torch import Tensor

import lmr
from lmr.core.card import Role
from lmr.core.functional import margin as equations
from lmr.core.prediction import State, Step
from lmr.core.streams import Streams
from lmr.methods import lmr as published
from lmr.methods.lmr import LMR

CARD = lmr.Card(source="another reading of Huang et al. 2026", year=2026, role=Role.OTHER)


@lmr.register("batch_left_out", CARD)
class BatchLeftOut(LMR):
    """Equation 13 reads the mass from before the batch: the whole batch is left out, not the sample alone."""

    def _restore_margins(
        self, images: Tensor, state: State, streams: Streams
    ) -> tuple[Tensor, State, dict[str, Tensor]]:
        def adapt(mass: Tensor, weight: Tensor, *rest: object) -> Tensor:
            return equations.adapt_margin(state["mass"], torch.zeros_like(weight), *rest)  # type: ignore[arg-type]

        with patch.object(published, "adapt_margin", adapt):
            return super()._restore_margins(images, state, streams)


@lmr.register("nothing_left_out", CARD)
class NothingLeftOut(LMR):
    """Equation 13 reads the mass with the whole batch in it, the sample too."""

    def _restore_margins(
        self, images: Tensor, state: State, streams: Streams
    ) -> tuple[Tensor, State, dict[str, Tensor]]:
        def adapt(mass: Tensor, weight: Tensor, *rest: object) -> Tensor:
            return equations.adapt_margin(mass, torch.zeros_like(weight), *rest)  # type: ignore[arg-type]

        with patch.object(published, "adapt_margin", adapt):
            return super()._restore_margins(images, state, streams)


@lmr.register("plain_posterior", CARD)
class PlainPosterior(LMR):
    """Equation 16 averages the posterior before the correction, not that of the emitted logits."""

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        """Adapt as LMR, then move the bias by the other posterior."""
        step = super().adapt(images, state, streams)
        if self.bc:
            plain = streams.mean((step.logits - streams.repeat(state["bias"])).softmax(1))
            bias, running = equations.correct_bias(
                state["bias"], state["running"], state["images"] > 0, plain, self.eta, self.mu, self.clip, self.eps
            )
            step = Step(step.logits, {**step.state, "bias": bias, "running": running}, step.info)
        return step


@lmr.register("divided_by_k", CARD)
class DividedByK(LMR):
    """Equation 8 divides by K also where fewer negatives are left, as the body of the paper has it."""

    def _measure(self, cosines: Tensor) -> tuple[Tensor, ...]:
        margin, *others = super()._measure(cosines)
        size = others[-1]
        count = (cosines.shape[1] - size).clamp(max=self.negatives)
        wider = math.log(self.negatives) - count.clamp(min=1).to(margin.dtype).log()
        return (torch.where(count > 0, margin + wider, margin), *others)


@lmr.register("momentum_alone", CARD)
class MomentumAlone(LMR):
    """A batch without a confident sample still takes Adam's step, by its momentum, instead of none."""

    def _restore_margins(
        self, images: Tensor, state: State, streams: Streams
    ) -> tuple[Tensor, State, dict[str, Tensor]]:
        logits, new, info = super()._restore_margins(images, state, streams)
        still = ~info["stepped"]
        new = dict(new)
        if bool(still.any()):
            new |= self.optim.descend({**state, **new}, torch.zeros_like(state["norms"]), still)
            stale = streams.repeat(still).nonzero()[:, 0]
            logits = self.tower.recompute_logits(logits, stale, images, new["norms"], streams)
        return logits, new, info
