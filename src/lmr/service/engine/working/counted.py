"""CountedRequest: a request of a service where every N images of a stream make a step, however they were sent."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lmr.service.engine.scheduler import Job
from lmr.service.engine.working.compute import RowAnswer
from lmr.service.engine.working.packing import WaitingImage
from lmr.service.engine.working.residents import Resident


class CountedRequest:
    """Takes the images of a request as far as the next step, one part after the other.

    More images than a step has may wait, if they were stored by a service with a larger ``--step``: the next image
    makes a step of all of them.
    """

    def __init__(self, job: Job, resident: Resident, size: int) -> None:
        self.job, self.resident, self.size = job, resident, size
        self.seq = resident.record.seq + 1
        self.waiting = list(resident.waiting)
        self.logits: list[Tensor] = []
        self.own: dict[int, int] = {}  # answers of the frozen model to images of this request
        self.earlier: dict[int, dict[int, int]] = {}  # and of requests before, by their number
        self._taken = 0
        self._last = RowAnswer(torch.empty(0))

    @property
    def is_left(self) -> bool:
        """Whether there are images that are not answered."""
        return self._taken < self.job.images

    @property
    def is_full(self) -> bool:
        """Whether enough images have come together for a step."""
        return len(self.waiting) >= self.size

    def take_part(self) -> Tensor:
        """The images up to the next step, which wait for it from now on."""
        count = max(1, self.size - len(self.waiting))
        part: Tensor = self.job.task.images[self._taken : self._taken + count]
        for image in part:
            self.waiting.append(WaitingImage(image.clone(), self.seq, self._taken))
            self._taken += 1
        return part

    def join_waiting(self) -> Tensor:
        """The images of a step."""
        return torch.stack([one.image for one in self.waiting])

    def note_step(self, outcome: RowAnswer) -> None:
        """A step was made on the waiting images."""
        for place, kind in outcome.frozen.items():
            image = self.waiting[place]
            known = self.own if image.seq == self.seq else self.earlier.setdefault(image.seq, {})
            known[image.place] = kind
        self._last = replace(outcome, events=self._last.events + outcome.events)
        self.waiting = []

    def sum_up(self) -> RowAnswer:
        """The answers to all images, with what the last step was like."""
        return replace(self._last, logits=torch.cat(self.logits), frozen=self.own)
