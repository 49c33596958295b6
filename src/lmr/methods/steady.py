"""Steady: LMR that leaves a quiet stream alone, and knows the class shares of a stream when its images turn bad.

The bias correction of LMR drives the mean prediction to equal shares of all classes. A camera that sees 80 % cars is
then made worse. The mean prediction cannot tell a biased model from a skewed world, but time can: class shares do not
jump when the weather does. Four rules follow:

1. While nothing changes, answer with the frozen model and count its labels: the class shares of this stream.
2. A change of the images is seen in their pixels. The frozen model then answers 32 new images. If it tells the classes
   apart as clearly as before, the stream is quiet again. If not, the stream has drifted.
3. While the stream is drifted, adapt as LMR does, with the counted shares in place of equal ones (eq. 17). Answer
   before the step, and take targets from the mass of earlier steps (eq. 13): no image depends on later ones.
4. Time is counted in new images: frames that repeat the last one teach nothing.

The stream's own count of images decides where a block of eight ends, and everything is decided there. So the answers do
not depend on the batches. Equation numbers are those of the paper of LMR. docs/steady.md has the derivation and the
measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.bases.margin import MarginMethod
from lmr.core.card import Card, Preset, Role, Switch
from lmr.core.functional.margin import TEN_CLASSES, adapt_margin, correct_bias
from lmr.core.functional.pace import select_numbers
from lmr.core.functional.prior import parse_prior, share_counts
from lmr.core.method import Phase, Ranges
from lmr.core.optim import Optimizer
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams, choose_rows

BLOCK = 8  # images of a stream between two decisions
LOOK = 32  # new images on which a new domain is judged, and over which recent images are averaged
FAR = 1.0  # a domain has changed if the mean of a pixel statistic moved by this many variances between images
NEAR = 0.5  # a drifted stream is quiet again within this distance of its quiet images
CLEAR = 0.9  # a domain is drifted if its clarity is below this share of that of quiet images
MEMORY = 2048  # quiet images after which counted labels fade
STEP = 6  # new images in a step: eight unrelated ones count as about seven, because novelty is limited
PATIENCE = 64  # from 384 new images of a domain on, a step waits for 1/64 of them
TINY = 1e-30  # in place of a divisor of 0
# The variance of each pixel statistic between clean images (CIFAR-10's test set; 250 photographs of ImageNet at 224
# pixels give values from 0.7 to 3 times these).
VARIANCES = (0.25, 0.08, 0.14, 0.48, 0.15, 0.035, 0.032, 1.7, 0.27)

_CARD = Card(
    label="Steady",
    source="this project, 2026",
    year=2026,
    role=Role.OURS,
    presets={
        "default": Preset({}, "values of LMR for CIFAR-100-C and ImageNet-C"),
        "cifar10-c": Preset(TEN_CLASSES, "values of LMR for CIFAR-10-C"),
    },
    gated=True,
    switches=(  # shares of the gain on balanced streams of 3,000 images: docs/steady.md
        Switch({}, 1.0),
        Switch({"share": 0.5}, 0.99),
        Switch({"share": 0.25}, 0.83),
        Switch({"lr": 0.0}, 0.78),
    ),
)


@register("steady", _CARD)
class Steady(MarginMethod):
    """LMR with the class shares of quiet times: the frozen model until the images change.

    With ``prior="history"`` the stream is expected to begin with ordinary images. With "uniform" or given shares it
    adapts from the first image on. With ``lr=0.0`` only the bias adapts, at the cost of the frozen model.

    With ``share`` below 1, only that share of a drifted stream's images enters margin, mass and gradient; all images
    are answered, and all answers enter the bias correction.
    """

    class_sums = ("mass", "running", "history")

    prior: Literal["history", "uniform"] | tuple[float, ...] = "history"  # class shares: counted, equal, or given
    share: float = 1.0  # share of a drifted stream's images that enter the loss, evenly spaced by the stream's count

    def prepare(self) -> None:
        super().prepare()
        self._require_between(torch.finfo(self.classifier.prototypes.dtype).tiny, 1, "share")
        self.optim = Optimizer("adam", self.lr)
        self._given = None if self.prior == "history" else parse_prior(self.prior, self.classifier.prototypes)

    def _restores(self) -> bool:
        return self.lr > 0

    def begin(self) -> Mapping[str, Tensor | int]:
        zero = self.classifier.prototypes.new_zeros(())
        classes, signs = zero.repeat(self.classifier.classes), zero.repeat(len(VARIANCES))
        return {
            **self._begin_domain(),
            "adapting": int(self._given is not None),
            "images": 0,
            "history": classes,  # labels of quiet images
            "labels": classes,  # labels of the new domain that is being judged
            "last": signs,  # pixel statistics of the last image
            "recent": signs,  # their mean over recent images
            "key": signs,  # their mean over the first images of this domain
            "quiet": signs,  # their mean over the first images of the quiet domain
            "looked": zero,  # new images in the key, until there are enough
            "clarity": zero,  # the standard deviation of the frozen model's logits over classes, mean over these
            "quiet_clarity": zero,  # the same of quiet images; 0: none yet
            "block": zero.repeat(2 + len(VARIANCES)),  # sums over this block: new images, clarity, statistics
        }

    def _begin_domain(self) -> dict[str, Tensor]:
        """Return what adapting to one domain starts with.

        Since the last step, "answers" sums probabilities, "fresh" counts new images, and "gradient", "weight" and
        "gained" sum those of eqs. 9, 10 and 12. "age" counts new images of the domain.
        """
        zero = self.classifier.prototypes.new_zeros(())
        classes = zero.repeat(self.classifier.classes)
        bias = {"answers": classes, "bias": classes, "running": classes, "fresh": zero, "age": zero}
        if not self._restores():
            return bias
        norms = {key: torch.as_tensor(value) for key, value in super().begin().items()}
        gathered = {"gradient": torch.zeros_like(norms["norms"]), "weight": zero, "gained": classes}
        return norms | bias | gathered | {"mass": classes + 1 / self.classifier.classes}  # at first a fair share each

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        sums = ("weight", "fresh", "gained", "answers", "age", "history", "labels", "looked")
        own: Ranges = dict.fromkeys((*sums, "clarity", "quiet_clarity"), (0, None)) | {"adapting": (0, 1)}
        return super().ranges(state) | own

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        signs = describe_pixels(images).to(self.classifier.prototypes.dtype)
        novelty = measure_novelty(signs, state["last"], state["images"] > 0, streams)
        known = streams.spread(state["adapting"] == 0) | (not self._restores())  # frozen logits, in one forward
        logits = signs.new_zeros(len(images), self.classifier.classes)
        if bool(known.any()):
            logits[known] = self.classifier(images[known])
        adapted = torch.zeros_like(state["images"])
        stepped = torch.zeros_like(state["adapting"], dtype=torch.bool)
        reliable, rank = torch.zeros_like(known), streams.rank()
        block = (streams.spread(state["images"] % BLOCK) + rank) // BLOCK
        for number in range(int(block.max()) + 1):
            own = block == number
            some, steps = streams.take(own), state.get("steps", adapted)
            adapted = adapted + some.sizes * (state["adapting"] > 0)
            logits[own], reliable[own], state = self._answer_block(
                images[own], logits[own], known[own], novelty[own], state, some
            )
            state = self._watch_block(logits[own], signs[own], novelty[own], state, some)
            stepped |= state.get("steps", steps) > steps
        last = rank == streams.spread(streams.sizes - 1)
        state = state | {"last": streams.sum(signs * last.unsqueeze(1))}
        facts = {"gate_share": streams.mean(reliable), "stepped": stepped, "adapted": adapted}
        return Step(logits, state, facts)

    def _answer_block(
        self, images: Tensor, logits: Tensor, known: Tensor, novelty: Tensor, state: State, streams: Streams
    ) -> tuple[Tensor, Tensor, State]:
        """Return logits [n, C] of images of one block, and the state with what drifted streams learn from them.

        ``logits`` are those of the frozen model where ``known`` [n]. A bool [n] is true for images that enter the loss.
        """
        adapting = streams.spread(state["adapting"] > 0)
        missing = ~adapting & ~known
        if bool(missing.any()):
            logits[missing] = self.classifier(images[missing])
        if not bool(adapting.any()):
            return logits, torch.zeros_like(adapting), state
        reliable, new = torch.zeros_like(adapting), dict[str, Tensor]()
        if self._restores():
            selected = adapting & select_numbers(streams.spread(state["images"]) + streams.rank(), self.share)
            logits = self.tower.recompute_logits(logits, adapting & ~selected, images, state["norms"], streams)
            if bool(selected.any()):
                some = streams.take(selected)
                measured = self.tower.measure(images[selected], state["norms"], some, self._measure)  # eqs. 2, 5-8, 10
                margin, reliable[selected], logits[selected], weight, top, _ = measured.values
                weight, alone = weight * novelty[selected], torch.zeros_like(weight)
                target = adapt_margin(state["mass"], alone, top, some, self.gamma0, self.beta, self.eps)
                new["gradient"] = measured.pull_back(-weight * (target - margin).sigmoid())  # of the sum of eq. 9
                new["weight"] = some.sum(weight)
                new["gained"] = some.sum(F.one_hot(top, self.classifier.classes) * weight.unsqueeze(1))
        own, novelty = streams.take(adapting), novelty[adapting]
        answers = logits[adapting] + own.spread(state["bias"])  # eq. 15
        logits[adapting] = answers
        new["fresh"] = new["age"] = own.sum(novelty)
        new["answers"] = own.sum(answers.softmax(1) * novelty.unsqueeze(1))
        return logits, reliable, state | {key: state[key] + value for key, value in new.items()}

    def _watch_block(self, logits: Tensor, signs: Tensor, novelty: Tensor, state: State, streams: Streams) -> State:
        """Return the state after images of one block: count labels, and decide where the block has ended."""
        clarity = logits.std(1, correction=0, keepdim=True)
        sums = torch.cat([torch.ones_like(clarity), clarity, signs], 1)
        labels = streams.sum(F.one_hot(logits.argmax(1), self.classifier.classes) * novelty.unsqueeze(1))
        looking = (state["looked"] < LOOK).unsqueeze(1)
        quiet = (state["adapting"] == 0).unsqueeze(1) & ~looking
        state = state | {
            "images": state["images"] + streams.sizes,
            "block": state["block"] + streams.sum(sums * novelty.unsqueeze(1)),
            "history": state["history"] + labels * quiet,
            "labels": state["labels"] + labels * looking,
        }
        ended = (streams.sizes > 0) & (state["images"] % BLOCK == 0)
        if not bool(ended.any()):
            return state
        new = self._judge_domain(self._take_step(state))
        if bool(ended.all()):  # as always with one stream: copy no norms
            return new
        return {key: choose_rows(ended, new[key], value) for key, value in state.items()}

    def _take_step(self, state: State) -> State:
        """Return the state after a step of the streams that have gathered enough new images for one."""
        enough = (state["adapting"] > 0) & (state["fresh"] >= (state["age"] / PATIENCE).clamp(min=STEP))
        if not bool(enough.any()):
            return state
        mean = state["answers"] / state["fresh"].clamp(min=TINY).unsqueeze(1)  # u of eq. 16
        begun = state["running"].sum(1) > 0
        shares = share_counts(state["history"]) if self._given is None else self._given
        bias, running = correct_bias(  # eqs. 16, 17
            state["bias"], state["running"], begun, mean, self.eta, self.mu, self.clip, self.eps, shares
        )
        new = {"bias": bias, "running": running}
        if self._restores():
            new["mass"] = state["mass"] + state["gained"]  # eq. 12
        gathered = state.keys() & {"gradient", "weight", "fresh", "gained", "answers"}
        new |= {key: torch.zeros_like(state[key]) for key in gathered}
        new = {key: choose_rows(enough, value, state[key]) for key, value in new.items()}
        if self._restores() and bool((stepped := enough & (state["weight"] > 0)).any()):
            gradient = state["gradient"] / (state["weight"] + self.eps).unsqueeze(1).to(state["norms"].dtype)  # eq. 9
            new |= self.optim.descend(state, gradient, stepped)
        return state | new

    def _judge_domain(self, state: State) -> State:
        """Return the state after a block: has the domain changed, and is the new one quiet or drifted?"""
        count, block = state["block"][:, 0], state["block"] / state["block"][:, :1].clamp(min=TINY)
        clarity, signs = block[:, 1], block[:, 2:]
        looking, adapting = state["looked"] < LOOK, state["adapting"] > 0
        looked = state["looked"] + count * looking
        part = (count / looked.clamp(min=TINY)).unsqueeze(1)
        recent = state["recent"].lerp(signs, (count / LOOK).clamp(max=1).unsqueeze(1))
        key = choose_rows(looking, state["key"].lerp(signs, part), state["key"])
        state = state | {
            "block": torch.zeros_like(state["block"]),
            "looked": looked,
            "key": key,
            "recent": choose_rows(looking, key, recent),
            "clarity": choose_rows(looking, state["clarity"].lerp(clarity, part[:, 0]), state["clarity"]),
        }
        quiet = ~looking & ~adapting
        fade = choose_rows(quiet, 1 - count / MEMORY, torch.ones_like(count)).clamp(min=0)
        known = state["quiet_clarity"].lerp(clarity, (count / MEMORY).clamp(max=1))
        state |= {"history": state["history"] * fade.unsqueeze(1)}
        state |= {"quiet_clarity": choose_rows(quiet, known, state["quiet_clarity"])}
        state = self._restart(state, ~looking & (self._distance(state, "key") > FAR))
        return self._conclude(state, looking & (looked >= LOOK))

    def _distance(self, state: State, key: str) -> Tensor:
        """Return how far recent images are from a key [A]: the largest distance of a statistic, in variances."""
        variances = state["recent"].new_tensor(VARIANCES)
        return ((state["recent"] - state[key]).square() / variances).amax(1)

    def _restart(self, state: State, changed: Tensor) -> State:
        """Return the state of streams whose domain has ``changed`` [A]: look at the new one with the frozen model.

        A drifted stream whose images are again like its quiet ones is quiet at once.
        """
        if not bool(changed.any()):
            return state
        new = {key: value.expand_as(state[key]) for key, value in self._begin_domain().items()}
        new["adapting"] = torch.full_like(state["adapting"], self._given is not None)
        again = (state["adapting"] > 0) & (state["quiet_clarity"] > 0) & (self._distance(state, "quiet") < NEAR)
        new["looked"] = torch.where(again, state["looked"], 0)
        new["key"] = choose_rows(again, state["quiet"], torch.zeros_like(state["key"]))
        new |= {key: torch.zeros_like(state[key]) for key in ("labels", "clarity")}
        return state | {key: choose_rows(changed, value, state[key]) for key, value in new.items()}

    def _conclude(self, state: State, judged: Tensor) -> State:
        """Return the state of streams whose new domain has been looked at: quiet or drifted."""
        if not bool(judged.any()) or self._given is not None:
            return state
        clarity, before = state["clarity"], state["quiet_clarity"]
        quiet = clarity >= CLEAR * before
        replaced = (CLEAR * clarity > before).unsqueeze(1)  # the images before were bad ones: do not trust their labels
        new = {
            "adapting": (~quiet).to(state["adapting"].dtype),
            "quiet": choose_rows(quiet, state["key"], state["quiet"]),
            "quiet_clarity": torch.where(quiet, clarity, before),
            "history": choose_rows(quiet, state["labels"] + state["history"] * ~replaced, state["history"]),
            "labels": torch.zeros_like(state["labels"]),
        }
        return state | {key: choose_rows(judged, value, state[key]) for key, value in new.items()}

    def _describe(self, state: State) -> Mapping[str, Tensor]:
        return {**super()._describe(state), "adapting": state["adapting"] > 0}

    def add_labels(self, labels: Tensor, counted: Tensor, state: State, streams: Streams) -> State:
        """Count true labels as those of quiet images, in place of what the frozen model had counted for them."""
        if self._given is not None:
            return {}
        classes, known = self.classifier.classes, (counted >= 0).unsqueeze(1)
        added = streams.sum(F.one_hot(labels, classes).to(state["history"]))
        removed = streams.sum((F.one_hot(counted.clamp(min=0), classes) * known).to(state["history"]))
        first = state["quiet_clarity"] == 0  # the first look replaces the history by its labels
        return {
            key: choose_rows(rows, (state[key] - removed).clamp(min=0) + added, state[key])
            for key, rows in (("labels", first), ("history", ~first))
        }

    def phases(self) -> list[Phase]:
        adapting = (self.state["adapting"] > 0).tolist()
        looking = ((self.state["looked"] < LOOK) & (self.state["quiet_clarity"] > 0)).tolist()
        pairs = zip(adapting, looking, strict=True)
        return ["adapting" if adapts else "looking" if looks else "quiet" for adapts, looks in pairs]

    @property
    def cycle(self) -> int:
        return min(LOOK, int(1 / self.share)) if self._restores() else 1

    def fill_state(self, images: Tensor) -> None:
        mean = describe_pixels(images).mean(0).to(self.classifier.prototypes.dtype)
        full: dict[str, Any] = {
            "adapting": 1,
            "looked": LOOK,
            "key": mean,
            "recent": mean,
            "quiet_clarity": self._given is None,
        }
        self.state |= {key: torch.zeros_like(self.state[key]) + value for key, value in full.items()}


def describe_pixels(images: Tensor) -> Tensor:
    """Return nine numbers [B, 9] on the light, colour, contrast and detail of normalised images [B, 3, H, W].

    Grey is the mean of the channels. The colour differences are red - green and (red + green) / 2 - blue. The numbers
    are the means of these three, and the logarithms of six ratios: the variance of grey; roughness of grey in squares
    of 2 x 2 pixels against that variance; roughness of grey against this; its squared Laplacian against this; the
    variance of both colour differences against that of grey; roughness of red - green against its variance. Roughness
    is the mean square difference of neighbours in a row plus that in a column. 1e-5 is added before each logarithm.
    Images of other shapes are grey, with all but the last two axes averaged.
    """
    pixels = images if images.dtype == torch.float64 else images.float()
    pixels = pixels.reshape(len(pixels), -1, *(1, *pixels.shape[1:])[-2:])
    grey = pixels.mean(1)
    red, green, blue = pixels.unbind(1) if pixels.shape[1] == 3 else (grey,) * 3
    first, second = red - green, (red + green) / 2 - blue
    coarse = F.avg_pool2d(grey.unsqueeze(1), 2, ceil_mode=True).squeeze(1)
    powers = [_spread(grey), _roughness(coarse), _roughness(grey), _squared_laplacian(grey)]
    powers += [_spread(first) + _spread(second), _spread(first), _roughness(first)]
    variance, rough, fine, finest, colour, red_green, detail = torch.stack(powers).add(1e-5).log()
    means = [plane.mean((1, 2)) for plane in (grey, first, second)]
    ratios = [variance, rough - variance, fine - rough, finest - fine, colour - variance, detail - red_green]
    return torch.stack([*means, *ratios], 1)


def _spread(planes: Tensor) -> Tensor:
    return planes.flatten(1).var(1, correction=0)


def _roughness(planes: Tensor) -> Tensor:
    """Return the mean square difference of neighbours in rows, plus that in columns [B]."""
    return _mean_square(planes[:, :, 1:] - planes[:, :, :-1]) + _mean_square(planes[:, 1:] - planes[:, :-1])


def _squared_laplacian(planes: Tensor) -> Tensor:
    """Return the mean square of four times a pixel less its four neighbours, over pixels that have all four [B]."""
    rows, columns = planes[:, :, 1:-1], planes[:, 1:-1]
    around = rows[:, :-2] + rows[:, 2:] + columns[:, :, :-2] + columns[:, :, 2:]
    return _mean_square(4 * planes[:, 1:-1, 1:-1] - around)


def _mean_square(parts: Tensor) -> Tensor:
    """Return the mean square of parts [B, ...]; 0 where an image is too small to have any [B]."""
    return parts.square().flatten(1).sum(1) / max(1, parts[0].numel())


def measure_novelty(signs: Tensor, last: Tensor, begun: Tensor, streams: Streams) -> Tensor:
    """Return how new each image is beside the one before it in its stream [B]: 0 for the same, 1 for an unrelated one.

    It is the mean square difference of the pixel statistics [B, S] in units of that between two independent images, at
    most 2. The first image of a stream has 1.
    """
    order = torch.argsort(streams.index, stable=True)
    before = torch.empty_like(signs)
    before[order] = signs[order].roll(1, 0)
    starts = streams.rank() == 0
    before[starts] = streams.spread(last.to(signs.dtype))[starts]
    novelty = ((signs - before).square() / (2 * signs.new_tensor(VARIANCES))).mean(1).clamp(max=2)
    return torch.where(starts & ~streams.spread(begun), 1.0, novelty)
