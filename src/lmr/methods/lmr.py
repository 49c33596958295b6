"""Local Margin Restoration (LMR), ACM MM 2026.

For every batch: measure how far each confident sample's plausible classes (the protected set) stand above the hardest
classes outside it, take one Adam step on the LayerNorm parameters towards a target margin (PMR), let that target shrink
for classes that have had much of the stream's mass (adaptive margin, AM), answer with the updated tower, and subtract
the stream's persistent class preference from the answer (bias correction, BC).

Two switches do less than the published method. With ``share`` a part of each stream's images teach: margin, gate, mass,
loss and step are theirs alone; all images are answered, and all answers count in the bias correction. With ``blocks``
only the norms of the last blocks, and those after them, adapt; what comes before is computed once.

The state is one row per stream; a batch may mix streams and every stream gets what it would get alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.core.functional.bias import correct_bias
from lmr.core.functional.by_stream import choose_rows
from lmr.core.functional.pace import count_waiting, pace_bias
from lmr.core.functional.restoration import MarginLook, look_at_margins, weigh_margins
from lmr.core.functional.teachers import choose_teachers
from lmr.core.gradient import NormMethod
from lmr.core.method import COUNTS, SHARES, Mix, Prediction, Preset, Ranges
from lmr.core.optim import Optimizer
from lmr.core.registry import register
from lmr.core.traits import Passes, Role, read_switches

UNIT = 64  # images in a step of the paper's experiments, for which lr, eta and mu were chosen
FEW_CLASSES = 30  # below, the values for ten classes suit better than those for 100; see docs/tune.md


@register("lmr")
class LMR(NormMethod):
    """Local Margin Restoration: protected margins, adaptive targets, bias correction."""

    source = "Huang et al. 2026"
    year = 2026
    in_paper = True
    needs_images = False
    role = Role.OURS
    gated = True
    parts = ("pmr", "am", "bc")
    swept: ClassVar[dict[str, tuple[str, ...]]] = {"delta": ("delta",), "negatives": ("negatives", "positives")}
    added = ("pace", "share", "blocks")
    switches, switches_source = read_switches(__file__)
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
    tau: float = 0.3  # confidence below which a sample is left out of the loss
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
    pace: Literal["batch", "image"] = "batch"  # what lr, eta and mu are counted by; "image": they hold for 64 images
    share: float = 1.0  # of each stream's images in a batch that teach, evenly spaced
    blocks: int | None = None  # how many of the last blocks adapt; None: the whole tower

    @classmethod
    def choose_values(cls, classes: int) -> dict[str, Any]:
        """The published values for ten classes where there are few; docs/tune.md shows what the limit rests on."""
        return dict(cls.presets["cifar10-c"].values) if classes < FEW_CLASSES else {}

    def prepare(self) -> None:
        self._require_not_negative("lr", "gamma0", "beta", "eta", "delta", "eps", "clip")
        for key in ("tau", "mu"):
            if not 0 <= getattr(self, key) < 1:
                raise LmrError(f"Expected {key!r} of lmr from 0 to below 1, got {getattr(self, key)}.")
        smallest = torch.finfo(self.classifier.prototypes.dtype).tiny
        if self.negatives < 1 or self.eps < smallest:
            raise LmrError(f"Expected at least one negative and an eps of at least {smallest:.0e} for lmr.")
        if not 0 < self.share <= 1:
            raise LmrError(f"Expected 'share' of lmr above 0 and at most 1, got {self.share}.")
        if self.blocks is not None and self.blocks < 1:
            raise LmrError(f"Expected at least one block in 'blocks' of lmr, got {self.blocks}.")
        self.optim = Optimizer("adam", self.lr, unit=1 if self.pace == "batch" else UNIT)
        if self.pmr:
            super().prepare()

    @property
    def trainable(self) -> int:
        return super().trainable if self.pmr else 0

    @property
    def last_blocks(self) -> int | None:
        return self.blocks

    @property
    def margin_width(self) -> float:
        return self.delta

    def count_passes(self, learning: float = 1.0) -> Passes:
        if not self.pmr:
            return Passes(forwards=1)
        learning = min(learning, self.share)
        again = self.share if learning > 0 and self.emit == "after" else 0.0  # teachers come twice
        return Passes(forwards=1 + again, backwards=learning, blocks=self.blocks, share=self.share)

    def logit_offset(self) -> Tensor:
        return self.state["bias"]

    def begin(self, streams: int) -> dict[str, Tensor]:
        prototypes = self.classifier.prototypes
        per_class = prototypes.new_zeros(streams, self.classifier.classes)
        counts = torch.zeros(streams, dtype=torch.int64, device=prototypes.device)
        state = {"batches": counts, "bias": per_class, "running": per_class.clone()}
        if self.pace == "image":
            state |= {"images": counts.clone()} | ({"waiting": counts.clone()} if self.pmr else {})
        return state | super().begin(streams) | {"mass": per_class.clone()} if self.pmr else state

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        own: Ranges = {
            "batches": COUNTS,
            "images": COUNTS,
            "waiting": COUNTS,
            "bias": (-self.clip, self.clip),
            "running": SHARES,
            "mass": (0, None),
        }
        return super().ranges(state) | own

    def adapt(self, images: Tensor, mix: Mix) -> Prediction:
        old = self.take(mix)
        if self.pmr:
            logits, new, report, sound = self._restore_margins(images, mix, old)
        else:
            with torch.no_grad():
                logits = self.classifier.logits(self.classifier.cosines(self.classifier.features(images)))
            new, report, sound = {}, {}, torch.ones_like(mix.active, dtype=torch.bool)
        emitted = logits + old["bias"][mix.index]
        sound &= mix.all(emitted.isfinite().all(1))
        if self.bc:
            mean, started = mix.mean(emitted.softmax(1)), old["batches"] > 0
            eta, mu = self._pace_bias(old, mix)
            new["bias"], new["running"] = correct_bias(
                old["bias"], old["running"], started, mean, eta, mu, self.clip, self.eps
            )
        new["batches"] = old["batches"] + 1
        if self.pace == "image":
            new["images"] = old["images"] + mix.sizes
        counted = ("batches", "images", "waiting", "bias", "running", "mass")
        sound &= self.find_sound({key: new[key] for key in counted if key in new})
        # A stream that is not sound keeps its whole state; the others continue.
        self.put({key: choose_rows(sound, value, old[key]) for key, value in new.items()}, mix)
        if self.pmr:
            report |= {"stepped": report["stepped"] & sound, "drift": self.drift(mix)}
        return Prediction(emitted, self.summarise(report | {"finite": sound}, mix))

    def answer(self, images: Tensor, mix: Mix) -> Tensor:
        rows = self.take(mix)
        if self.pmr:
            cosines = self.image_cosines(self.approach(images), rows["norms"], mix.index)
        else:
            cosines = self.classifier.cosines(self.classifier.features(images))
        return self.classifier.logits(cosines) + rows["bias"][mix.index]

    def _pace_bias(self, old: dict[str, Tensor], mix: Mix) -> tuple[float | Tensor, float | Tensor]:
        """The gain and the memory of the bias correction for this batch."""
        if self.pace == "batch":
            return self.eta, self.mu
        return pace_bias(old["images"], mix.sizes, self.eta, self.mu, UNIT)

    def _restore_margins(
        self, images: Tensor, mix: Mix, old: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor], Tensor]:
        """One step on the norms: logits to emit without bias, the new state, a report, which streams are sound [A]."""
        images = self.approach(images)
        teach = choose_teachers(mix.index, mix.count, self.share)
        lesson, lent = (images, mix) if self.share == 1 else (images[teach], Mix(mix.active, mix.index[teach]))
        traced = self.trace(lesson, lent, old["norms"], self._look)
        look = MarginLook(*traced.values)
        mass, loss, slope = weigh_margins(look, lent.index, old["mass"], self.gamma0, self.beta, self.eps, self.am)
        new, sound = {"mass": mass}, loss.isfinite()
        wanted = sound & (lent.sum(look.weight) > 0)
        stepped = torch.zeros_like(wanted)
        taken = 1 if self.pace == "batch" else count_waiting(old["waiting"], mix.sizes, UNIT)
        if bool(look.passes.any()):
            moved, stepped = self.propose(old, traced.pull_back(slope), wanted, taken)
            new |= moved
            sound &= stepped | ~wanted
        if isinstance(taken, Tensor):
            new["waiting"] = taken.masked_fill(stepped, 0)
        del traced, lesson  # the memory of the first forward serves the second
        logits = look.logits.new_empty(len(images), self.classifier.classes)
        logits[teach] = look.logits
        if self.emit == "before":
            logits = self.ask_again(images, ~teach, old["norms"], logits, mix)
        else:
            known, now = logits, new.get("norms", old["norms"])
            logits = self.ask_again(images, ~teach | stepped[mix.index], now, known, mix)
            lost = stepped & ~mix.all(logits.isfinite().all(1))  # these are answered as they were before the step
            if bool(lost.any()):
                known = self.ask_again(images, ~teach & lost[mix.index], old["norms"], known, mix)
                logits = torch.where(lost[mix.index].unsqueeze(1), known, logits)
                sound &= ~lost
        report = {
            "gate_share": lent.mean(look.passes),
            "protected_size": lent.mean(look.protected),
            "loss": loss,
            "stepped": stepped,
        }
        return logits, new, report, sound

    def _look(self, cosines: Tensor) -> MarginLook:
        logits = self.classifier.logits(cosines)
        return look_at_margins(logits, cosines, self.delta, self.negatives, self.tau, self.eps, self.positives)
