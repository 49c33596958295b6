"""The model of a command in the type of ``--dtype``; "auto" takes bfloat16 where it is faster and labels stay.

Only the image tower is in half precision. The text tower encodes the class names once, so it stays as it was loaded,
and the prototypes are the same in every type.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from lmr.apps.method_options import MethodOptions
from lmr.apps.model_options import make_classifier
from lmr.core.classifier import ZeroShot
from lmr.core.placement import place_tower
from lmr.models import Backbone

PHOTOGRAPHS, SECONDS = 64, 0.3  # that are answered in both types; fewer where they take longer in float32
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


def load_model(options: MethodOptions) -> LoadedModel:
    """Load the model of resolved options, and make the classifier of their class names."""
    if options.dtype in ("bfloat16", "float16"):
        loaded = load_model(replace(options, dtype=None))
        place_tower(loaded.backbone.encoder, dtype=getattr(torch, str(options.dtype)))
        return loaded
    backbone = options.load(options.model)
    classifier = make_classifier(backbone, options.names, options.wording)
    if options.dtype != "auto" or backbone.is_small or not computes_in_bfloat16(classifier.device):
        return LoadedModel(backbone, classifier)
    stays, said = _try_bfloat16(backbone, classifier)
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


def _try_bfloat16(backbone: Backbone, classifier: ZeroShot) -> tuple[bool, str]:
    """Round the image tower; return whether labels of photographs stay, and a sentence about it."""
    from lmr.data.photographs import Photographs

    photographs = Photographs().read("clean", 0, range(PHOTOGRAPHS))
    batches, full, started = list[torch.Tensor](), list[torch.Tensor](), time.perf_counter()
    while (count := sum(map(len, full))) < PHOTOGRAPHS and time.perf_counter() - started < SECONDS:
        batches.append(backbone.preprocess(photographs[count : 2 * count + 2]).to(classifier.device))
        full.append(_answer(classifier, batches[-1]))
    place_tower(backbone.encoder, dtype=torch.bfloat16)
    before, after = torch.cat(full), torch.cat([_answer(classifier, batch.to(torch.bfloat16)) for batch in batches])
    same = int((before.argmax(1) == after.argmax(1)).sum())
    error = float((before - after).abs().max())
    said = f"{same} of {count} labels of photographs are those of float32, logits differ by up to {error:.2g}"
    return same >= AGREEMENT * count, said


@torch.no_grad()
def _answer(classifier: ZeroShot, images: torch.Tensor) -> torch.Tensor:
    return classifier(images)
