"""Labelled: a method that a person corrects with a few labels.

The labels of a stream give an offset [C] that is added to the logits of the method (``functional/offset.py``). They
hold for the images of their domain: a label of an image in fog corrects answers in fog, and says something about the
class shares everywhere. A label that comes later than its answer is found by the number of the image in its stream.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.core.functional.offset import Estimate, estimate_accuracy, learn_offset
from lmr.core.functional.pixels import VARIANCES, describe_pixels
from lmr.core.prediction import AdaptedParameters, Prediction, State
from lmr.core.runner import choose_first, find_streams, read_whole
from lmr.core.state import Ranges, Start
from lmr.core.streams import StreamIds, Streams
from lmr.core.wrapper import Wrapper, unwrap

MOST = 128  # labels that a stream keeps; the oldest goes first
RECENT = 128  # last images of a stream to which a label can still be given
ASKED = 32  # images that somebody was asked to label, which are remembered for longer
AROUND = 32  # images over which pixel statistics are averaged
FAR = 1.0  # a label is of another domain if the mean of a pixel statistic differs by this many variances
PER_STEP = ("seen", "recent_logits", "recent_pixels")  # own tensors that every step changes
_SURE = 16  # images from which such a mean is sure; over fewer, it may differ by more
_LOWEST = -64.0  # a kept logit below the largest one: of a class that did not exist, or of an image without an answer


@dataclass(eq=False, repr=False)
class Labelled(Wrapper):
    """A method whose answers are corrected by a few labels, stream by stream.

    Without labels its answers are those of the method. ``learn_labels`` takes labels of images, or of the last images
    that a stream has answered. Put it around a watch, ``Labelled(Watched(method))``: what a person said is not rolled
    back.

    Examples:
        >>> import lmr, torch
        >>> method = lmr.Labelled(lmr.create("zeroshot", lmr.load().classifier(["cat", "dog", "ship"])))
        >>> _ = method.step(torch.randn(8, 3, 32, 32))
        >>> method.learn_labels([0, 1, 5], [2, 2, 2])  # three of the eight images are ships
        >>> method.count_used()
        [3]
        >>> method.estimate().labels
        3
    """

    prefix: ClassVar[str] = "labels"
    _taught: set[int] | None = dataclasses.field(default=None, init=False)  # streams with labels; None: to be counted

    def begin(self) -> Start:
        """Return the tensors of a new stream, without labels.

        Logits are kept relative to the largest one. ``truth`` is 1 at the class of a label, so that it follows the
        names of classes.
        """
        like, pixels = self.classifier.prototypes, len(VARIANCES)
        classes = self.classifier.classes
        return {
            "offset": like.new_zeros(classes),
            "seen": 0,  # images of the stream
            "taught": 0,  # labels ever
            "logits": like.new_full((MOST, classes), _LOWEST, dtype=torch.float16),
            "truth": like.new_zeros((MOST, classes), dtype=torch.uint8),
            "number": torch.full((MOST,), -1, device=like.device),  # of the labelled image in the stream; -1: none
            "pixels": like.new_zeros((MOST, pixels), dtype=torch.float32),  # mean pixel statistics around the image
            "around": torch.ones(MOST, dtype=torch.int64, device=like.device),  # images of that mean
            "used": torch.zeros(MOST, dtype=torch.uint8, device=like.device),  # labels of the present domain
            "asked": torch.full((ASKED,), -1, device=like.device),  # their numbers
            "asked_logits": like.new_full((ASKED, classes), _LOWEST, dtype=torch.float16),
            "asked_pixels": like.new_zeros((ASKED, pixels), dtype=torch.float32),
            "asked_around": torch.ones(ASKED, dtype=torch.int64, device=like.device),
            "recent_logits": like.new_full((RECENT, classes), _LOWEST, dtype=torch.float16),
            "recent_pixels": like.new_zeros((RECENT, pixels), dtype=torch.float32),
        }

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        """Return the ranges of counts, flags and logits."""
        most, kept = 2**53, (_LOWEST, 0)
        own: Ranges = dict.fromkeys(("logits", "recent_logits", "asked_logits"), kept)
        own |= {"seen": (0, most), "taught": (0, most), "truth": (0, 1), "used": (0, 1)}
        own |= dict.fromkeys(("number", "asked"), (-1, most)) | dict.fromkeys(("around", "asked_around"), (1, most))
        return own

    def adjust(self, answer: Prediction, state: State, streams: Streams) -> Tensor:
        """Add the offset of each stream that has one."""
        if not self._list_taught():
            return answer.logits
        return answer.logits + streams.repeat(state["offset"]).to(answer.logits.dtype)

    def adjust_parameters(self, parameters: AdaptedParameters, state: State) -> AdaptedParameters:
        """Add the offset to that of the method."""
        own = state["offset"][0].clone()
        return dataclasses.replace(parameters, offset=own if parameters.offset is None else parameters.offset + own)

    def put(self, tensors: Mapping[str, Tensor], rows: Tensor) -> None:
        """Make these tensors the own ones of the streams ``rows``."""
        super().put(tensors, rows)
        if "taught" in tensors:
            self._taught = None

    def step(self, images: Tensor, streams: StreamIds | Streams = None) -> Prediction:
        """Adapt on this batch and answer it with the labels so far."""
        with self.session():
            images, batch = self.check(images, streams)
            with self.transaction(batch.active):
                biased = self._find_biased(batch)
                answer = self.method.step(images, batch)
                logits = self.adjust(answer, self._take(batch), batch)
                with torch.no_grad():
                    self._note(images, answer.logits, batch, biased)
                return dataclasses.replace(answer, logits=logits)

    def learn_labels(
        self,
        images: Tensor | Sequence[int],
        labels: Sequence[int] | Tensor,
        streams: StreamIds = None,
        *,
        replace_counts: bool = True,
    ) -> None:
        """Learn true labels, the numbers [n] of classes, of images of the ``streams`` [n].

        ``images`` are preprocessed images [n, ...], or their numbers [n] in their stream, from 0, where they are among
        its last RECENT images or were remembered. Another label of an image replaces the first. Nothing changes if one
        does not fit. ``replace_counts``: a method that counts class shares has counted its own answers to these images.
        """
        with self.session(), torch.no_grad():
            device = self.classifier.device
            truth = read_whole(labels, 0, self.classifier.classes, "numbers of classes").to(device)
            if isinstance(images, Tensor) and images.is_floating_point():
                given, batch = self.check(images, streams)
                logits = _keep(self.method.predict(given, batch).logits)
                means = batch.mean(describe_pixels(choose_first(unwrap(self), given)).float())
                pixels, around = batch.repeat(means), batch.repeat(batch.sizes)
                number = torch.full_like(truth, -1)
                self._check_count(truth, len(logits))
            else:
                number = read_whole(images, 0, 2**53, "numbers of images").to(device)
                self._check_count(truth, len(number))
                ids = [0] * len(number) if streams is None and self.streams == 1 else streams
                batch = find_streams(read_whole(ids, 0, self.streams, "stream ids"), device)
                self._check_count(truth, len(batch.index))
                row = batch.repeat(batch.active)
                self._check_recent(number, row)
                logits, pixels, around = self._recall(number, row)
            counted = torch.where((logits.amax(1) > _LOWEST) & replace_counts, logits.argmax(1), -1)
            for k, stream in enumerate(batch.active.tolist()):
                own = batch.index == k
                new = {"logits": logits[own], "number": number[own], "pixels": pixels[own], "around": around[own]}
                before = self._learn_row(stream, truth[own], {key: value.cpu() for key, value in new.items()})
                # An earlier label of the same image was counted before; it is replaced there too.
                replaced = torch.where(before >= 0, before, counted[own])
                unwrap(self).count_labels(truth[own], [stream] * int(own.sum()), replaced)

    def remember(self, numbers: Sequence[int], stream: int = 0) -> None:
        """Remember recent images of a stream, by their numbers, until ASKED others: a label may come later."""
        with self.session(), torch.no_grad():
            number = read_whole(numbers, 0, 2**53, "numbers of images").to(self.classifier.device)
            row = self.find_rows(stream)
            self._check_recent(number, row.expand(len(number)))
            found = self._recall(number, row.expand(len(number)))
            own = {key: self.own[key][row].clone() for key in ("asked", "asked_logits", "asked_pixels", "asked_around")}
            for which, *values in zip(number.tolist(), *found, strict=True):
                if which not in own["asked"][0].tolist():
                    place = int(own["asked"][0].argmin())  # the oldest image goes first
                    for key, value in zip(own, (which, *values), strict=True):
                        own[key][0, place] = value
            self.put(own, row)

    def list_learnable(self, numbers: Sequence[int], stream: int = 0) -> list[bool]:
        """Return of which images of a stream, by their numbers, a label can still be learnt."""
        with self.session():
            number = read_whole(numbers, 0, 2**53, "numbers of images").to(self.classifier.device)
            found: list[bool] = (~self._find_gone(number, self.find_rows(stream).expand(len(number)))).tolist()
            return found

    def count_used(self) -> list[int]:
        """Return for each stream the number of labels that correct it now: those of its present domain."""
        if not self._list_taught():
            return [0] * self.streams
        return [int(count) for count in self.own["used"].sum(1).tolist()]

    def estimate(self, stream: int = 0) -> Estimate | None:
        """Estimate the accuracy of a stream in its present domain from its labels; None without any."""
        with self.session(), torch.no_grad():
            stream = int(self.find_rows(stream)[0])
            own = self._read(stream)
            used = own["used"].bool() & _find_known(own)  # a class may be gone since
            if not bool(used.any()):
                return None
            known, answers = _find_known(own), self._find_answers(stream, own)
            elsewhere = own["truth"][known & ~used].sum(0)
            return estimate_accuracy(own["logits"][used].float(), own["truth"][used].argmax(1), answers, elsewhere)

    # The labels of one stream.

    def _take(self, batch: Streams) -> State:
        """Return the offsets alone: ``adjust`` needs no more."""
        return {"offset": self.own["offset"][batch.active]}

    def _check_own(self, own: State, rows: int) -> State:
        """Return the own tensors of a state; one of its last images alone has no labels."""
        return super()._check_own(self._begin_own(rows) | own if own.keys() == {*PER_STEP} else own, rows)

    def _list_taught(self) -> set[int]:
        if self._taught is None:
            self._taught = set(self.own["taught"].nonzero().flatten().tolist())
        return self._taught

    def _read(self, stream: int) -> State:
        """Return copies of the own tensors of one stream, on the CPU."""
        return {key: value[stream].detach().cpu().clone() for key, value in self.own.items()}

    def _note(self, images: Tensor, logits: Tensor, batch: Streams, biased: set[int]) -> None:
        """Keep what a label of these images would need, and fit again where other labels or another d0 count now.

        ``biased`` are the streams with labels that had a bias of the method before its step.
        """
        rank, sizes = batch.rank(), batch.sizes
        seen = self.own["seen"][batch.active]
        last = rank >= batch.repeat(sizes) - RECENT  # of a larger batch only the last images
        place = ((batch.repeat(seen) + rank) % RECENT)[last]
        new = {key: self.own[key][batch.active].clone() for key in ("recent_logits", "recent_pixels")}
        index = batch.index[last]
        new["recent_logits"][index, place] = _keep(logits)[last]
        new["recent_pixels"][index, place] = describe_pixels(choose_first(unwrap(self), images)).float()[last]
        self.put(new | {"seen": seen + sizes}, batch.active)
        if taught := self._list_taught():
            flipped = biased ^ self._find_biased(batch)
            for stream in batch.active.tolist():
                if stream in taught:
                    own = self._read(stream)
                    if stream in flipped or not torch.equal(_find_used(own), own["used"].bool()):
                        self._refit(stream, own)

    def _learn_row(self, stream: int, truth: Tensor, new: State) -> Tensor:
        """Add labels [n] of one stream; return the labels [n] that they replace, -1 where there was none."""
        own = self._read(stream)
        before = torch.full_like(truth, -1)
        for k, (which, kind) in enumerate(zip(new["number"].tolist(), truth.tolist(), strict=True)):
            same = (own["number"] == which).nonzero().flatten() if which >= 0 else own["number"].new_zeros(0)
            if len(same):
                place = int(same[0])
                before[k] = int(own["truth"][place].argmax())
            else:
                place = int(own["taught"]) % MOST
                own["taught"] += 1
            own["truth"][place] = 0
            own["truth"][place, kind] = 1
            for key, values in new.items():
                own[key][place] = values[k]
        self._refit(stream, own)
        return before

    def _refit(self, stream: int, own: State) -> None:
        """Fit the offset of a stream to its labels, and commit both."""
        used, known = _find_used(own), _find_known(own)
        elsewhere, answers = own["truth"][known & ~used].sum(0), self._find_answers(stream, own)
        logits, labels = own["logits"][used].float(), own["truth"][used].argmax(1)
        own["used"] = used.to(torch.uint8)
        own["offset"] = learn_offset(logits, labels, answers, elsewhere).to(own["offset"].dtype)
        self.put({key: value.unsqueeze(0) for key, value in own.items()}, self.find_rows(stream))

    def _find_biased(self, batch: Streams) -> set[int]:
        """Return the streams of a batch that have labels, and whose bias the method corrects now."""
        taught = self._list_taught()
        return {stream for stream in taught.intersection(batch.active.tolist()) if self._is_biased(stream)}

    def _is_biased(self, stream: int) -> bool:
        offset = unwrap(self).logit_offset()
        return offset is not None and bool(offset[stream].any())

    def _find_answers(self, stream: int, own: State) -> Tensor | None:
        """Return logits of images of the present domain; None while the method corrects the bias of the stream."""
        if self._is_biased(stream):
            return None
        seen = int(own["seen"])
        last = [number % RECENT for number in range(max(0, seen - RECENT), seen)]
        near: list[int] = []
        now = _average_last(own)
        for end in range(len(last), 0, -AROUND):
            part = last[max(0, end - AROUND) : end]
            if not _is_near(own["recent_pixels"][part].mean(0), now, torch.tensor(min(len(part), len(last)))):
                break
            near += part
        return own["recent_logits"][near].float()

    # Checks.

    def _check_count(self, truth: Tensor, images: int) -> None:
        if len(truth) != images:
            raise LmrError(f"Expected a label for each of {images} images, got {len(truth)}.")

    def _check_recent(self, number: Tensor, row: Tensor) -> None:
        seen, gone = self.own["seen"][row], self._find_gone(number, row)
        if bool(gone.any()):
            place = int(gone.nonzero()[0])
            raise LmrError(
                f"Image {int(number[place])} of stream {int(row[place])} is not among its last {RECENT} images, of "
                f"{int(seen[place])} so far; label a later one, or give the image itself."
            )

    def _find_gone(self, number: Tensor, row: Tensor) -> Tensor:
        """Return which images [n] of streams are not remembered, or were never seen."""
        seen, asked = self.own["seen"][row], (self.own["asked"][row] == number.unsqueeze(1)).any(1)
        return (number >= seen) | ((number < seen - RECENT) & ~asked)

    def _recall(self, number: Tensor, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits [n, C] of images, and mean pixel statistics [n, S] around each, of so many images [n]."""
        logits, found, counts = [], [], []
        for which, stream in zip(number.tolist(), row.tolist(), strict=True):
            asked = (self.own["asked"][stream] == which).nonzero().flatten().tolist()
            if asked:
                logits.append(self.own["asked_logits"][stream, asked[0]])
                found.append(self.own["asked_pixels"][stream, asked[0]])
                counts.append(int(self.own["asked_around"][stream, asked[0]]))
                continue
            seen = int(self.own["seen"][stream])
            first, end = max(0, seen - RECENT, which - AROUND // 2), min(seen, which + AROUND // 2)
            places = [place % RECENT for place in range(first, end)]
            logits.append(self.own["recent_logits"][stream, which % RECENT])
            found.append(self.own["recent_pixels"][stream, places].mean(0))
            counts.append(len(places))
        return torch.stack(logits), torch.stack(found), torch.tensor(counts)


def _keep(logits: Tensor) -> Tensor:
    """Return logits [B, C] in half precision, relative to the largest; all at the lowest where they are not finite."""
    wide = logits.detach().float()
    relative = (wide - wide.amax(1, keepdim=True)).nan_to_num(nan=_LOWEST).clamp(_LOWEST, 0)
    return torch.where(wide.isfinite().any(1, keepdim=True), relative, _LOWEST).half()


def _find_known(own: State) -> Tensor:
    """Return the places [MOST] that hold the label of a class, with an answer."""
    return (own["truth"] > 0).any(1) & (own["logits"] > _LOWEST).any(1)


def _find_used(own: State) -> Tensor:
    """Return the places [MOST] of labels of the present domain; of a stream without images, all."""
    known = _find_known(own)
    seen = int(own["seen"])
    return known & _is_near(own["pixels"], _average_last(own), own["around"].clamp(max=seen)) if seen else known


def _average_last(own: State) -> Tensor:
    """Return the mean pixel statistics [S] of the last images."""
    seen = int(own["seen"])
    return own["recent_pixels"][[number % RECENT for number in range(max(0, seen - AROUND), seen)]].mean(0)


def _is_near(pixels: Tensor, others: Tensor, images: Tensor) -> Tensor:
    """Return whether mean pixel statistics are of one domain; ``images`` is the smaller number that was averaged."""
    limit = FAR * (_SURE / images).clamp(min=1)
    return ((pixels - others).square() / pixels.new_tensor(VARIANCES)).amax(-1) <= limit
