"""The self-check of a loaded model: what must hold for any model, each check with what was measured."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.core.classifier import ZeroShot, digest_tensors, leave_autocast, leave_inference_mode
from lmr.core.errors import LmrError
from lmr.core.norms import NormBank
from lmr.models import Backbone
from lmr.models.agreement import NotCompared, WeightsReader, compare_with_transformers
from lmr.models.backbone import DEFAULT_TEMPLATES

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGES = 8  # in the batch that single images are compared with
STEP = 1e-3  # how far a gradient step moves each adapted parameter, the learning rate of most methods

# How far two unit features of the same input may differ: rounding that depends on the batch, with room to spare.
TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 5e-2}

_WORDS = (("cat", "dog", "bird", "house"), ("red star", "blue ring", "green circle", "striped purple heart"))


class CheckKind(enum.Enum):
    """What is checked. The first four are for a group of checks that failed before it could measure anything."""

    IMAGE_SIDE = enum.auto()
    PREPROCESSING = enum.auto()
    TEXT_SIDE = enum.auto()
    GRADIENT_STEP = enum.auto()
    IMAGES_FINITE = enum.auto()
    IMAGES_UNIT = enum.auto()
    IMAGES_DIFFER = enum.auto()
    BATCH_SIZE = enum.auto()
    DETERMINISTIC = enum.auto()
    FILES_AND_ARRAYS = enum.auto()
    TEXTS_FINITE = enum.auto()
    TEXTS_UNIT = enum.auto()
    TEXTS_DIFFER = enum.auto()
    PADDING = enum.auto()
    STEP_ADAPTS = enum.auto()
    STEP_LEAVES_MODEL = enum.auto()
    AGREEMENT = enum.auto()


class CheckOutcome(enum.Enum):
    """How a check ended."""

    PASSED = enum.auto()
    FAILED = enum.auto()
    SKIPPED = enum.auto()


class SkipReason(enum.Enum):
    """Why a check was skipped."""

    NO_TOKENIZER = enum.auto()
    NO_ARRAYS = enum.auto()


@dataclass(frozen=True)
class Check:
    """One check: its outcome, the numbers that were measured, and why it was skipped or which error ended it."""

    kind: CheckKind
    outcome: CheckOutcome
    measured: Mapping[str, Any] = field(default_factory=dict)  # numbers, and who read the weights of a comparison
    reason: SkipReason | NotCompared | None = None
    error: str | None = None


def run_checks(backbone: Backbone, texts: Sequence[str], images: Sequence[Image]) -> list[Check]:
    """All checks: the image side, the text side, one step of adaptation, and the agreement with transformers."""
    device, dtype = find_place(backbone.encoder)
    tolerance = TOLERANCES.get(dtype, 1e-4)
    inputs = torch.stack([backbone.preprocess(image) for image in images]).to(device, dtype)
    groups: list[tuple[CheckKind, Callable[[], Iterator[Check]]]] = [
        (CheckKind.IMAGE_SIDE, lambda: _check_images(backbone.encoder, inputs, tolerance)),
        (CheckKind.PREPROCESSING, lambda: _check_pixels(backbone, images[0])),
        (CheckKind.TEXT_SIDE, lambda: _check_texts(backbone, texts, tolerance)),
        (CheckKind.GRADIENT_STEP, lambda: _check_step(backbone, texts, inputs)),
    ]
    checks: list[Check] = []
    for kind, group in groups:
        try:
            checks += group()
        except (LmrError, RuntimeError) as error:
            checks.append(_fail(kind, error))
    return [*checks, _check_agreement(backbone, texts, inputs[: IMAGES // 2], tolerance)]


def find_place(encoder: nn.Module) -> tuple[torch.device, torch.dtype]:
    """The device and type of an encoder's weights, which its inputs must have too."""
    first = next((t for t in encoder.parameters() if t.is_floating_point()), torch.empty(0))
    return first.device, first.dtype


def _judge(kind: CheckKind, passed: bool, **measured: float | WeightsReader | None) -> Check:
    return Check(kind, CheckOutcome.PASSED if passed else CheckOutcome.FAILED, measured)


def _skip(kind: CheckKind, reason: SkipReason | NotCompared) -> Check:
    return Check(kind, CheckOutcome.SKIPPED, reason=reason)


def _fail(kind: CheckKind, error: Exception) -> Check:
    return Check(kind, CheckOutcome.FAILED, error=str(error).partition("\n")[0])


def _check_images(encoder: nn.Module, images: Tensor, tolerance: float) -> Iterator[Check]:
    def encode(batch: Tensor) -> Tensor:
        return F.normalize(encoder(batch).float(), dim=-1)

    with torch.no_grad():
        together, again = encode(images), encode(images)
        alone = torch.cat([encode(image) for image in images.unsqueeze(1)])
    yield from _check_features(together, CheckKind.IMAGES_FINITE, CheckKind.IMAGES_UNIT, CheckKind.IMAGES_DIFFER)
    gap = _measure_gap(alone, together)
    yield _judge(CheckKind.BATCH_SIZE, gap <= tolerance, gap=gap, count=len(images), tolerance=tolerance)
    gap = _measure_gap(again, together)
    yield _judge(CheckKind.DETERMINISTIC, gap == 0, gap=gap)


def _check_features(features: Tensor, finite: CheckKind, unit: CheckKind, differ: CheckKind) -> Iterator[Check]:
    """What holds for the unit features [N, D] of N different inputs."""
    sound = int(features.isfinite().all(1).sum())
    yield _judge(finite, sound == len(features), finite=sound, count=len(features))
    gap = _measure_gap(features.norm(dim=-1), torch.ones_like(features[:, 0]))
    yield _judge(unit, gap <= 1e-4, gap=gap)
    cosines = features @ features.T - 2 * torch.eye(len(features), dtype=features.dtype, device=features.device)
    nearest = float(cosines.max())
    yield _judge(differ, nearest < 1 - 1e-6, cosine=nearest)


def _check_pixels(backbone: Backbone, image: Image) -> Iterator[Check]:
    """An image of the model's own size gives the same input as a file and as an array."""
    inherited = type(backbone).preprocess_pixels is Backbone.preprocess_pixels
    if inherited and not hasattr(backbone, "preprocessing"):
        yield _skip(CheckKind.FILES_AND_ARRAYS, SkipReason.NO_ARRAYS)
        return
    height, width = backbone.input_shape[-2:]
    square = image.convert("RGB").resize((width, height))
    array = torch.from_numpy(np.array(square)).unsqueeze(0)
    gap = _measure_gap(backbone.preprocess_pixels(array)[0].cpu().float(), backbone.preprocess(square).cpu().float())
    yield _judge(CheckKind.FILES_AND_ARRAYS, gap <= 1e-5, gap=gap)


def _check_texts(backbone: Backbone, texts: Sequence[str], tolerance: float) -> Iterator[Check]:
    if not texts:
        yield _skip(CheckKind.TEXT_SIDE, SkipReason.NO_TOKENIZER)
        return
    features = backbone.encode_text(list(texts))
    yield from _check_features(features, CheckKind.TEXTS_FINITE, CheckKind.TEXTS_UNIT, CheckKind.TEXTS_DIFFER)
    short, long = texts[0], DEFAULT_TEMPLATES[0].replace("{}", texts[0])
    gap = _measure_gap(backbone.encode_text([short]), backbone.encode_text([short, long])[:1])
    yield _judge(CheckKind.PADDING, gap <= tolerance, gap=gap, tolerance=tolerance)


def _check_step(backbone: Backbone, texts: Sequence[str], images: Tensor) -> Iterator[Check]:
    """One step along the gradient of the norms must change the answers, and leave the model itself as it was.

    The step widens the margin between the two most probable classes, so every image takes part in it. It is taken
    with the norms alone, without a method: what is checked is the model.
    """
    classifier = backbone.classifier(texts, cache=False) if texts else _compare_images(backbone, images)
    weights = digest_tensors(classifier.encoder.state_dict())
    bank = NormBank(classifier.encoder)
    with leave_inference_mode(), leave_autocast(classifier.device):
        before = _answer(classifier, images)
        rows = bank.start.clone().unsqueeze(0).requires_grad_()
        with torch.enable_grad():
            with bank.serve(rows):
                logits = classifier.logits(classifier.cosines(classifier.features(images)))
            best, second = logits.topk(2, dim=1).values.unbind(1)
            (slopes,) = torch.autograd.grad((best - second).mean(), rows)
        with bank.serve(rows.detach() + STEP * slopes.sign()):
            change = _measure_gap(_answer(classifier, images), before)
        gap = _measure_gap(_answer(classifier, images), before)
    share = float((slopes != 0).float().mean())
    adapts = share > 0 and bool(slopes.isfinite().all()) and 0 < change < float("inf")
    yield _judge(CheckKind.STEP_ADAPTS, adapts, share=share, change=change)
    same = digest_tensors(classifier.encoder.state_dict()) == weights
    yield _judge(CheckKind.STEP_LEAVES_MODEL, gap == 0 and same, gap=gap, same=same)


def _compare_images(backbone: Backbone, images: Tensor) -> ZeroShot:
    """A classifier for a model that cannot read texts: images stand for the classes."""
    with torch.no_grad():
        return ZeroShot(backbone.encoder, backbone.encoder(images[::2]).float(), backbone.logit_scale)


@torch.no_grad()
def _answer(classifier: ZeroShot, images: Tensor) -> Tensor:
    """Logits [B, C] with the norms as they are served at the moment."""
    return classifier.logits(classifier.cosines(classifier.features(images)))


def _check_agreement(backbone: Backbone, texts: Sequence[str], images: Tensor, tolerance: float) -> Check:
    """With common words where the model knows them: transformers cleans unusual ones differently."""
    if not texts:
        return _skip(CheckKind.AGREEMENT, SkipReason.NO_TOKENIZER)
    with contextlib.suppress(LmrError):
        texts = choose_texts(backbone)
    try:
        found = compare_with_transformers(backbone, images, texts)
    except (LmrError, OSError, ValueError, RuntimeError, ImportError) as error:
        return _fail(CheckKind.AGREEMENT, error)
    if found.reason is not None:
        return _skip(CheckKind.AGREEMENT, found.reason)
    measured = {"image": found.image, "text": found.text, "tolerance": tolerance, "reader": found.reader}
    return _judge(CheckKind.AGREEMENT, found.holds(tolerance), **measured)


def _measure_gap(one: Tensor, other: Tensor) -> float:
    """The largest difference; NaN counts as infinitely far."""
    return float((one - other).abs().nan_to_num(nan=float("inf")).max())


def choose_texts(backbone: Backbone, names: Sequence[str] | None = None) -> list[str]:
    """Different texts this model can read: the user's class names, or common words, or those of an embedded model.

    An empty list for a model without a tokenizer.
    """
    if not backbone.model_facts.reads_texts:
        return []
    given = {" ".join(name.replace("_", " ").casefold().split()): None for name in names or ()}
    problem: LmrError | None = None
    for words in [list(given)[:IMAGES]] if len(given) > 1 else _WORDS:
        try:
            backbone.encode_text(list(words))
        except LmrError as error:
            problem = problem or error
        else:
            return list(words)
    raise LmrError(f"The model can read none of the words tried; give --labels with words it knows. ({problem})")


def draw_images(count: int = IMAGES, side: int = 256, seed: int = 0) -> list[Image]:
    """Images to try a model on: coarse colours with fine noise, all different and the same in every run."""
    from PIL import Image

    generator = np.random.default_rng(seed)
    images = []
    for _ in range(count):
        coarse = Image.fromarray(generator.integers(0, 256, (4, 4, 3), dtype=np.uint8)).resize((side, side))
        noise = generator.normal(0, 16, (side, side, 3))
        images.append(Image.fromarray((np.asarray(coarse) + noise).clip(0, 255).astype(np.uint8)))
    return images
