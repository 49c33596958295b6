"""The self-check of a loaded model: what must hold of any of them, each with the number that was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.core.classifier import ZeroShot, digest_tensors
from lmr.core.errors import LmrError
from lmr.core.registry import create
from lmr.models import Backbone

if TYPE_CHECKING:
    from PIL.Image import Image

PICTURES = 8  # in the batch that single pictures are compared with

# How far two unit features of the same input may lie apart: rounding that depends on the batch, with room to spare.
TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 5e-2}

# A step that every sample takes part in: no confidence gate, one protected class, a margin nobody has reached.
EVERY_SAMPLE = "lmr(tau=0.0, delta=0.0, gamma0=1e4, am=False)"

NO_TOKENIZER = "the model comes without a tokenizer that could read texts"
_WORDS = (("cat", "dog", "bird", "house"), ("red star", "blue ring", "green circle", "striped purple heart"))


@dataclass(frozen=True)
class Check:
    """One line of the self-check; ``ok`` is None where it could not be done, and ``measured`` says why."""

    name: str
    ok: bool | None
    measured: str

    def __str__(self) -> str:
        word = {True: "ok", False: "FAILED", None: "-"}[self.ok]
        return f"  {word:<7} {self.name}: {self.measured}"


def run_checks(backbone: Backbone, texts: Sequence[str], pictures: Sequence[Image]) -> list[Check]:
    """All checks of the image side, the text side and one step of adaptation."""
    device, dtype = find_place(backbone.encoder)
    tolerance = TOLERANCES.get(dtype, 1e-4)
    images = torch.stack([backbone.preprocess(picture) for picture in pictures]).to(device, dtype)
    parts: list[tuple[str, Callable[[], Iterator[Check]]]] = [
        ("image features", lambda: _check_images(backbone.encoder, images, tolerance)),
        ("preprocessing", lambda: _check_pixels(backbone, pictures)),
        ("text features", lambda: _check_texts(backbone, texts, tolerance)),
        ("gradient step", lambda: _check_step(backbone, texts, images)),
    ]
    checks: list[Check] = []
    for name, part in parts:
        try:
            checks += part()
        except (LmrError, RuntimeError) as error:
            checks.append(Check(name, False, str(error).partition("\n")[0]))
    return checks


def find_place(encoder: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Where an encoder's images belong and in which type: those of its weights."""
    first = next((t for t in encoder.parameters() if t.is_floating_point()), torch.empty(0))
    return first.device, first.dtype


def _check_images(encoder: nn.Module, images: Tensor, tolerance: float) -> Iterator[Check]:
    def encode(batch: Tensor) -> Tensor:
        return F.normalize(encoder(batch).float(), dim=-1)

    with torch.no_grad():
        together, again = encode(images), encode(images)
        alone = torch.cat([encode(image) for image in images.unsqueeze(1)])
    yield from _check_features("image", "pictures", together)
    gap = _measure_gap(alone, together)
    measured = f"{gap:.1e} apart, alone and among {len(images)} ({tolerance:g})"
    yield Check("batch size changes nothing", gap <= tolerance, measured)
    gap = _measure_gap(again, together)
    yield Check("deterministic", gap == 0, "the same bits twice" if gap == 0 else f"{gap:.1e} apart, run twice")


def _check_features(side: str, inputs: str, features: Tensor) -> Iterator[Check]:
    """What holds of unit features [N, D] of N different inputs."""
    finite = features.isfinite().all(1)
    yield Check(f"{side} features are finite", bool(finite.all()), f"{int(finite.sum())} of {len(features)} {inputs}")
    off = _measure_gap(features.norm(dim=-1), torch.ones_like(features[:, 0]))
    yield Check(f"{side} features are unit vectors", off <= 1e-4, f"lengths at most {off:.1e} from 1")
    cosines = features @ features.T - 2 * torch.eye(len(features), dtype=features.dtype, device=features.device)
    nearest = float(cosines.max())
    yield Check(f"different {inputs} have different features", nearest < 1 - 1e-6, f"largest cosine {nearest:.4f}")


def _check_pixels(backbone: Backbone, pictures: Sequence[Image]) -> Iterator[Check]:
    """A picture of the model's own size takes the way of files and the way of arrays to the same input."""
    convert = getattr(backbone, "preprocess_pixels", None)
    name = "files and arrays are prepared alike"
    if convert is None:
        yield Check(name, None, "this model takes no arrays")
        return
    height, width = backbone.input_shape[-2:]
    picture = pictures[0].convert("RGB").resize((width, height))
    pixels = torch.from_numpy(np.array(picture)).unsqueeze(0)
    gap = _measure_gap(convert(pixels)[0].cpu().float(), backbone.preprocess(picture).cpu().float())
    yield Check(name, gap <= 1e-5, f"{gap:.1e} apart")


def _check_texts(backbone: Backbone, texts: Sequence[str], tolerance: float) -> Iterator[Check]:
    if not texts:
        yield Check("text features", None, f"not checked, {NO_TOKENIZER}")
        return
    features = backbone.encode_text(list(texts))
    yield from _check_features("text", "texts", features)
    short, long = texts[0], " and ".join([*texts[1:3], texts[0]])
    alone, padded = backbone.encode_text([short]), backbone.encode_text([short, long])[:1]
    gap = _measure_gap(alone, padded)
    yield Check(
        "padding changes nothing", gap <= tolerance, f"{gap:.1e} apart, alone and beside a longer text ({tolerance:g})"
    )


def _check_step(backbone: Backbone, texts: Sequence[str], images: Tensor) -> Iterator[Check]:
    """One step must move the adapted numbers, touch nothing of the model, and be forgotten by a reset."""
    classifier = backbone.classifier(texts, cache=False) if texts else _compare_pictures(backbone, images)
    weights = digest_tensors(classifier.encoder.state_dict())
    method = create(EVERY_SAMPLE, classifier)
    before = method.predict(images).logits
    start = method.state["norms"].clone()
    method.step(images)
    moved = (method.state["norms"] - start).abs()
    share = float((moved > 0).float().mean())
    answer = f"{share:.0%} of the adapted numbers moved, by up to {float(moved.max()):.1e}"
    yield Check("a gradient step adapts", 0 < share <= 1 and bool(moved.isfinite().all()), answer)
    method.reset()
    gap = _measure_gap(method.predict(images).logits, before)
    same = digest_tensors(classifier.encoder.state_dict()) == weights
    answer = f"answers {gap:.1e} apart" + ("" if same else ", and the model's own weights have changed")
    yield Check("a reset restores", gap == 0 and same, answer)


def _compare_pictures(backbone: Backbone, images: Tensor) -> ZeroShot:
    """A classifier for a model whose texts cannot be read: pictures stand for the classes."""
    with torch.no_grad():
        return ZeroShot(backbone.encoder, backbone.encoder(images[::2]).float(), backbone.logit_scale)


def _measure_gap(one: Tensor, other: Tensor) -> float:
    """The largest difference; NaN counts as infinitely far."""
    return float((one - other).abs().nan_to_num(nan=float("inf")).max())


def choose_texts(backbone: Backbone, names: Sequence[str] | None = None) -> list[str]:
    """Different texts this model can read: the user's class names, or common words, or those of the embedded model.

    An empty list for a model without a tokenizer.
    """
    if getattr(backbone, "facts", {}).get("tokenizer", "").startswith("none"):
        return []
    given = {" ".join(name.replace("_", " ").casefold().split()): None for name in names or ()}
    problem: LmrError | None = None
    for words in [list(given)[:PICTURES]] if len(given) > 1 else _WORDS:
        try:
            backbone.encode_text(list(words))
        except LmrError as error:
            problem = problem or error
        else:
            return list(words)
    raise LmrError(f"The model can read none of the words tried; give --labels with words it knows. ({problem})")


def draw_pictures(count: int = PICTURES, side: int = 256, seed: int = 0) -> list[Image]:
    """Pictures to try a model on: coarse colours with fine noise, each of them different and always the same."""
    from PIL import Image

    generator = np.random.default_rng(seed)
    pictures = []
    for _ in range(count):
        coarse = Image.fromarray(generator.integers(0, 256, (4, 4, 3), dtype=np.uint8)).resize((side, side))
        noise = generator.normal(0, 16, (side, side, 3))
        pictures.append(Image.fromarray((np.asarray(coarse) + noise).clip(0, 255).astype(np.uint8)))
    return pictures
