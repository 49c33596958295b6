"""SizedMethod: the operations and the state of a method on a model of a given size, counted without weights.

The tower of a named architecture is built on torch's meta device, which allocates nothing. The state of a stream
depends on the norms alone, so the method is created on a tower that has only these, and its state is measured.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import nn

from lmr.apps.serve import create_served
from lmr.bench.flops import count_passes_of_image
from lmr.core.bases.norms import NormMethod
from lmr.core.card import Tower
from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.method import Method
from lmr.core.passes import Passes, count_passes
from lmr.core.registry import find_addressed
from lmr.models import load
from lmr.models.catalog import EMBEDDED_MODELS, OPENAI_SPELLINGS
from lmr.models.towers.architectures import find_architecture
from lmr.models.towers.image import VisionTower
from lmr.watch.settings import WatchSettings

SCALE_VALUES = 256  # numbers that share one float32 scale in an 8-bit form


@dataclass(frozen=True)
class SizedMethod:
    """A method on a model: operations of an image in a step, and bytes of a stream's state."""

    model: str
    spec: str
    classes: int
    passes: Passes
    forward_flops: float  # of one image through the frozen model
    flops: float  # of one image in a step
    trained: int  # numbers that a stream adapts
    tensors: dict[str, int]  # bytes of each tensor of a stream
    moments: int  # numbers in the moments of the optimiser
    stored_bytes: int  # the file of a stream's state

    @property
    def memory_bytes(self) -> int:
        """Return the bytes of a resident stream."""
        return sum(self.tensors.values())

    @property
    def watch_bytes(self) -> int:
        """Return the most that the snapshots of a watch with default settings add to a stream without rollbacks.

        After a rollback, its undo is added. Reference images are not counted: those of all streams of a replica have
        a fixed budget.
        """
        watch = WatchSettings()
        return min(watch.snapshots * self.memory_bytes, int(watch.snapshot_mb * 1e6))

    @property
    def small_moments_bytes(self) -> float:
        """Return the bytes of the file with moments of 8 bits, and a scale for each ``SCALE_VALUES`` of them."""
        return self.stored_bytes - self.moments * (3 - 4 / SCALE_VALUES)


@functools.cache  # a plan for fewer streams needs the same counts
def size_method(model: str, spec: str, classes: int, learning: float = 1.0, images: int = 1) -> SizedMethod:
    """Count the cost of a step of the method if a share ``learning`` of the images passes its gate.

    ``images`` is the number of images of one stream in a step.
    """
    full, lean = _build_towers(model)
    generator = torch.Generator().manual_seed(0)
    prototypes = torch.randn(classes, full.config.features, generator=generator)
    side = full.config.resolution
    _check_streams(spec)
    method = create_served(spec, ZeroShot(lean, prototypes, input_shape=(3, side, side)), 1)
    passes = _count_passes(method, learning, images)
    if passes is None or passes.text_forwards or passes.text_backwards:
        raise LmrError(f"The arithmetic of {method.name} in the image tower is not known; choose another method.")
    return SizedMethod(
        model=model,
        spec=method.spec,
        classes=classes,
        passes=passes,
        forward_flops=count_passes_of_image(full, Passes(forwards=1), classes, needs_images=False),
        flops=count_passes_of_image(full, passes, classes, needs_images=method.needs_images),
        trained=method.trainable,
        tensors={key: value.numel() * value.element_size() for key, value in method.state.items()},
        moments=_count_moments(method),
        stored_bytes=len(method.dump([0])),
    )


def _count_passes(method: Method, learning: float, images: int) -> Passes | None:
    """Count the passes of a step if a share ``learning`` of the images passes the gate of a gated method."""
    passes = count_passes(method, images)
    if passes is None or not method.card.gated:
        return passes
    forwards = passes.forwards if learning else 1.0  # a batch in which nothing learns is not sent again
    return replace(passes, forwards=forwards, backwards=learning * passes.backwards)


def _check_streams(spec: str) -> None:
    """Refuse a method that cannot serve many streams, or that adapts the text tower.

    The service itself refuses a method whose state grows.
    """
    kind = find_addressed(spec)
    if Tower.TEXT in kind.towers:
        raise LmrError(
            f"{kind.name} adapts the text tower, which is not counted here; choose a method that adapts the image "
            "tower, such as lmr."
        )
    if kind.single_stream_reason and not kind.grows:
        reason = f" ({kind.single_stream_reason})"
        raise LmrError(f"{kind.name} serves one stream{reason}; choose a method that serves many, such as lmr.")


def _build_towers(model: str) -> tuple[VisionTower, VisionTower]:
    """Return the tower for counting, and one with the norms alone; for a small model both are the same."""
    if model in EMBEDDED_MODELS:
        tower = cast(VisionTower, load(model).encoder)
        return tower, tower
    config, _ = find_architecture(OPENAI_SPELLINGS.get(model, model))
    with torch.device("meta"):
        full, lean = VisionTower(config), VisionTower(config)
    for module in lean.modules():
        for name in list(module._parameters):
            if not isinstance(module, nn.LayerNorm):
                module.register_parameter(name, None)
    lean.to_empty(device="cpu").eval().requires_grad_(False)
    for parameter in lean.parameters():
        parameter.fill_(1.0)
    return full, lean


def _count_moments(method: Method) -> int:
    if not isinstance(method, NormMethod) or not method.trainable:
        return 0
    begun = method.optim.begin(method.state["norms"])
    return sum(value.numel() for value in begun.values() if value.shape == method.state["norms"].shape)
