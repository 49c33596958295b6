"""The self-check of a loaded model: properties that every model must have, each with its measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.core.classifier import leave_autocast, leave_inference_mode
from lmr.core.errors import LmrError
from lmr.core.norms import NormBank
from lmr.core.placement import digest_tensors
from lmr.core.spec import simplify_name
from lmr.data.dataset import CLEAN
from lmr.data.photographs import Photographs
from lmr.models import Backbone
from lmr.models.backbone import DEFAULT_TEMPLATES

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGES = 8  # in the batch that single images are compared with
STEP = 1e-3  # distance that a gradient step moves each adapted parameter, the learning rate of most methods

# Largest difference of two unit features of the same input: rounding that depends on the batch, with room to spare.
TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 5e-2}

_TEXTS = ("cat", "dog", "bird", "house")


@dataclass(frozen=True)
class Check:
    """The result of one check: its title, and what was measured, or the error that ended it."""

    title: str
    passed: bool
    detail: str

    def __str__(self) -> str:
        result = "ok" if self.passed else "FAILED"
        return f"  {result:<7} {self.title}: {self.detail}"


def run_checks(backbone: Backbone, texts: Sequence[str], images: Sequence[Image]) -> list[Check]:
    """Run all checks: the image side, the text side, and one step of adaptation."""
    device, dtype = backbone.placement
    tolerance = TOLERANCES.get(dtype, 1e-4)
    inputs = torch.stack([backbone.preprocess(image) for image in images]).to(device, dtype)
    groups: dict[str, Callable[[], Iterator[Check]]] = {
        "image features": lambda: _check_images(backbone.encoder, inputs, tolerance),
        "text features": lambda: _check_texts(backbone, texts, tolerance),
        "gradient step": lambda: _check_step(backbone, texts, inputs),
    }
    checks: list[Check] = []
    for title, group in groups.items():
        try:
            checks += group()
        except (LmrError, RuntimeError) as error:
            checks.append(Check(title, False, str(error).partition("\n")[0]))
    return checks


def _check_images(encoder: nn.Module, images: Tensor, tolerance: float) -> Iterator[Check]:
    def encode(batch: Tensor) -> Tensor:
        return F.normalize(encoder(batch).float(), dim=-1)

    with torch.no_grad():
        together, again = encode(images), encode(images)
        alone = torch.cat([encode(image) for image in images.unsqueeze(1)])
    yield from _check_features(together, "image")
    gap = _measure_gap(alone, together)
    detail = f"{gap:.1e} apart, alone and in a batch of {len(images)} (limit {tolerance:g})"
    yield Check("batch size changes nothing", gap <= tolerance, detail)
    gap = _measure_gap(again, together)
    yield Check("deterministic", gap == 0, f"{gap:.1e} apart, run twice" if gap else "the same bits twice")


def _check_features(features: Tensor, kind: str) -> Iterator[Check]:
    """Check the unit features [N, D] of N different inputs: finite, of unit length, different."""
    finite = int(features.isfinite().all(1).sum())
    yield Check(f"{kind} features are finite", finite == len(features), f"{finite} of {len(features)} {kind}s")
    gap = _measure_gap(features.norm(dim=-1), torch.ones_like(features[:, 0]))
    yield Check(f"{kind} features are unit vectors", gap <= 1e-4, f"lengths at most {gap:.1e} from 1")
    cosines = features @ features.T - 2 * torch.eye(len(features), dtype=features.dtype, device=features.device)
    nearest = float(cosines.max())
    yield Check(f"different {kind}s have different features", nearest < 1 - 1e-6, f"largest cosine {nearest:.4f}")


def _check_texts(backbone: Backbone, texts: Sequence[str], tolerance: float) -> Iterator[Check]:
    yield from _check_features(backbone.encode_text(list(texts)), "text")
    short, long = texts[0], DEFAULT_TEMPLATES[0].replace("{}", texts[0])
    gap = _measure_gap(backbone.encode_text([short]), backbone.encode_text([short, long])[:1])
    detail = f"{gap:.1e} apart, alone and with a longer text (limit {tolerance:g})"
    yield Check("padding changes nothing", gap <= tolerance, detail)


def _check_step(backbone: Backbone, texts: Sequence[str], images: Tensor) -> Iterator[Check]:
    """Check that one step along the gradient of the norms changes the answers and leaves the model itself unchanged.

    The step widens the margin between the two most probable classes, so every image takes part in it. It is taken
    with the norms alone, without a method: what is checked is the model.
    """
    classifier = backbone.classifier(texts, cache=False)
    weights = digest_tensors(classifier.encoder.state_dict())
    bank = NormBank(classifier.encoder)
    with leave_inference_mode(), leave_autocast(classifier.device), torch.no_grad():
        before = classifier(images)
        rows = bank.start.clone().unsqueeze(0).requires_grad_()
        with torch.enable_grad():
            with bank.serve(rows):
                logits = classifier(images)
            best, second = logits.topk(2, dim=1).values.unbind(1)
            (gradients,) = torch.autograd.grad((best - second).mean(), rows)
        with bank.serve(rows.detach() + STEP * gradients.sign()):
            change = _measure_gap(classifier(images), before)
        gap = _measure_gap(classifier(images), before)
    share = float((gradients != 0).float().mean())
    adapts = share > 0 and bool(gradients.isfinite().all()) and 0 < change < float("inf")
    detail = f"{share:.0%} of the adapted parameters have a gradient, logits move by up to {change:.1e}"
    yield Check("a gradient step adapts", adapts, detail)
    same = digest_tensors(classifier.encoder.state_dict()) == weights
    detail = f"answers {gap:.1e} apart" + ("" if same else ", and the model's own weights have changed")
    yield Check("the step leaves the model unchanged", gap == 0 and same, detail)


def _measure_gap(one: Tensor, other: Tensor) -> float:
    """Return the largest difference; NaN counts as infinite."""
    return float((one - other).abs().nan_to_num(nan=float("inf")).max())


def choose_texts(backbone: Backbone, names: Sequence[str] | None = None) -> list[str]:
    """Return different texts that this model can read: the user's class names, or common words."""
    given = list(dict.fromkeys(map(simplify_name, names or ())))
    texts = given[:IMAGES] if len(given) > 1 else list(_TEXTS)
    try:
        backbone.encode_text(texts)
    except LmrError as error:
        raise LmrError(f"The model cannot read {texts}; give --labels with words it knows. ({error})") from error
    return texts


def open_photographs() -> list[Image]:
    """Return images to try a model on: photographs that come with lmr."""
    from PIL import Image

    return [Image.fromarray(pixels) for pixels in Photographs().read(CLEAN, 0, range(IMAGES))]
