"""Steady: LMR that leaves a quiet stream alone, and knows the class shares of a stream when its images turn bad.

The bias correction of LMR drives the mean prediction to equal shares of all classes. A camera that sees 80 % cars is
then made worse. The mean prediction cannot tell a biased model from a skewed world, but time can: class shares do not
jump when the weather does. Four rules follow:

1. While nothing changes, answer with the frozen model and count its labels: the class shares of this stream. On an
   alarm of rule 2, drop those counted since its sum was last 0: these images are probably bad.
2. The clarity of an answer is how far its best logit stands above the mean of all. A sequential test (CUSUM) compares
   it with that of earlier images of the same label. If it stays lower, the stream has drifted. What the pixels do, and
   how fast, does not matter; nor do the class shares.
3. While the stream is drifted, adapt as LMR does, with the counted shares in place of equal ones (eq. 17). Answer
   before the step, and take targets from the mass of earlier steps (eq. 13): no image depends on later ones.
   In a second pass over the images, this begins where the sum of rule 2 was last 0, with what the first has learnt.
   When the pixels change again, or after some thousand images, the frozen model answers until the test has decided.
4. Time is counted in new images: frames that repeat the last one teach nothing.

The stream's own count of images decides where a block of eight ends, and everything is decided there. So the answers do
not depend on the batches. Equation numbers are those of the paper of LMR. docs/steady.md has the derivation and the
measurements.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.bases.norms import NormMethod
from lmr.core.card import Card, Preset, Role
from lmr.core.functional.margin import (
    FEW_CLASSES,
    TEN_CLASSES,
    adapt_margin,
    confidence_weight,
    correct_bias,
    find_protected,
    measure_margin,
)
from lmr.core.functional.pace import select_numbers
from lmr.core.functional.pixels import VARIANCES, describe_pixels
from lmr.core.functional.prior import parse_prior, share_counts
from lmr.core.method import COUNTS, SHARES, Phase, Ranges
from lmr.core.optim import Optimizer
from lmr.core.prediction import AdaptedParameters, State, Step
from lmr.core.registry import register
from lmr.core.state import move_together
from lmr.core.streams import Streams, choose_rows

BLOCK = 8  # images of a stream between two decisions
LOOK = 32  # new images over which means are taken, and for which the mean of all labels counts in that of one
ALLOWED = 0.25  # a fall of the clarity by this many standard deviations between quiet images is no evidence
ALARM = 24.0  # the sum of the falls beyond it, over new images, from which on the stream has drifted
FAR = 1.0  # a domain has changed if the mean of a pixel statistic moved by this many variances between images
MEMORY = 2048  # quiet images after which counts fade, and images of a drift after which the frozen model is asked again
STEP = 6  # new images in a step: eight unrelated ones count as about seven, because novelty is limited
PATIENCE = 64  # from 384 new images of a domain on, a step waits for 1/64 of them
TINY = 1e-30  # in place of a divisor of 0
# What decides, small enough to be fetched: the program waits for the device once in a batch, not in every block.
_DECIDING = (
    *("adapting", "looking", "images", "last", "recent", "domain_pixels", "domain_images", "block", "pending", "age"),
    *("answered", "clarities", "squares", "fall", "rise", "onset", "until"),
)


class Verdict(NamedTuple):
    """What was decided about the streams in one block: tensors [A]."""

    counting: Tensor  # labels are counted in the history
    pending: Tensor  # new images since the last step
    enough: Tensor  # they are enough for a step
    fade: Tensor  # by which the history fades
    drifts: Tensor  # the stream has begun to drift: doubtful labels leave the history
    settles: Tensor  # there is no evidence of a drift: no label is doubtful
    begins: Tensor  # the next images are of another domain than those that were learnt


@dataclass
class Plan:
    """What happens in a batch: its rows in every block, those of quiet streams, not in the loss, and in the loss."""

    logits: Tensor  # of the frozen model on the device [B, C], where it has to answer
    novelty: Tensor  # [B]
    rows: list[Tensor]  # three for each block
    verdicts: list[Verdict]  # one for each block
    adapted: Tensor  # the number of images of drifted streams [A]
    domain: State  # what decides, after the batch


_CARD = Card(
    label="Steady",
    source="this project, 2026",
    year=2026,
    role=Role.OURS,
    presets={
        "default": Preset({}, "values of LMR for CIFAR-100-C and ImageNet-C"),
        "cifar10-c": Preset(TEN_CLASSES, "values of LMR for CIFAR-10-C"),
    },
)


@register("steady", _CARD)
class Steady(NormMethod):
    """LMR with the class shares of quiet times: the frozen model until its answers become less clear.

    With ``prior="history"`` the stream is expected to begin with ordinary images. With "uniform" or given shares it
    adapts from the first image on. With ``lr=0.0`` only the bias adapts, at the cost of the frozen model.

    With ``share`` below 1, only that share of a drifted stream's images enters margin, mass and gradient; all images
    are answered, and all answers enter the bias correction.
    """

    class_sums = ("mass", "running", "history", "doubtful")

    lr: float = 1e-3  # learning rate of Adam
    delta: float = 0.03  # width of the protected set, in cosines (eq. 5)
    negatives: int = 5  # K, the number of hardest classes outside the protected set (eq. 8)
    tau: float = 0.3  # confidence below which a sample does not enter the loss (eq. 10)
    gamma0: float = 4.0  # target margin of a class with its fair share of the mass (eq. 14)
    beta: float = 1.0  # how fast the target falls with a class's share of the mass (eq. 14)
    eta: float = 0.05  # step size of the bias correction (eq. 17)
    mu: float = 0.8  # memory of the running prediction (eq. 16)
    clip: float = 2.0  # largest absolute bias
    eps: float = 1e-6  # epsilon of all equations
    prior: Literal["history", "uniform"] | tuple[float, ...] = "history"  # class shares: counted, equal, or given
    share: float = 1.0  # share of a drifted stream's images that enter the loss, evenly spaced by the stream's count

    def prepare(self) -> None:
        self._require_not_negative("lr", "gamma0", "beta", "eta", "delta", "eps", "clip")
        self._require_between(0, 1 - 1e-9, "tau", "mu")
        self._require_between(torch.finfo(self.classifier.prototypes.dtype).tiny, 1, "eps", "share")
        self._require_count("negatives", most=10**9)
        if self._restores():
            super().prepare()
        self.optim = Optimizer("adam", self.lr)
        self._given = None if self.prior == "history" else parse_prior(self.prior, self.classifier.prototypes)

    def _restores(self) -> bool:
        """Return whether norms adapt; if not, the state holds none and the frozen tower answers."""
        return self.lr > 0

    def begin(self) -> Mapping[str, Tensor | int]:
        zero = self.classifier.prototypes.new_zeros(())
        classes, pixels = zero.repeat(self.classifier.classes), zero.repeat(len(VARIANCES))
        return {
            **self._begin_domain(),
            "adapting": int(self._given is not None),
            "images": 0,
            "looking": 0,  # the frozen model answers until it is decided whether the stream is drifted still
            "history": classes,  # labels of quiet images
            "doubtful": classes,  # those of them that were counted since "fall" was last 0
            "answered": classes,  # those that the frozen model gave them
            "clarities": classes,  # the sums of their clarity
            "squares": zero,  # the sum of its squares over all labels
            "fall": zero,  # evidence that the clarity is lower than in quiet times
            "rise": zero,  # and that it is higher
            "onset": 0,  # images of the stream when "fall" was last 0 in quiet times: the drift began there
            "until": 0,  # images of the stream from which it is known to be drifted, in a second pass
            "last": pixels,  # pixel statistics of the last image
            "recent": pixels,  # their mean over recent images of a drifted stream
            "domain_pixels": pixels,  # their mean over the first ones
            "domain_images": zero,  # new images in these, until there are enough
            "block": torch.zeros(BLOCK, 3 + len(pixels), dtype=zero.dtype),  # novelty, clarity, label and statistics
        }

    def _begin_domain(self) -> dict[str, Tensor]:
        """Return what adapting to one domain starts with.

        Since the last step, "answers" sums probabilities, "pending" counts new images, and "gradient", "weight" and
        "class_weights" sum those of eqs. 9, 10 and 12. "age" counts new images of the domain.
        """
        zero = self.classifier.prototypes.new_zeros(())
        classes = zero.repeat(self.classifier.classes)
        bias = {"answers": classes, "bias": classes, "running": classes, "pending": zero, "age": zero}
        if not self._restores():
            return bias
        norms = {key: torch.as_tensor(value) for key, value in super().begin().items()}
        gathered = {"gradient": torch.zeros_like(norms["norms"]), "weight": zero, "class_weights": classes}
        return norms | bias | gathered | {"mass": classes + 1 / self.classifier.classes}  # at first a fair share each

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        sums = ("weight", "pending", "class_weights", "answers", "age", "history", "doubtful", "answered", "mass")
        own: Ranges = dict.fromkeys((*sums, "domain_images", "fall", "rise"), (0, None))
        own |= {"adapting": (0, 1), "looking": (0, 1)} | dict.fromkeys(("images", "onset", "until"), COUNTS)
        own |= {"running": SHARES, "bias": (-self.clip, self.clip)}
        return super().ranges(state) | own

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        pixels, device = describe_pixels(images).to(self.classifier.prototypes.dtype), images.device
        facts = {key: state[key] for key in _DECIDING} | {"pixels": pixels, "index": streams.index}
        domain = move_together(facts, torch.device("cpu"))
        here = Streams(torch.arange(streams.count), domain.pop("index"))
        plan = self._plan(images, domain.pop("pixels"), domain, here)
        logits, novelty = plan.logits, plan.novelty
        told = torch.stack([torch.stack([value.to(novelty) for value in verdict]) for verdict in plan.verdicts])
        sent = move_together({"rows": torch.cat(plan.rows), "novelty": novelty, "told": told, **plan.domain}, device)
        rows, novelty, told = sent.pop("rows"), sent.pop("novelty"), sent.pop("told")
        parts = iter(torch.split(rows, [len(part) for part in plan.rows]))
        new = {key: value for key, value in state.items() if key not in _DECIDING}
        reliable = torch.zeros_like(streams.index, dtype=torch.bool)
        stepped = torch.zeros_like(streams.active, dtype=torch.bool)
        for decided, verdict in zip(plan.verdicts, told, strict=True):
            quiet, rest, chosen = next(parts), next(parts), next(parts)
            if len(rest) or len(chosen):
                new |= self._answer_block(images, logits, reliable, (rest, chosen), novelty, new, streams)
            steps = new.get("steps")
            new |= self._learn_block(logits, torch.cat([quiet, rest, chosen]), novelty, decided, verdict, new, streams)
            stepped = stepped if steps is None else stepped | (new["steps"] > steps)
        info = {"gate_share": streams.mean(reliable), "stepped": stepped, "adapted": plan.adapted}
        return Step(logits, new | sent, info)

    def _plan(self, images: Tensor, pixels: Tensor, domain: State, streams: Streams) -> Plan:
        """Return what happens in a batch, decided on the CPU by ``domain``, pixel statistics [B, S] and clarity.

        The frozen model answers the images that it has to. How clear these answers are is the only thing that this
        waits for, whatever the number of blocks.
        """
        novelty = measure_novelty(pixels, domain["last"], domain["images"] > 0, streams)
        number = streams.repeat(domain["images"]) + streams.rank()
        block, selected = number // BLOCK, select_numbers(number, self.share)
        block = block - streams.repeat(domain["images"] // BLOCK)
        logits = images.new_zeros(len(images), self.classifier.classes, dtype=self.classifier.prototypes.dtype)
        facts, known = torch.zeros_like(pixels[:, :2]), torch.zeros_like(selected)
        plan = Plan(logits, novelty, [], [], torch.zeros_like(streams.active), domain)
        for k in range(int(block.max()) + 1):
            own, adapting = block == k, streams.repeat(plan.domain["adapting"] > 0)
            missing = (block >= k) & ~known & ~(adapting & self._restores())
            if missing.any():  # at the first block, and where a stream stops to adapt
                places = slice(None) if missing.all() else missing.nonzero()[:, 0].to(images.device)
                with torch.no_grad():
                    logits[places] = self.classifier(images[places])
                if self._given is None:
                    facts[missing] = measure_clarity(logits[places]).cpu()
                known |= missing
            parts = (own & ~adapting, own & adapting & ~selected, own & adapting & selected)
            plan.rows.extend(part.nonzero()[:, 0] for part in parts)
            some = streams.take(own)
            plan.adapted += some.sizes * (plan.domain["adapting"] > 0)
            told = facts.masked_fill(adapting.unsqueeze(1), 0)
            rows = torch.cat([novelty.unsqueeze(1), told, pixels], 1)[own]
            plan.domain = self._watch_block(rows, number[own] % BLOCK, plan, some)
        last = streams.rank() == streams.repeat(streams.sizes - 1)
        plan.domain["last"] = streams.sum(pixels * last.unsqueeze(1))
        return plan

    def _answer_block(
        self,
        images: Tensor,
        logits: Tensor,
        reliable: Tensor,
        rows: tuple[Tensor, Tensor],
        novelty: Tensor,
        state: State,
        streams: Streams,
    ) -> State:
        """Answer images of drifted streams in one block, and return what these gather for the next step.

        Of their ``rows`` the second ones enter the loss. Writes to ``logits`` [B, C] and to ``reliable`` [B], which is
        true for those that do.
        """
        new, (rest, chosen) = dict[str, Tensor](), rows
        if self._restores() and len(rest):
            with torch.no_grad():
                logits[rest] = self.tower.logits(images[rest], state["norms"], streams.take(rest))
        if self._restores() and len(chosen):
            some = streams.take(chosen)
            measured = self.tower.measure(images[chosen], state["norms"], some, self._measure)  # eqs. 2, 5-8, 10
            margin, reliable[chosen], logits[chosen], weight, top = measured.values
            weight, alone = weight * novelty[chosen], torch.zeros_like(weight)
            target = adapt_margin(state["mass"], alone, top, some, self.gamma0, self.beta, self.eps)
            new["gradient"] = measured.vjp(-weight * (target - margin).sigmoid())  # of the sum of eq. 9
            new["weight"] = some.sum(weight)
            new["class_weights"] = some.sum(F.one_hot(top, self.classifier.classes) * weight.unsqueeze(1))
        both = torch.cat(rows)
        own = streams.take(both)
        answers = logits[both] + own.repeat(state["bias"])  # eq. 15
        logits[both] = answers
        new["answers"] = own.sum(answers.softmax(1) * novelty[both].unsqueeze(1))
        return {key: state[key] + value for key, value in new.items()}

    def _learn_block(
        self,
        logits: Tensor,
        rows: Tensor,
        novelty: Tensor,
        decided: Verdict,
        told: Tensor,
        state: State,
        streams: Streams,
    ) -> State:
        """Return the state after the images ``rows`` of one block: count labels, and do what was ``decided``.

        ``decided`` is the verdict on the CPU, and ``told`` the same in numbers on the device.
        """
        verdict, own = Verdict(*told), streams.take(rows)
        if decided.counting.any():
            labels = F.one_hot(logits[rows].argmax(1), self.classifier.classes) * novelty[rows].unsqueeze(1)
            counted = own.sum(labels) * verdict.counting.unsqueeze(1)
            state = state | {key: state[key] + counted for key in ("history", "doubtful")}
        if decided.enough.any():
            state = self._take_step(state, verdict.enough > 0, verdict.pending)
        fade, drifts, settles = (part.unsqueeze(1) for part in (verdict.fade, verdict.drifts, verdict.settles))
        history = (state["history"] - state["doubtful"] * drifts).clamp(min=0)
        state = state | {"history": history * fade, "doubtful": state["doubtful"] * fade * (1 - settles)}
        if decided.begins.any():
            new = {key: value for key, value in self._begin_domain().items() if key in state}
            new = {key: value.expand_as(state[key]) for key, value in new.items()}
            state |= {key: choose_rows(verdict.begins > 0, value, state[key]) for key, value in new.items()}
        return state

    def _take_step(self, state: State, enough: Tensor, pending: Tensor) -> State:
        """Return the state after a step of the streams that have ``enough`` [A] of ``pending`` [A] images."""
        mean = state["answers"] / pending.clamp(min=TINY).unsqueeze(1)  # u of eq. 16
        begun = state["running"].sum(1) > 0
        shares = share_counts(state["history"]) if self._given is None else self._given
        bias, running = correct_bias(  # eqs. 16, 17
            state["bias"], state["running"], begun, mean, self.eta, self.mu, self.clip, self.eps, shares
        )
        new = {"bias": bias, "running": running}
        if self._restores():
            new["mass"] = state["mass"] + state["class_weights"]  # eq. 12
        gathered = state.keys() & {"gradient", "weight", "class_weights", "answers"}
        new |= {key: torch.zeros_like(state[key]) for key in gathered}
        new = {key: choose_rows(enough, value, state[key]) for key, value in new.items()}
        if self._restores():
            gradient = state["gradient"] / (state["weight"] + self.eps).unsqueeze(1).to(state["norms"].dtype)  # eq. 9
            new |= self.optim.descend(state, gradient, enough & (state["weight"] > 0))
        return state | new

    def _watch_block(self, rows: Tensor, places: Tensor, plan: Plan, streams: Streams) -> State:
        """Return the domain after images of one block, and add the verdict on it to the plan.

        ``rows`` [n, 3 + S] are what "block" holds of each image, at ``places`` [n].
        """
        domain = plan.domain
        adapting = domain["adapting"] > 0
        new = streams.sum(rows[:, 0]) * adapting
        domain = domain | {
            "images": domain["images"] + streams.sizes,
            "block": domain["block"].index_put((streams.index, places), rows),
            "pending": domain["pending"] + new,
            "age": domain["age"] + new,
        }
        ended = (streams.sizes > 0) & (domain["images"] % BLOCK == 0)
        enough = ended & adapting & (domain["pending"] >= (domain["age"] / PATIENCE).clamp(min=STEP))
        counting = ~adapting & (domain["looking"] == 0)
        never = torch.zeros_like(ended)
        verdict = Verdict(counting, domain["pending"], enough, torch.ones_like(new), never, never, never)
        if ended.any():
            judged, fade, begins = self._judge_block(domain | {"pending": domain["pending"].where(~enough, 0)})
            verdict = verdict._replace(
                fade=fade.where(ended, 1),
                drifts=ended & ~adapting & (judged["adapting"] > 0),
                settles=ended & (judged["fall"] == 0),
                begins=begins & ended,
            )
            domain = {key: choose_rows(ended, judged[key], value) for key, value in domain.items()}
        plan.verdicts.append(verdict)
        return domain

    def _judge_block(self, state: State) -> tuple[State, Tensor, Tensor]:
        """Return the domain after a block, by which the counts fade [A], and whether another domain begins [A]."""
        novelty, clarity, label = state["block"][:, :, :3].unbind(2)
        count, label = novelty.sum(1), label.long().clamp(0, self.classifier.classes - 1)
        adapting, looking = state["adapting"] > 0, state["looking"] > 0
        quiet = ~adapting & ~looking
        fall, rise = self._test_clarity(state, clarity, label, novelty)
        fall, rise = fall.where(~adapting, 0), rise.where(quiet, 0)
        told = quiet & (state["until"] > 0) & (state["images"] == state["until"])
        drifted, clearer = (
            (fall > ALARM) | told,
            rise > ALARM,
        )  # if it has become clearer, the images before were the bad ones
        settled = looking & (fall == 0)
        fade = (1 - count / MEMORY).clamp(min=0).where(~clearer, 0).where(quiet, 1)
        counted = novelty * quiet.unsqueeze(1)
        state, changed = self._follow_pixels(state)
        again = adapting & (state["age"] >= MEMORY) & (state["age"] % MEMORY < count)
        asks, begins = (changed | again) & (self._given is None), changed | settled
        state = state | {
            "answered": state["answered"].scatter_add(1, label, counted) * fade.unsqueeze(1),
            "clarities": state["clarities"].scatter_add(1, label, counted * clarity) * fade.unsqueeze(1),
            "squares": (state["squares"] + (counted * clarity.square()).sum(1)) * fade,
            "fall": fall.where(~drifted, 0).where(~asks, ALARM / 2),
            "rise": rise.where(~(clearer | drifted), 0),
            "onset": state["images"].where(quiet & (fall == 0), state["onset"]),
            "adapting": ((adapting | drifted) & ~asks).to(state["adapting"].dtype),
            "looking": (asks | (looking & ~drifted & ~settled)).to(state["looking"].dtype),
            "block": torch.zeros_like(state["block"]),
        }
        new = {
            key: torch.zeros_like(state[key]) for key in ("pending", "age", "domain_images", "domain_pixels", "recent")
        }
        return state | {key: choose_rows(begins, value, state[key]) for key, value in new.items()}, fade, begins

    def _test_clarity(self, state: State, clarity: Tensor, label: Tensor, novelty: Tensor) -> tuple[Tensor, Tensor]:
        """Return the evidence of a fall and of a rise of the clarity [A] after a block of images [A, 8].

        A clarity is compared with the mean of quiet images of its label, in standard deviations of quiet images.
        """
        seen = state["answered"].sum(1)
        mean = state["clarities"].sum(1) / seen.clamp(min=TINY)
        usual = (state["clarities"] + LOOK * mean.unsqueeze(1)) / (state["answered"] + LOOK)
        variance = state["squares"] / seen.clamp(min=TINY) - mean.square()
        fallen = (usual.gather(1, label) - clarity) / variance.clamp(min=TINY).sqrt().unsqueeze(1)
        lower, allowed = (fallen * novelty).sum(1), ALLOWED * novelty.sum(1)
        evidence = (state["fall"] + lower - allowed, state["rise"] - lower - allowed)
        fall, rise = (sums.clamp(min=0).where(seen >= LOOK, 0) for sums in evidence)
        return fall, rise

    def _follow_pixels(self, state: State) -> tuple[State, Tensor]:
        """Return the domain with the pixel statistics of a block, and whether those of a drifted stream changed [A]."""
        novelty, pixels = state["block"][:, :, :1], state["block"][:, :, 3:]
        count = novelty.sum(1)
        mean = (pixels * novelty).sum(1) / count.clamp(min=TINY)
        adapting = state["adapting"] > 0
        first = adapting & (state["domain_images"] < LOOK)
        images, start = state["domain_images"] + count[:, 0] * first, state["domain_pixels"]
        start = choose_rows(first, start.lerp(mean, count / images.clamp(min=TINY).unsqueeze(1)), start)
        since = state["images"] - state["until"]
        told = (state["until"] > 0) & (since > 0) & (since <= LOOK)  # these may be of before the drift
        recent = choose_rows(first | told, start, state["recent"].lerp(mean, (count / LOOK).clamp(max=1)))
        recent = choose_rows(adapting, recent, state["recent"])
        distance = ((recent - start).square() / recent.new_tensor(VARIANCES)).amax(1)
        changed = adapting & ~first & (distance > FAR)
        return state | {"domain_images": images, "domain_pixels": start, "recent": recent}, changed

    def _measure(self, cosines: Tensor) -> tuple[Tensor, ...]:
        """Return of each sample its margin, whether it enters the loss, its logits, its weight and its top class."""
        logits, fixed = self.classifier.logits(cosines), cosines.detach()
        protected = find_protected(fixed, self.delta)  # eq. 5
        margin, negatives = measure_margin(logits, fixed, protected, self.negatives, self.eps)  # eqs. 6-8
        weight = confidence_weight(logits, self.tau) * negatives.any(1)  # eq. 10
        return margin, weight > 0, logits, weight, fixed.argmax(1)

    def answer(self, images: Tensor, state: State, streams: Streams) -> Tensor:
        logits = super().answer(images, state, streams) if self._restores() else self.classifier(images)
        return logits + streams.repeat(state["bias"])  # eq. 15

    def export(self, state: State) -> AdaptedParameters:
        return dataclasses.replace(super().export(state), offset=state["bias"][0].clone())

    @classmethod
    def choose_values(cls, classes: int) -> dict[str, Any]:
        return dict(TEN_CLASSES) if classes < FEW_CLASSES else {}

    @property
    def trainable(self) -> int:
        return super().trainable if self._restores() else 0

    @property
    def margin_width(self) -> float:
        return self.delta

    def logit_offset(self) -> Tensor:
        return self.state["bias"]

    def describe(self, state: State) -> Mapping[str, Tensor]:
        return {**super().describe(state), "adapting": state["adapting"] > 0}

    def add_labels(self, labels: Tensor, counted: Tensor, state: State, streams: Streams) -> State:
        """Count true labels as those of quiet images, in place of what the frozen model had counted for them."""
        if self._given is not None:
            return {}
        classes, known = self.classifier.classes, (counted >= 0).unsqueeze(1)
        added = streams.sum(F.one_hot(labels, classes).to(state["history"]))
        removed = streams.sum((F.one_hot(counted.clamp(min=0), classes) * known).to(state["history"]))
        kept = {key: (state[key] - removed).clamp(min=0) for key in ("history", "doubtful")}
        return kept | {"history": kept["history"] + added}

    def phases(self) -> list[Phase]:
        pairs = zip(self.state["adapting"].tolist(), self.state["looking"].tolist(), strict=True)
        return ["adapting" if adapts else "looking" if looks else "quiet" for adapts, looks in pairs]

    @property
    def cycle(self) -> int:
        return min(LOOK, int(1 / self.share)) if self._restores() else 1

    def rewind(self) -> None:
        """Answer as the frozen model up to where the present drift began, and from there on as now."""
        state = self.state
        known = (state["adapting"] > 0) & (state["onset"] > 0)
        new = {key: torch.zeros_like(state[key]) for key in ("images", "adapting", "block")} | {"until": state["onset"]}
        self.state |= {key: choose_rows(known, value, state[key]) for key, value in new.items()}

    def fill_state(self, images: Tensor) -> None:
        mean = describe_pixels(images).mean(0).to(self.classifier.prototypes.dtype)
        full: dict[str, Any] = {"adapting": 1, "domain_images": LOOK, "domain_pixels": mean, "recent": mean}
        self.state |= {key: torch.zeros_like(self.state[key]) + value for key, value in full.items()}


def measure_clarity(logits: Tensor) -> Tensor:
    """Return of logits [B, C] how far the best one stands above their mean, and its number [B, 2]."""
    best = logits.max(1)
    return torch.stack([best.values - logits.mean(1), best.indices.to(logits)], 1)


def measure_novelty(pixels: Tensor, last: Tensor, begun: Tensor, streams: Streams) -> Tensor:
    """Return how new each image is beside the one before it in its stream [B]: 0 for the same, 1 for an unrelated one.

    It is the mean square difference of the pixel statistics [B, S] in units of that between two independent images, at
    most 2. The first image of a stream has 1.
    """
    order = torch.argsort(streams.index, stable=True)
    before = torch.empty_like(pixels)
    before[order] = pixels[order].roll(1, 0)
    starts = streams.rank() == 0
    before = choose_rows(starts, streams.repeat(last.to(pixels.dtype)), before)
    novelty = ((pixels - before).square() / (2 * pixels.new_tensor(VARIANCES))).mean(1).clamp(max=2)
    return torch.where(starts & ~streams.repeat(begun), 1.0, novelty)
