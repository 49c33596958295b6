"""Local Margin Restoration (LMR), ACM MM 2026.

For every batch: measure how far each confident sample's plausible classes (the protected set) stand above the hardest
classes outside it, take one Adam step on the LayerNorm numbers towards a target margin (PMR), let that target shrink
for classes that have had much of the stream's mass (adaptive margin, AM), answer with the updated tower, and take the
stream's persistent class preference off the answer (bias correction, BC).

The state is one row per stream; a batch may mix streams and every stream gets what it would get alone.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.core.functional.bias import correct_bias
from lmr.core.functional.margin import adapt_margin, count_mass, gate, measure_margin, restoration_loss, sum_by_stream
from lmr.core.method import Method, Mix, Prediction, Preset
from lmr.core.norms import NormBank
from lmr.core.optim import adam_step
from lmr.core.registry import register
from lmr.core.traits import Passes, Role, Tower


class _Look(NamedTuple):
    """What every sample of a batch says by itself, before the step."""

    logits: Tensor  # [B, C]
    margin: Tensor  # [B], as all that follow
    weight: Tensor  # of the gate
    protected: Tensor  # size of the set
    top: Tensor  # predicted class


class _Seen(NamedTuple):
    """What the batch says as a whole: also class mass [A, C], loss [A], and the gradient [A, P] if there is one."""

    logits: Tensor
    weight: Tensor
    protected: Tensor
    mass: Tensor
    loss: Tensor
    gradient: Tensor | None


@register("lmr")
class LMR(Method):
    """Local Margin Restoration: protected margins, adaptive targets, bias correction."""

    source = "Huang et al. 2026"
    year = 2026
    role = Role.OURS
    towers = (Tower.IMAGE,)
    gated = True
    parts = ("pmr", "am", "bc")
    swept: ClassVar[dict[str, tuple[str, ...]]] = {"delta": ("delta",), "negatives": ("negatives", "positives")}
    many_streams = True
    presets: ClassVar[dict[str, Preset]] = {
        "default": Preset({}, "paper, Implementation details: CIFAR-100-C and ImageNet-C"),
        "cifar10-c": Preset({"gamma0": 0.3, "beta": 3.0}, "paper, Implementation details"),
        "cifar100-c": Preset({}, "paper, Implementation details"),
        "imagenet": Preset({}, "paper, Implementation details: ImageNet-C"),
        "imagenet-variants": Preset({"lr": 1.5e-3}, "paper's source, appendix: ImageNet-A, -R, -Sketch and -V2"),
    }

    lr: float = 1e-3
    delta: float = 0.03  # width of the protected set, in cosine units
    negatives: int = 5  # hardest classes outside it
    tau: float = 0.3  # confidence below which a sample teaches nothing
    gamma0: float = 4.0  # target margin of a class with its fair share
    beta: float = 1.0  # how fast the target falls with a class's share
    eta: float = 0.05  # gain of the bias correction
    mu: float = 0.8  # memory of its running prediction
    clip: float = 2.0  # largest bias
    eps: float = 1e-6
    pmr: bool = True
    am: bool = True
    bc: bool = True
    positives: Literal["gap", "top1"] = "gap"
    emit: Literal["after", "before"] = "after"

    def prepare(self) -> None:
        self._require_not_negative("lr", "gamma0", "beta", "eta", "delta", "eps", "clip")
        for key in ("tau", "mu"):
            if not 0 <= getattr(self, key) < 1:
                raise LmrError(f"Expected {key!r} of lmr from 0 to below 1, got {getattr(self, key)}.")
        smallest = torch.finfo(self.classifier.prototypes.dtype).tiny
        if self.negatives < 1 or self.eps < smallest:
            raise LmrError(f"Expected at least one negative and an eps of at least {smallest:.0e} for lmr.")
        self.bank = NormBank(self.classifier.encoder, self.streams) if self.pmr else None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bank is not None:
            self.state["norms"] = self.bank.rows

    @property
    def trainable(self) -> int:
        return 0 if self.bank is None else self.bank.size

    @property
    def margin_width(self) -> float:
        return self.delta

    def count_passes(self, learning: float = 1.0) -> Passes:
        learning = learning if self.pmr else 0.0
        return Passes(forwards=2 if learning > 0 and self.emit == "after" else 1, backwards=learning)

    def logit_offset(self) -> Tensor:
        return self.state["bias"]

    def begin(self, streams: int) -> dict[str, Tensor]:
        prototypes = self.classifier.prototypes
        per_class = prototypes.new_zeros(streams, self.classifier.classes)
        counts = torch.zeros(streams, dtype=torch.int64, device=prototypes.device)
        state = {"batches": counts, "bias": per_class, "running": per_class.clone()}
        if self.bank is not None:
            start = self.bank.start.repeat(streams, 1)
            state |= {"norms": start, "first": torch.zeros_like(start), "second": torch.zeros_like(start)}
            state |= {"steps": counts.clone(), "mass": per_class.clone()}
        return state

    def adapt(self, images: Tensor, mix: Mix) -> Prediction:
        old = {key: value[mix.active] for key, value in self.state.items() if key != "predicted"}
        if self.bank is None:
            with torch.no_grad():
                logits, _ = self._forward(images, None, mix.index)
            new: dict[str, Tensor] = {}
            report: dict[str, Tensor] = {}
            sound = torch.ones_like(mix.active, dtype=torch.bool)
        else:
            logits, new, report, sound = self._restore_margins(images, mix, old)
        emitted = logits + old["bias"][mix.index]
        sound &= _all_by_stream(emitted.isfinite().all(1), mix)
        if self.bc:
            size = torch.bincount(mix.index, minlength=mix.count).unsqueeze(1)
            mean = sum_by_stream(emitted.softmax(1), mix.index, mix.count) / size
            started = old["batches"] > 0
            new["bias"], new["running"] = correct_bias(
                old["bias"], old["running"], started, mean, self.eta, self.mu, self.clip, self.eps
            )
        if "stepped" in report:
            report["stepped"] = report["stepped"] & sound
        new["batches"] = old["batches"] + 1
        # A stream whose numbers are not finite keeps its whole state; the others go on.
        self._replace({key: _choose(sound, value, old[key]) for key, value in new.items()}, mix.active)
        return Prediction(emitted, self._summarise(report | {"finite": sound}, mix))

    def answer(self, images: Tensor, mix: Mix) -> Tensor:
        norms = None if self.bank is None else self.state["norms"][mix.active]
        return self._forward(images, norms, mix.index)[0] + self.state["bias"][mix.active[mix.index]]

    def _forward(self, images: Tensor, norms: Tensor | None, index: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and cosines [B, C] with the norms of each sample's stream."""
        service: AbstractContextManager[None] = nullcontext()
        if self.bank is not None and norms is not None:
            if len(norms) > 1:
                self.bank.locate_batch(images, self.classifier.encode)
            service = self.bank.serve(norms, index)
        with service:
            cosines = self.classifier.cosines(self.classifier.features(images))
        return self.classifier.logits(cosines), cosines

    def _restore_margins(
        self, images: Tensor, mix: Mix, old: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor], Tensor]:
        """One step on the norms: emitted logits without bias, the new state, a report, which streams are sound [A]."""
        seen = self._differentiate(images, mix, old)
        logits, sound = seen.logits, seen.loss.isfinite()
        new, stepped = {"mass": seen.mass}, torch.zeros_like(sound)
        if seen.gradient is not None:
            moved = adam_step(old["norms"], seen.gradient, old["first"], old["second"], old["steps"], self.lr)
            for value in moved[:3]:
                sound &= value.isfinite().all(1)
            stepped = (sum_by_stream(seen.weight, mix.index, mix.count) > 0) & sound
            for key, value in zip(("norms", "first", "second", "steps"), moved, strict=True):
                new[key] = _choose(stepped, value, old[key])
            if self.emit == "after" and stepped.any():
                logits, steady = self._forward_again(images, new["norms"], logits, stepped, mix)
                sound &= steady
                stepped &= steady
        report = {
            "gate_share": _mean_by_stream(seen.weight > 0, mix),
            "protected_size": _mean_by_stream(seen.protected, mix),
            "loss": seen.loss,
            "stepped": stepped,
        }
        return logits, new, report, sound

    def _differentiate(self, images: Tensor, mix: Mix, old: dict[str, Tensor]) -> _Seen:
        """Loss and gradient at the present norms.

        The gradient of a sample's loss is the slope of its margin times a number, and only the number depends on the
        rest of the batch. So a batch that is encoded in parts is differentiated in parts, and what autograd keeps of
        one of them is gone when the next one comes.
        """
        norms, parts = old["norms"].detach(), self.classifier.split(len(images))
        if len(parts) == 1:
            look = self._look(images, norms.requires_grad_(), mix.index)
        else:
            looks, slopes = zip(*(self._measure_slopes(images[p], norms[mix.index[p]]) for p in parts), strict=True)
            look = _Look(*(torch.cat(pieces) for pieces in zip(*looks, strict=True)))
        margin, weight = look.margin.detach().requires_grad_(), look.weight
        mass = old["mass"] + count_mass(weight, look.top, self.classifier.classes, mix.index, mix.count)
        target = torch.full_like(weight, self.gamma0)
        if self.am:
            target = adapt_margin(mass, weight, look.top, mix.index, self.gamma0, self.beta, self.eps)
        with torch.enable_grad():
            loss = restoration_loss(margin, target, weight, mix.index, mix.count, self.eps)
            (pull,) = torch.autograd.grad(loss.sum(), margin)
        gradient = None
        if bool((weight > 0).any()):
            if len(parts) == 1:
                (gradient,) = torch.autograd.grad(look.margin, norms, pull)
            else:
                gradient = sum_by_stream(pull.unsqueeze(1) * torch.cat(slopes), mix.index, mix.count)
        return _Seen(look.logits.detach(), weight, look.protected, mass, loss.detach(), gradient)

    def _look(self, images: Tensor, norms: Tensor, index: Tensor) -> _Look:
        """What every sample says by itself; gradient flows from its margin to the norms."""
        with torch.enable_grad():
            logits, cosines = self._forward(images, norms, index)
            local = measure_margin(logits, cosines, self.delta, self.negatives, self.eps, self.positives)
        weight = gate(logits, self.tau) * local.negatives.any(1)
        return _Look(logits, local.margin, weight, local.protected.sum(1), cosines.detach().argmax(1))

    def _measure_slopes(self, images: Tensor, norms: Tensor) -> tuple[_Look, Tensor]:
        """The same without gradient, and the slope of every sample's margin along its own norms [n, P]."""
        look = self._look(images, norms.requires_grad_(), torch.arange(len(images), device=images.device))
        slopes = torch.zeros_like(norms)
        if bool((look.weight > 0).any()):
            (slopes,) = torch.autograd.grad(look.margin, norms, (look.weight > 0).to(look.margin.dtype))
        return _Look(*(value.detach() for value in look)), slopes

    def _forward_again(
        self, images: Tensor, norms: Tensor, logits: Tensor, stepped: Tensor, mix: Mix
    ) -> tuple[Tensor, Tensor]:
        """Logits with the new norms of the streams that stepped; where they are not finite, the first ones stay."""
        chosen = stepped[mix.index]
        with torch.no_grad():
            again = logits.clone()
            again[chosen] = self._forward(images[chosen], norms, mix.index[chosen])[0]
        steady = _all_by_stream(again.isfinite().all(1), mix)
        return torch.where(steady[mix.index].unsqueeze(1), again, logits), steady

    def _summarise(self, report: dict[str, Tensor], mix: Mix) -> dict[str, Any]:
        """What happened, in plain numbers: over the batch, and for each stream where there are several."""
        if self.bank is not None:
            start = self.bank.start
            report["drift"] = (self.state["norms"][mix.active] - start).norm(dim=1) / start.norm()
        columns = {key: value.tolist() for key, value in report.items()}
        info: dict[str, Any] = {key: sum(column) / len(column) for key, column in columns.items()}
        info["finite"] = all(columns["finite"])
        if "stepped" in columns:
            info["stepped"] = any(columns["stepped"])
        if self.streams > 1:
            info["streams"] = {
                number: {key: column[k] for key, column in columns.items()}
                for k, number in enumerate(mix.active.tolist())
            }
        return info


def _choose(rows: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """New rows where ``rows`` [A] holds, old ones elsewhere."""
    return torch.where(rows.view(-1, *[1] * (new.ndim - 1)), new, old)


def _mean_by_stream(values: Tensor, mix: Mix) -> Tensor:
    """Mean of counts or truths [B] over the samples of each stream, for people to read: float64 [A] on the CPU."""
    size = torch.bincount(mix.index, minlength=mix.count).cpu()
    return sum_by_stream(values.long(), mix.index, mix.count).cpu().double() / size


def _all_by_stream(values: Tensor, mix: Mix) -> Tensor:
    """Whether ``values`` [B] holds for every sample of a stream: bool [A]."""
    return sum_by_stream((~values).long(), mix.index, mix.count) == 0
