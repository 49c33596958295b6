"""ScaleOptions: the streams and machines of a calculation, validated once."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from lmr.core.errors import LmrError
from lmr.service.settings import Durability, ServiceSettings

MOST_STREAMS = 10**10


@dataclass(frozen=True)
class ScaleOptions:
    """The streams, the model, the method and the machines; the text at a field is the help of its option."""

    streams: int  # streams, such as cameras; 1e6 is a million
    fps: float  # images per second of each stream
    model: str  # an architecture such as ViT-B-16, or photo or pocket, which come with lmr
    gpu_tflops: float  # TFLOP/s that an accelerator reaches at most, in the precision that is used
    classes: int = 1000  # classes
    method: str = "lmr"  # such as lmr or "lmr(share=0.25)"
    images_per_request: int = 1  # images of a request, which make one step and one commit
    image_kb: float = 50.0  # kB of an image file
    answer_kb: float = 1.0  # kB of an answer
    learning: float = 1.0  # share of the images that pass the method's gate and need the backward
    utilisation: float = 0.4  # share of --gpu-tflops that a step reaches
    overhead_ms: float = 10.0  # fixed time of a step
    load: float = 0.7
    """share of each resource that is planned to be used; the rest is for chance and for unequal replicas"""
    max_batch: int = ServiceSettings.max_batch  # images in a batch at most
    max_step_ms: float = ServiceSettings.max_step_ms  # the longest step
    max_wait_ms: float = ServiceSettings.max_wait_ms  # time that an idle replica waits for more requests
    durability: Durability = ServiceSettings.durability
    """as in 'lmr serve': commit before every answer, or in intervals"""
    interval: float = ServiceSettings.interval_s  # seconds between commits with --durability interval
    commit_ms: float = 4.0  # fixed time of a commit
    gpus_per_machine: int = 8  # accelerators, each with a replica
    disk_mb_s: float = 2000.0  # MB that the disk of a machine writes in a second
    network_gbit: float = 25.0  # Gbit/s of a machine in each direction
    memory_gb: float = 40.0  # memory of an accelerator that is left for the states of streams
    virtual_nodes: int = 100
    """places of a replica on the hash ring; more make replicas more equal (default: 100, as Ray Serve has)"""
    watch: Literal["on", "off"] = "off"
    """count the memory of a watch of every stream (default: off; the table shows it)"""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, str):
                continue
            low = 0.0 if item.name in _MAY_BE_ZERO else math.ulp(0.0)
            high = 1.0 if item.name in _SHARES else math.inf
            if not low <= value <= high or math.isinf(value):
                wanted = "above 0 and at most 1" if item.name in _SHARES else "positive and finite"
                wanted = "from 0 to 1" if item.name == "learning" else wanted
                wanted = "finite and not negative" if low == 0 and high > 1 else wanted
                raise LmrError(f"Expected --{item.name.replace('_', '-')} to be {wanted}, got {value:g}.")
        if self.streams > MOST_STREAMS:
            raise LmrError(f"Expected at most {MOST_STREAMS:.0e} streams, got {self.streams:.3g}.")
        if self.classes < 2:
            raise LmrError(f"Expected at least two classes, got {self.classes}.")
        if self.images_per_request > self.max_batch:
            raise LmrError(
                f"A request of {self.images_per_request} images does not fit into a batch of {self.max_batch}; raise "
                "--max-batch or lower --images-per-request."
            )

    @property
    def requests_per_second(self) -> float:
        """Return the requests of all streams."""
        return self.streams * self.fps / self.images_per_request

    def find_step_seconds(self, images: float, seconds_per_image: float) -> float:
        """Return the seconds of a step: a fixed time, and a time for each image."""
        return self.overhead_ms / 1000 + images * seconds_per_image

    def make_settings(self, rows: int) -> ServiceSettings:
        """Return the settings of each replica; its queue holds at least four full batches."""
        plain = ServiceSettings()
        return ServiceSettings(
            resident=rows,
            max_batch=self.max_batch,
            max_step_ms=self.max_step_ms,
            max_wait_ms=self.max_wait_ms,
            max_images=max(self.images_per_request, 1),
            queue_images=max(plain.queue_images, 4 * self.max_batch),
            durability=self.durability,
            interval_s=self.interval,
        )


_MAY_BE_ZERO = ("learning", "overhead_ms", "max_wait_ms", "interval", "commit_ms", "image_kb", "answer_kb")
_SHARES = ("learning", "utilisation", "load")
