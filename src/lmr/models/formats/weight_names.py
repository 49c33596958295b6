"""The names of CLIP's weights: OpenAI's, open_clip's and Hugging Face's for each of ours."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from lmr.core.errors import LmrError

Side = Literal["image", "text"]
ANYTHING = "For other models use lmr.ZeroShot(encoder, prototypes) with your own encoder."


@dataclass(frozen=True)
class Naming:
    """The names one family of checkpoints uses; each table maps a beginning of our names to theirs."""

    family: str
    image: dict[str, str]
    text: dict[str, str]
    block: dict[str, str]  # within a transformer block; several names where q, k and v are separate
    transposed: bool  # whether the projections are stored [features, width]

    def find_sources(self, side: Side, key: str) -> list[str]:
        """The names of the tensors that make up our ``key``, in the order they are stacked."""
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
    """The family these names belong to; a model that is not a CLIP with a vision transformer is refused."""
    keys = list(keys)
    for begin, reason in _UNSUPPORTED.items():
        if any(key.startswith(begin) for key in keys):
            raise LmrError(f"{origin!r} cannot be loaded: {reason}. {ANYTHING}")
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
        f"first names are {', '.join(keys[:4])}. {ANYTHING}"
    )


def is_ignored(key: str) -> bool:
    """Whether a tensor of this name holds no weights."""
    return key in SCALARS or _IGNORED.fullmatch(key) is not None
