"""CLIP weights under anybody's names into the weights of our two towers: all of them, or an error."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from lmr.core.errors import LmrError
from lmr.models.clip.architectures import ARCHITECTURES
from lmr.models.clip.image_tower import VisionConfig, VisionTower
from lmr.models.clip.text_tower import TextConfig, TextTower
from lmr.models.formats.weight_names import SCALARS, Naming, Side, is_ignored

Sizes = tuple[VisionConfig, TextConfig]
_SHOWN = 4  # how many keys an error message names before it counts the rest


@dataclass(frozen=True)
class TowerWeights:
    """Weights of both towers under our names, float32 or wider, with the scale and bias of the logits."""

    image: dict[str, Tensor]
    text: dict[str, Tensor]
    logit_scale: float
    logit_bias: float


@dataclass(frozen=True)
class _Slot:
    """Our name for a tensor of the file, alone or stacked with others, and the shape it must have in the file."""

    side: Side
    key: str
    shape: tuple[int, ...]
    turned: bool


def convert_weights(
    tensors: Mapping[str, Tensor], naming: Naming, sizes: Sizes, origin: str, dtype: torch.dtype = torch.float32
) -> TowerWeights:
    """The weights of both towers in ``dtype``, copied from the file's tensors; every key must match."""
    check_depth(tensors, max(sizes[0].depth, sizes[1].depth), origin)
    slots = _list_slots(naming, sizes)
    _check_keys(tensors, slots, origin)
    _check_values(tensors, slots, origin)
    parts: dict[tuple[Side, str], list[Tensor]] = {}
    for source, slot in slots.items():
        tensor = tensors[source]
        parts.setdefault((slot.side, slot.key), []).append(tensor.T if slot.turned else tensor)
    sides: dict[Side, dict[str, Tensor]] = {"image": {}, "text": {}}
    for (side, key), pieces in parts.items():
        # torch.cat always copies: the file's tensors may be memory-mapped, and the file could change.
        sides[side][key] = torch.cat([piece.to(dtype) for piece in pieces]).contiguous()
    scale = math.exp(_read_scalar(tensors, "logit_scale", origin))
    bias = _read_scalar(tensors, "logit_bias", origin) if "logit_bias" in tensors else 0.0
    return TowerWeights(sides["image"], sides["text"], scale, bias)


def check_depth(tensors: Mapping[str, Tensor], depth: int, origin: str) -> None:
    """Every block has its own weights. Checked before towers are built, as a mistyped depth would take long."""
    if depth > len(tensors):
        raise LmrError(
            f"A tower of {depth} blocks cannot be filled from {origin!r}, which holds {len(tensors)} tensors. Check "
            "the number of blocks in its config or in its names. Nothing was loaded."
        )


def is_openai(tensors: Mapping[str, Tensor], file_name: str) -> bool:
    """Whether a state dict in OpenAI's names is OpenAI's and not open_clip's: names are equal, activations differ.

    Only OpenAI's archives hold three scalars. A state dict made from one may lack them, but it is in half precision
    and usually keeps the file's name.
    """
    if SCALARS & set(tensors):
        return True
    own_name = re.fullmatch(r"ViT-(B-32|B-16|L-14|L-14-336px)\.pth?", file_name) is not None
    half = tensors.get("visual.conv1.weight")
    return own_name and half is not None and half.dtype == torch.float16


def infer_sizes(tensors: Mapping[str, Tensor], origin: str) -> Sizes:
    """The sizes of one of OpenAI's models from its weights: its heads are 64 wide and it uses QuickGELU."""
    try:
        width, _, patch, _ = tensors["visual.conv1.weight"].shape
        tokens = len(tensors["visual.positional_embedding"]) - 1
        context = len(tensors["positional_embedding"])
        vocabulary, text_width = tensors["token_embedding.weight"].shape
        vision = VisionConfig(
            resolution=patch * math.isqrt(tokens),
            patch=patch,
            width=width,
            depth=_count_blocks(tensors, "visual.transformer.resblocks."),
            heads=max(1, width // 64),
            features=tensors["visual.proj"].shape[1],
            hidden=len(tensors["visual.transformer.resblocks.0.mlp.c_fc.weight"]),
            activation="quick_gelu",
        )
        text = TextConfig(
            context=context,
            vocabulary=vocabulary,
            width=text_width,
            depth=_count_blocks(tensors, "transformer.resblocks."),
            heads=max(1, text_width // 64),
            features=tensors["text_projection"].shape[1],
            hidden=len(tensors["transformer.resblocks.0.mlp.c_fc.weight"]),
            activation="quick_gelu",
        )
    except KeyError as error:
        raise LmrError(
            f"{origin!r} is not a complete checkpoint: {error.args[0]} is missing. Nothing was loaded."
        ) from error
    except (ValueError, IndexError, TypeError) as error:
        raise LmrError(f"The weights in {origin!r} do not have the shapes of a CLIP model. ({error})") from error
    for known in ARCHITECTURES.values():  # a file without its last blocks is not another model
        if _forget_depth(known[0]) == _forget_depth(vision) and _forget_depth(known[1]) == _forget_depth(text):
            return replace(vision, depth=known[0].depth), replace(text, depth=known[1].depth)
    return vision, text


def make_towers(sizes: Sizes) -> tuple[VisionTower, TextTower]:
    """Both towers without values, so that building them costs nothing."""
    with torch.device("meta"):
        return VisionTower(sizes[0]), TextTower(sizes[1])


def fill_tower(tower: nn.Module, weights: dict[str, Tensor]) -> None:
    """Assign these tensors to the tower and freeze it."""
    tower.load_state_dict(weights, assign=True)
    tower.eval().requires_grad_(False)


def _forget_depth(config: VisionConfig | TextConfig) -> VisionConfig | TextConfig:
    return replace(config, depth=1, activation="quick_gelu")


def _count_blocks(tensors: Mapping[str, Tensor], begin: str) -> int:
    numbers = [re.match(rf"{re.escape(begin)}(\d+)\.", key) for key in tensors]
    return 1 + max((int(number[1]) for number in numbers if number), default=-1)


def _list_slots(naming: Naming, sizes: Sizes) -> dict[str, _Slot]:
    """Every key the file must have, with our name and shape for it."""
    image, text = make_towers(sizes)
    slots: dict[str, _Slot] = {}
    towers: tuple[tuple[Side, nn.Module], ...] = (("image", image), ("text", text))
    for side, tower in towers:
        for key, wanted in tower.state_dict().items():
            sources = naming.find_sources(side, key)
            turned = naming.transposed and key == "projection"
            shape = tuple(wanted.T.shape) if turned else (len(wanted) // len(sources), *wanted.shape[1:])
            for source in sources:
                slots[source] = _Slot(side, key, shape, turned)
    return slots


def _check_keys(tensors: Mapping[str, Tensor], slots: Mapping[str, _Slot], origin: str) -> None:
    """Refuse keys that are missing, unexpected or of another shape: name the first and count them."""
    scalars = {"logit_scale", "logit_bias"}
    missing = [key for key in (*slots, "logit_scale") if key not in tensors]
    unexpected = [key for key in tensors if key not in slots and key not in scalars and not is_ignored(key)]
    wrong = [
        f"{key} {list(tensors[key].shape)} instead of {list(slot.shape)}"
        for key, slot in slots.items()
        if key in tensors and tuple(tensors[key].shape) != slot.shape
    ]
    found = [
        f"{len(names)} {what} ({_show(names)})"
        for what, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", wrong))
        if names
    ]
    if found:
        raise LmrError(
            f"The checkpoint {origin!r} does not match: of {len(slots) + 1} keys {'; '.join(found)}. Nothing was "
            "loaded. Check that the file is complete and that its config or the named architecture belongs to it."
        )


def _check_values(tensors: Mapping[str, Tensor], slots: Mapping[str, _Slot], origin: str) -> None:
    for key in slots:
        if not tensors[key].is_floating_point() or tensors[key].dtype.itemsize < 2:
            raise LmrError(
                f"Expected floating-point weights in {origin!r}, found {tensors[key].dtype} in {key}; quantised "
                "checkpoints cannot be adapted. Use the original one."
            )
    broken = [key for key in slots if not torch.stack(tensors[key].aminmax()).isfinite().all()]  # NaN propagates
    if broken:
        raise LmrError(
            f"The weights in {origin!r} hold NaN or infinite values in {len(broken)} tensors ({_show(broken)}). "
            "Nothing was loaded."
        )


def _read_scalar(tensors: Mapping[str, Tensor], key: str, origin: str) -> float:
    """A scalar of the file. The scale is stored as its logarithm; the limit is well above log(100), CLIP's maximum."""
    tensor = tensors[key]
    value = float(tensor) if tensor.numel() == 1 and tensor.is_floating_point() else float("nan")
    if not abs(value) < 50:
        raise LmrError(f"Expected one finite number as {key} in {origin!r}, got {tensor.flatten()[:3].tolist()}.")
    return value


def _show(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
