"""The loop without a service: ``method.step`` on prepared tensors, in this process, and the processor time it takes."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lab.load.load_images import draw_pixels
from lab.load.load_models import LoadModel, make_method
from lmr.apps.serve import keep_freed_memory
from lmr.models import Backbone


@dataclass(frozen=True)
class ImageCost:
    """Images, and the processor and wall seconds for them."""

    images: int
    cpu_seconds: float
    seconds: float

    @property
    def per_cpu_second(self) -> float:
        """Images per processor second."""
        return self.images / self.cpu_seconds if self.cpu_seconds else math.nan


def sum_costs(costs: Sequence[ImageCost]) -> ImageCost:
    """All of them together."""
    return ImageCost(
        sum(cost.images for cost in costs),
        sum(cost.cpu_seconds for cost in costs),
        sum(cost.seconds for cost in costs),
    )


class BareLoop:
    """Steps of ``streams`` streams with ``each`` images, with the spec and watch that the service has."""

    def __init__(self, model: LoadModel, backbone: Backbone, streams: int, each: int, spec: str, watched: bool) -> None:
        keep_freed_memory()  # as the service does
        self._method = make_method(model, backbone, streams, spec, watched)
        count = streams * each
        pixels = torch.stack([torch.from_numpy(draw_pixels(number, model.side).copy()) for number in range(count)])
        self._images = backbone.preprocess_pixels(pixels)
        self._ids = torch.arange(streams).repeat_interleave(each)
        self._step()  # what happens once is not measured

    def run(self, seconds: float) -> ImageCost:
        """Steps for at least so many seconds."""
        began, cpu, images = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - began < seconds:
            self._step()
            images += len(self._images)
        return ImageCost(images, time.process_time() - cpu, time.perf_counter() - began)

    def _step(self) -> None:
        self._method.step(self._images, streams=self._ids)
