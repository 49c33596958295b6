"""CLIP weights under OpenAI's, open_clip's or Hugging Face's names into our two towers: all of them, or an error."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lmr.core.errors import LmrError
from lmr.models.catalog import OTHER_MODELS
from lmr.models.towers.architectures import ARCHITECTURES, Sizes, use_quick_gelu
from lmr.models.towers.image import VisionConfig, VisionTower
from lmr.models.towers.text import TextConfig, TextTower

Side = Literal["image", "text"]


@dataclass(frozen=True)
class Naming:
    """The names one family of checkpoints uses; each table maps a beginning of our names to theirs."""

    family: str
    image: dict[str, str]
    text: dict[str, str]
    block: dict[str, str]  # within a transformer block; several names where q, k and v are separate
    transposed: bool  # whether the projections are stored [features, width]

    def turns(self, key: str) -> bool:
        """Return True if our tensor of this name is stored transposed."""
        return self.transposed and key == "projection"

    def find_sources(self, side: Side, key: str) -> list[str]:
        """List the tensors that make up our ``key``, in the order they are stacked."""
        table = self.image if side == "image" else self.text
        inside = re.fullmatch(r"blocks\.(\d+)\.(.+)", key)
        if not inside:
            return [_translate(key, table)]
        number, rest = inside.groups()
        begin = table["blocks."]
        return [f"{begin}{number}.{name}" for name in _translate(rest, self.block).split("|")]


def _translate(key: str, table: dict[str, str]) -> str:
    """Replace the beginning of a name; where there are several names, the rest is appended to each."""
    ours = next(begin for begin in table if key.startswith(begin))
    rest = key.removeprefix(ours)
    return "|".join(theirs + rest for theirs in table[ours].split("|"))


_TORCH_BLOCK = {
    "ln_1.": "ln_1.",
    "qkv.": "attn.in_proj_",
    "out.": "attn.out_proj.",
    "ln_2.": "ln_2.",
    "mlp.up.": "mlp.c_fc.",
    "mlp.down.": "mlp.c_proj.",
}
_TORCH_IMAGE = {
    "patches.": "visual.conv1.",
    "class_token": "visual.class_embedding",
    "positions": "visual.positional_embedding",
    "ln_pre.": "visual.ln_pre.",
    "blocks.": "visual.transformer.resblocks.",
    "ln_post.": "visual.ln_post.",
    "projection": "visual.proj",
}
_TORCH_TEXT = {
    "words.": "token_embedding.",
    "positions": "positional_embedding",
    "blocks.": "transformer.resblocks.",
    "ln_final.": "ln_final.",
    "projection": "text_projection",
}

# Source of the names: github.com/openai/CLIP (clip/model.py) and github.com/mlfoundations/open_clip (model.py), which
# are the same except for text towers that open_clip builds separately ("custom_text"), whose names begin with "text.".
OPENAI = Naming("OpenAI's or open_clip's", _TORCH_IMAGE, _TORCH_TEXT, _TORCH_BLOCK, transposed=False)
CUSTOM_TEXT = Naming(
    "open_clip's", _TORCH_IMAGE, {ours: f"text.{theirs}" for ours, theirs in _TORCH_TEXT.items()}, _TORCH_BLOCK, False
)

# Source of the names: transformers, models/clip/modeling_clip.py (the missing "e" of pre_layrnorm is theirs).
HUGGINGFACE = Naming(
    "Hugging Face's",
    {
        "patches.": "vision_model.embeddings.patch_embedding.",
        "class_token": "vision_model.embeddings.class_embedding",
        "positions": "vision_model.embeddings.position_embedding.weight",
        "ln_pre.": "vision_model.pre_layrnorm.",
        "blocks.": "vision_model.encoder.layers.",
        "ln_post.": "vision_model.post_layernorm.",
        "projection": "visual_projection.weight",
    },
    {
        "words.": "text_model.embeddings.token_embedding.",
        "positions": "text_model.embeddings.position_embedding.weight",
        "blocks.": "text_model.encoder.layers.",
        "ln_final.": "text_model.final_layer_norm.",
        "projection": "text_projection.weight",
    },
    {
        "ln_1.": "layer_norm1.",
        "qkv.": "self_attn.q_proj.|self_attn.k_proj.|self_attn.v_proj.",
        "out.": "self_attn.out_proj.",
        "ln_2.": "layer_norm2.",
        "mlp.up.": "mlp.fc1.",
        "mlp.down.": "mlp.fc2.",
    },
    transposed=True,
)

SCALARS = frozenset({"input_resolution", "context_length", "vocab_size"})  # only in OpenAI's own files
_IGNORED = re.compile(r"(.*\.)?(position_ids|attn_mask)")  # buffers that hold no weights
_INSIDE = re.compile(r"(.+?\.)(?:visual|vision_model)\.")  # a CLIP model inside another model

# A prefix of names, and what it shows about the model.
_UNSUPPORTED = {
    "visual.trunk.": "its image tower is a timm model",
    "visual.attnpool.": "its image tower is a ResNet (RN50 and the like)",
    "visual.layer1.": "its image tower is a ResNet (RN50 and the like)",
    "text_decoder.": "it is a CoCa model, with a text decoder",
    "visual.attn_pool.": "its image tower pools by attention, as CoCa's do",
    "text.transformer.embeddings.": "its text tower is a Hugging Face language model",
    "text.transformer.encoder.": "its text tower is a Hugging Face language model",
    "text.transformer.shared.": "its text tower is a Hugging Face language model",
    "vision_model.head.": "it is a SigLIP model, which needs its config.json and its tokenizer in the same folder",
    "visual.blocks.": "its image tower is an EVA model",
}


def detect_naming(keys: Iterable[str], origin: str) -> Naming:
    """Return the family of these names; a model that is not a CLIP with a vision transformer is refused."""
    keys = list(keys)
    for begin, reason in _UNSUPPORTED.items():
        if any(key.startswith(begin) for key in keys):
            raise LmrError(f"{origin!r} cannot be loaded: {reason}. {OTHER_MODELS}")
    if any(key.startswith(("vision_model.", "text_model.")) for key in keys):
        return HUGGINGFACE
    if any(key.startswith("visual.") for key in keys):
        return CUSTOM_TEXT if any(key.startswith("text.") for key in keys) else OPENAI
    inside = next(filter(None, map(_INSIDE.match, keys)), None)
    if inside:
        begin = inside[1]
        others = [key for key in keys if not key.startswith(begin)]
        beside = f", but not those of {len(others)} other tensors ({', '.join(others[:4])})" if others else ""
        raise LmrError(
            f"The names of a CLIP model in {origin!r} begin with {begin!r}{beside}. Save only the model's weights: "
            "torch.save(model.state_dict(), ...)."
        )
    raise LmrError(
        f"Expected the weights of a CLIP model in {origin!r}, in OpenAI's, open_clip's or Hugging Face's names; its "
        f"first names are {', '.join(keys[:4])}. {OTHER_MODELS}"
    )


def is_ignored(key: str) -> bool:
    """Return True if a tensor of this name holds no weights."""
    return key in SCALARS or _IGNORED.fullmatch(key) is not None


_SHOWN = 4  # how many keys an error message names before it counts the rest


@dataclass(frozen=True)
class TowerWeights:
    """Weights of both towers under our names, float32 or wider, with the scale and bias of the logits."""

    image: dict[str, Tensor]
    text: dict[str, Tensor]
    logit_scale: float
    logit_bias: float


def convert_weights(
    tensors: Mapping[str, Tensor], naming: Naming, sizes: Sizes, origin: str, dtype: torch.dtype = torch.float32
) -> TowerWeights:
    """Return the weights of both towers in ``dtype``, copied from the file's tensors; every key must match."""
    check_depth(tensors, max(sizes[0].depth, sizes[1].depth), origin)
    sources: dict[tuple[Side, str], list[str]] = {}  # our names, and theirs
    shapes: dict[str, Sequence[int] | None] = {}
    towers: tuple[tuple[Side, nn.Module], ...] = tuple(zip(("image", "text"), make_towers(sizes), strict=True))
    for side, tower in towers:
        for key, wanted in tower.state_dict().items():
            names = sources[side, key] = naming.find_sources(side, key)
            shape = wanted.T.shape if naming.turns(key) else (len(wanted) // len(names), *wanted.shape[1:])
            shapes |= dict.fromkeys(names, shape)
    shapes |= dict.fromkeys(("logit_scale", "logit_bias") if "logit_bias" in tensors else ("logit_scale",))
    check_tensors(tensors, shapes, origin)
    sides: dict[Side, dict[str, Tensor]] = {"image": {}, "text": {}}
    for (side, key), names in sources.items():
        pieces = [(tensors[name].T if naming.turns(key) else tensors[name]).to(dtype) for name in names]
        # torch.cat always copies: the file's tensors may be memory-mapped, and the file could change.
        sides[side][key] = torch.cat(pieces).contiguous()
    scale = math.exp(_read_scalar(tensors, "logit_scale", origin))
    bias = _read_scalar(tensors, "logit_bias", origin) if "logit_bias" in tensors else 0.0
    return TowerWeights(sides["image"], sides["text"], scale, bias)


def check_depth(tensors: Mapping[str, Tensor], depth: int, origin: str) -> None:
    """Refuse more blocks than tensors, before towers are built: a mistyped depth would take long."""
    if depth > len(tensors):
        raise LmrError(
            f"A tower of {depth} blocks cannot be filled from {origin!r}, which holds {len(tensors)} tensors. Check "
            "the number of blocks in its config or in its names. Nothing was loaded."
        )


def is_openai(tensors: Mapping[str, Tensor], file_name: str) -> bool:
    """Return True if a state dict in OpenAI's names is OpenAI's and not open_clip's, whose activation differs.

    Only OpenAI's archives hold three scalars. A state dict made from one may lack them, but it is in half precision
    and usually keeps the file's name.
    """
    if SCALARS & set(tensors):
        return True
    own_name = re.fullmatch(r"ViT-(B-32|B-16|L-14|L-14-336px)\.pth?", file_name) is not None
    half = tensors.get("visual.conv1.weight")
    return own_name and half is not None and half.dtype == torch.float16


def infer_sizes(tensors: Mapping[str, Tensor], origin: str) -> Sizes:
    """Return the sizes of one of OpenAI's models from its weights: its heads are 64 wide and it uses QuickGELU."""
    try:
        width, _, patch, _ = tensors["visual.conv1.weight"].shape
        tokens = len(tensors["visual.positional_embedding"]) - 1
        vocabulary, text_width = tensors["token_embedding.weight"].shape
        image = _infer_blocks(tensors, "visual.", width, "visual.proj")
        vision = VisionConfig(resolution=patch * math.isqrt(tokens), patch=patch, **image)
        words = _infer_blocks(tensors, "", text_width, "text_projection")
        text = TextConfig(context=len(tensors["positional_embedding"]), vocabulary=vocabulary, **words)
    except KeyError as error:
        raise LmrError(
            f"{origin!r} is not a complete checkpoint: {error.args[0]} is missing. Nothing was loaded."
        ) from error
    except (ValueError, IndexError, TypeError) as error:
        raise LmrError(f"The weights in {origin!r} do not have the shapes of a CLIP model. ({error})") from error
    for known in map(use_quick_gelu, ARCHITECTURES.values()):  # a file without its last blocks is not another model
        if (replace(known[0], depth=vision.depth), replace(known[1], depth=text.depth)) == (vision, text):
            return known
    return vision, text


def make_towers(sizes: Sizes) -> tuple[VisionTower, TextTower]:
    """Return both towers without values, so that building them costs nothing."""
    with torch.device("meta"):
        return VisionTower(sizes[0]), TextTower(sizes[1])


def fill_tower(tower: nn.Module, weights: dict[str, Tensor]) -> None:
    """Assign these tensors to the tower and freeze it."""
    tower.load_state_dict(weights, assign=True)
    tower.eval().requires_grad_(False)


def _infer_blocks(tensors: Mapping[str, Tensor], begin: str, width: int, projection: str) -> dict[str, Any]:
    """Return the sizes that both towers have, of the one whose names begin so."""
    return {
        "width": width,
        "depth": _count_blocks(tensors, f"{begin}transformer.resblocks."),
        "heads": max(1, width // 64),
        "features": tensors[projection].shape[1],
        "hidden": len(tensors[f"{begin}transformer.resblocks.0.mlp.c_fc.weight"]),
        "activation": "quick_gelu",
    }


def _count_blocks(tensors: Mapping[str, Tensor], begin: str) -> int:
    numbers = [re.match(rf"{re.escape(begin)}(\d+)\.", key) for key in tensors]
    return 1 + max((int(number[1]) for number in numbers if number), default=-1)


def check_tensors(tensors: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int] | None], origin: str) -> None:
    """Refuse tensors that are missing, unexpected, of another shape, quantised or not finite; None is any shape."""
    given = {key: tuple(tensor.shape) for key, tensor in tensors.items() if not is_ignored(key)}
    wrong = {key: shape for key, shape in shapes.items() if shape is not None and given.get(key, shape) != tuple(shape)}
    faults = {
        "missing": [key for key in shapes if key not in given],
        "unexpected": [key for key in given if key not in shapes],
        "of another shape": [f"{key} {list(given[key])} instead of {list(shape)}" for key, shape in wrong.items()],
    }
    found = [f"{len(keys)} {what} ({_show(keys)})" for what, keys in faults.items() if keys]
    if found:
        raise LmrError(
            f"The checkpoint {origin!r} does not match: of {len(shapes)} keys {'; '.join(found)}. Nothing was loaded. "
            "Check that the file is complete and that its config or the named architecture belongs to it."
        )
    filled = [key for key, shape in shapes.items() if shape is not None and tensors[key].numel()]
    for key in filled:
        if not tensors[key].is_floating_point() or tensors[key].dtype.itemsize < 2:
            raise LmrError(
                f"Expected floating-point weights in {origin!r}, found {tensors[key].dtype} in {key}; quantised "
                "checkpoints cannot be adapted. Use the original one."
            )
    broken = [key for key in filled if not torch.stack(tensors[key].aminmax()).isfinite().all()]  # NaN propagates
    if broken:
        raise LmrError(
            f"The weights in {origin!r} hold NaN or infinite values in {len(broken)} tensors ({_show(broken)}). "
            "Nothing was loaded."
        )


def _read_scalar(tensors: Mapping[str, Tensor], key: str, origin: str) -> float:
    """Read a scalar. The scale is stored as its logarithm; the limit is well above log(100), CLIP's maximum."""
    tensor = tensors[key]
    value = float(tensor) if tensor.numel() == 1 and tensor.is_floating_point() else float("nan")
    if not abs(value) < 50:
        raise LmrError(f"Expected one finite number as {key} in {origin!r}, got {tensor.flatten()[:3].tolist()}.")
    return value


def _show(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
