"""Reused: a method that answers a frame which repeats the one before it with that frame's answer.

A camera that sees a still scene sends the same picture again and again, up to the noise of its pixels. Such a frame
teaches nothing. A small copy of the last new frame is compared with each following one, so that slow changes of the
light add up until a frame is new. Two limits follow from the stream itself:

1. A frame is a *repeat* if the noise of the pixels explains its difference from the last new frame. The noise is that
   of the last 32 differences.
2. A repeat takes the answer of the last new frame if noise does not change that: if its best class leads by more than
   the lead varies between repeats, or if 32 repeats had the same label. Otherwise the present state answers it. So it
   does the 4th, 8th and 16th repeat of a frame, and each 32nd: if one has another label, no later repeat takes the
   answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.core.functional.repeats import GRID, is_repeat, measure_lead, measure_noise, shrink
from lmr.core.prediction import Prediction, State
from lmr.core.runner import choose_first
from lmr.core.state import Ranges, Start, move_together
from lmr.core.streams import StreamIds, Streams
from lmr.core.wrapper import Wrapper, unwrap

KEPT = 32  # differences from which the noise is taken
LEARNT = 8  # of these, and of leads, before an answer is reused
LOWER = 0.25  # the quantile of the noise: objects and cuts make single differences large
CHECKED, AUDIT = (4, 8, 16), 32  # repeats of a frame that are answered with the present state, and one in so many
LEADS = 32  # repeats over which the variation of the lead is averaged
JUMP = 4.0  # limits beyond which a frame shows another scene, whose leads vary in another way
SURE = 2.0  # variations by which the best class has to lead
_CPU = torch.device("cpu")
_IDLE = {"stepped": False, "finite": True}  # facts about a stream without a new frame


class _Found(NamedTuple):
    """What the frames of a batch repeat."""

    source: Tensor  # the place [B] of the frame that each one repeats; its own if it is new, -1 for an earlier batch
    number: Tensor  # [B] among the repeats of that frame, from 1; 0 for a new frame
    last: Tensor  # the place [A] of the last new frame, -1 for an earlier batch


@dataclass(eq=False, repr=False)
class Reused(Wrapper):
    """A method in which a frame that repeats the last new one of its stream takes the answer of that one.

    ``limit`` is a factor of both limits; with 0 every frame is answered on its own. ``Prediction.reused`` says which
    answers were reused. Put it next to the method: a watch and labels around it see all frames.

    Examples:
        >>> import lmr, torch
        >>> method = lmr.Reused(lmr.create("zeroshot", lmr.load().classifier(["cat", "dog"])))
        >>> frame = torch.randn(1, 3, 32, 32).repeat(100, 1, 1, 1)
        >>> _ = method.step(frame)  # the noise of the pixels is learnt first
        >>> bool(method.step(frame).reused.float().mean() > 0.9)
        True
    """

    prefix = "_reuse"  # a method without this wrapper leaves such tensors out

    limit: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.limit, int | float) or not 0 <= self.limit < math.inf:
            raise LmrError(f"Expected a limit of reuse that is finite and not negative, got {self.limit!r}.")
        super().__post_init__()

    def begin(self) -> Start:
        """Return the memory of a new stream, which has no frame yet."""
        like = self.classifier.prototypes
        zero = like.new_zeros(1, dtype=torch.float32)
        return {
            "frame": zero.half().repeat(3, GRID, GRID),  # small copy of the last new frame
            "answer": like.new_zeros(self.classifier.classes + 1),  # its logits, and its score with a threshold
            "there": 0,  # 1 if there is such a frame with a finite answer
            "noise": zero.repeat(KEPT),  # of the last differences
            "compared": 0,  # frames that were compared
            "repeats": 0,  # of the last new frame
            "wavers": 0,  # 1 if one of them had another label
            "variation": zero[0],  # mean square difference of the leads of a repeat and of the frame that it repeats
            "leads": 0,  # such differences, up to LEADS
        }

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        """Return the ranges of counts and of squares."""
        own: Ranges = {
            "there": (0, 1),
            "wavers": (0, 1),
            "leads": (0, LEADS),
            "noise": (0, None),
            "variation": (0, None),
        }
        return own | {"compared": (0, 2**53), "repeats": (0, 2**53)}

    def step(self, images: Tensor, streams: StreamIds | Streams = None) -> Prediction:
        """Adapt on the new frames of this batch, and answer all."""
        if not self.limit:
            return self.method.step(images, streams)
        with self.session():
            images, batch = self.check(images, streams)
            with self.transaction(batch.active):
                memory = {key: value.clone() for key, value in self._take(batch).items()}
                answer = memory.pop("answer")
                frames = {"frames": shrink(choose_first(unwrap(self), images)), "index": batch.index}
                memory = move_together(memory | frames, _CPU)
                here = Streams(torch.arange(batch.count), memory.pop("index"))
                found = self._compare(memory.pop("frames"), memory, here)
                given = self._answer(images, batch, found, answer, memory, here)
                renewed = found.last >= 0
                if renewed.any():
                    own = _join(given)[found.last[renewed]]
                    finite = own.isfinite().all(1)
                    answer[renewed] = torch.where(finite.unsqueeze(1), own, 0)
                    memory["there"][renewed] = finite.cpu().long()
                self.put({**memory, "answer": answer}, batch.active)
                return given

    def predict(self, images: Tensor, streams: StreamIds | Streams = None) -> Prediction:
        """Answer with the present state and change nothing; no answer is reused."""
        answer = self.method.predict(images, streams)
        return replace(answer, reused=torch.zeros(len(answer.logits), dtype=torch.bool))

    def _compare(self, frames: Tensor, memory: State, streams: Streams) -> _Found:
        """Find what each frame repeats, one frame of each stream after the other; the memory gets all but answers."""
        source, last = torch.arange(len(frames)), torch.full((streams.count,), -1)
        number = torch.zeros_like(source)
        rank = streams.rank()
        for k in range(int(rank.max()) + 1):
            now = (rank == k).nonzero()[:, 0]
            rows = streams.index[now]
            difference = frames[now].float() - memory["frame"][rows].float()
            there, count = memory["there"][rows], memory["compared"][rows]
            memory["noise"][rows, count % KEPT] = measure_noise(difference)
            memory["compared"][rows] = count = count + there
            noise = _find_lower(memory["noise"][rows], count.clamp(max=KEPT))
            repeats = (there > 0) & (count >= LEARNT) & is_repeat(difference, self.limit * noise)
            jumps = ~is_repeat(difference, JUMP * self.limit * noise)
            memory["leads"][rows[jumps]] = 0
            source[now[repeats]] = last[rows[repeats]]
            memory["repeats"][rows] = number[now] = torch.where(repeats, memory["repeats"][rows] + 1, 0)
            new, rows = now[~repeats], rows[~repeats]
            memory["frame"][rows], memory["there"][rows], last[rows] = frames[new], 1, new
        return _Found(source, number, last)

    def _answer(
        self, images: Tensor, batch: Streams, found: _Found, before: Tensor, memory: State, here: Streams
    ) -> Prediction:
        """Return the answers to a batch: new frames adapt; a repeat takes an answer, or is answered anew.

        ``before`` has the answers [A, C + 1] to the frames of earlier batches.
        """
        new = found.number == 0
        if new.all():
            memory["wavers"].zero_()
            answer = self.method.step(images, batch)
            return replace(answer, reused=torch.zeros_like(new))
        device, ids = images.device, batch.repeat(batch.active)
        info, columns = _IDLE, before.new_zeros(len(images), before.shape[1])
        if new.any():
            places = new.nonzero()[:, 0].to(device)
            some = self.method.step(images[places], ids[places])
            info, columns[places] = some.info, _join(some).to(columns.dtype)
        repeats = (~new).nonzero()[:, 0]
        moved = move_together({"repeats": repeats, "source": found.source[repeats]}, device)
        places, source = moved["repeats"], moved["source"].unsqueeze(1)
        columns[places] = taken = torch.where(source < 0, before[batch.index[places]], columns[source[:, 0]])
        label = taken[:, :-1].argmax(1)
        lead = measure_lead(taken[:, :-1], label)
        again = ~self._is_sure(lead.cpu(), repeats, found, memory, here)
        memory["wavers"][found.last >= 0] = 0
        if again.any():
            asked = places[again.to(device)]
            some = self.method.predict(images[asked], ids[asked])
            columns[asked] = _join(some).to(columns.dtype)
            moved_lead = measure_lead(some.logits, label[again.to(device)]) - lead[again.to(device)]
            own = repeats[again]
            _add_leads(moved_lead.square().cpu().float(), memory, here.take(own))
            differs = (some.logits.argmax(1) != label[again.to(device)]).cpu()
            differs &= found.source[own] == found.last[here.index[own]]
            memory["wavers"][here.index[own[differs]]] = 1
        reused = ~new
        reused[repeats[again]] = False
        return self._make_prediction(columns, self._describe(info, new, batch, here), reused)

    def _is_sure(self, lead: Tensor, repeats: Tensor, found: _Found, memory: State, here: Streams) -> Tensor:
        """Return whether the frames ``repeats`` [R] take an answer that leads by ``lead`` [R]."""
        number, streams = found.number[repeats], here.take(repeats)
        wanted = SURE * streams.repeat(memory["variation"]).sqrt()
        enough = (streams.repeat(memory["leads"]) >= LEARNT) & (self.limit * lead >= wanted) | (number > AUDIT)
        wavers = (streams.repeat(memory["wavers"]) > 0) & (found.source[repeats] < 0)
        return enough & ~wavers & (number % AUDIT > 0) & ~torch.isin(number, torch.tensor(CHECKED))

    def _make_prediction(self, columns: Tensor, info: dict[str, Any], reused: Tensor) -> Prediction:
        logits, threshold = columns[:, :-1], unwrap(self).unknown
        scores = None if threshold is None else columns[:, -1]
        unknown = None if scores is None or threshold is None else scores < threshold
        return Prediction(logits, info, self.classifier.names, scores, unknown, reused)

    def _describe(self, info: Mapping[str, Any], new: Tensor, batch: Streams, here: Streams) -> dict[str, Any]:
        """Return the info of a batch with repeats from that of its new frames; other streams have not stepped."""
        info, numbers = dict(info), batch.active.tolist()
        if self.streams > 1:
            info["streams"] = {number: dict(_IDLE) for number in numbers} | info.get("streams", {})
        phases = self.phases()
        if phases is not None:
            repeats = (here.sizes - here.take(new).sum(torch.ones(int(new.sum()), dtype=torch.int64))).tolist()
            info["adapted"] = info.get("adapted", 0) + sum(
                count for number, count in zip(numbers, repeats, strict=True) if phases[number] == "adapting"
            )
        return info

    def _carry_own(self, own: Mapping[str, Tensor], new: Reused) -> State:
        """Return new memories: an answer is not one for other classes."""
        return new._begin_own(len(own["there"])) if own else {}


def _join(answer: Prediction) -> Tensor:
    """Return logits and scores, 0 where there are none: [B, C + 1]."""
    scores = answer.logits.new_zeros(len(answer.logits)) if answer.scores is None else answer.scores
    return torch.cat([answer.logits.detach(), scores.to(answer.logits.dtype).unsqueeze(1)], 1)


def _find_lower(noise: Tensor, count: Tensor) -> Tensor:
    """Return the lower quartile [A] of the first ``count`` [A] numbers in each row [A, KEPT]; not less than 1."""
    valid = torch.arange(noise.shape[1]) < count.unsqueeze(1)
    ordered = noise.masked_fill(~valid, torch.inf).sort(1).values
    return ordered.gather(1, (LOWER * (count - 1).clamp(min=0)).long().unsqueeze(1)).squeeze(1)


def _add_leads(squares: Tensor, memory: State, streams: Streams) -> None:
    """Add square differences [R] of leads to the mean of each stream."""
    squares = torch.where(squares.isfinite(), squares, 0)
    count, more = memory["leads"], streams.sizes
    total = memory["variation"] * count + streams.sum(squares)
    memory["variation"] = total / (count + more).clamp(min=1)
    memory["leads"] = (count + more).clamp(max=LEADS)
