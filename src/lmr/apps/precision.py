"""The model of a command in the type of ``--dtype``; "auto" takes bfloat16 where it is faster and labels stay.

Only the image tower is in half precision. The text tower encodes the class names once, so it stays as it was loaded,
and the prototypes are the same in every type.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from lmr.apps.method_options import MethodOptions
from lmr.apps.model_options import make_classifier
from lmr.bench.machine import use_threads
from lmr.core.classifier import ZeroShot
from lmr.core.placement import place_tower
from lmr.images.files import UnreadableImage, open_image
from lmr.models import Backbone

COMPARED, SECONDS = 64, 0.65  # images that are answered in both types; fewer where they take longer in float32
AGREEMENT = 0.99  # share of the labels that must be the same


@dataclass(frozen=True)
class LoadedModel:
    """A model in the type it computes in, its classifier, and what "auto" has found out, where there was a choice."""

    backbone: Backbone
    classifier: ZeroShot
    said: str | None = None

    @property
    def dtype(self) -> str:
        """The type of the image tower by its name."""
        return str(self.backbone.dtype).removeprefix("torch.")


def load_model(options: MethodOptions, images: Sequence[Path] = ()) -> LoadedModel:
    """Load the model of resolved options, and make the classifier of their class names.

    "auto" compares the labels of some of the user's ``images`` within a second; without any, those of photographs that
    come with lmr. A small model computes with one thread from then on, which leaves the other cores to decode images.
    """
    if options.dtype in ("bfloat16", "float16"):
        loaded = load_model(replace(options, dtype=None))
        place_tower(loaded.backbone.encoder, dtype=getattr(torch, str(options.dtype)))
        return loaded
    with use_threads(1):  # to start threads would take a third of the time of a small model
        backbone = options.load(options.model)
    if backbone.is_small:
        torch.set_num_threads(1)
    classifier = make_classifier(backbone, options.names, options.wording)
    if options.dtype != "auto" or backbone.is_small or not computes_in_bfloat16(classifier.device):
        return LoadedModel(backbone, classifier)
    stays, said = _try_bfloat16(backbone, classifier, images)
    if stays:
        return LoadedModel(backbone, classifier, f"in bfloat16, {said}")
    return replace(load_model(replace(options, dtype=None)), said=f"in float32: in bfloat16 {said}")


def computes_in_bfloat16(device: torch.device) -> bool:
    """Return True if the processor has instructions for products in bfloat16; elsewhere they are slow."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu" or not hasattr(torch.cpu, "get_capabilities"):  # older versions of torch
        return False
    able: Mapping[str, Any] = torch.cpu.get_capabilities()
    return any(able.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _try_bfloat16(backbone: Backbone, classifier: ZeroShot, images: Sequence[Path]) -> tuple[bool, str]:
    """Round the image tower; return whether the labels of images stay, and a sentence about it."""
    batches, full, started = list[torch.Tensor](), list[torch.Tensor](), time.perf_counter()
    opened, whose = _open_some(images), "your images"
    if (first := next(opened, None)) is None:
        opened, whose = _read_photographs(), "photographs"
        first = next(opened)
    for image in chain([first], opened):
        batches.append(backbone.preprocess([image]).to(classifier.device))
        full.append(_answer(classifier, batches[-1]))
        if time.perf_counter() - started > SECONDS:
            break
    place_tower(backbone.encoder, dtype=torch.bfloat16)
    before, after = torch.cat(full), torch.cat([_answer(classifier, batch.to(torch.bfloat16)) for batch in batches])
    same = int((before.argmax(1) == after.argmax(1)).sum())
    error = float((before - after).abs().max())
    said = f"{same} of {len(full)} labels of {whose} are those of float32, logits differ by up to {error:.2g}"
    return same >= AGREEMENT * len(full), said


def _open_some(paths: Sequence[Path]) -> Iterator[Any]:
    """Open up to COMPARED images, evenly over all paths; videos and files that cannot be read are left out."""
    for path in paths[:: max(1, len(paths) // COMPARED)][:COMPARED]:
        with suppress(UnreadableImage):
            yield open_image(path)


def _read_photographs() -> Iterator[Any]:
    from lmr.data.photographs import Photographs

    yield from Photographs().read("clean", 0, range(COMPARED))


@torch.no_grad()
def _answer(classifier: ZeroShot, images: torch.Tensor) -> torch.Tensor:
    return classifier(images)
