"""Small CLIP models with random weights, and folders of them in the layout of the Hugging Face hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

SIDE, PATCH, WIDTH, DEPTH, HEADS, FEATURES, HIDDEN = 32, 8, 128, 2, 2, 24, 160
TEXT_WIDTH, TEXT_DEPTH, TEXT_HEADS, TEXT_HIDDEN, CONTEXT = 64, 3, 1, 256, 16
START, END = "<|startoftext|>", "<|endoftext|>"
_MERGES = [("t", "h"), ("th", "e</w>"), ("c", "a"), ("ca", "t</w>"), ("o", "f</w>"), ("p", "h"), ("o", "t"),
           ("ph", "ot"), ("phot", "o</w>")]  # fmt: skip
_LETTERS = [chr(code) for code in range(33, 127)]
_VOCABULARY = [*_LETTERS, *(letter + "</w>" for letter in _LETTERS), *map("".join, _MERGES), START, END]
WORDS = len(_VOCABULARY)

PREPROCESSOR = {  # as the file of openai/clip-vit-base-patch16 has it, at another resolution
    "crop_size": SIDE,
    "do_center_crop": True,
    "do_normalize": True,
    "do_resize": True,
    "feature_extractor_type": "CLIPFeatureExtractor",
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "resample": 3,
    "size": SIDE,
}


def make_model(activation: str = "quick_gelu", words: int = WORDS, **sizes: Any) -> CLIPModel:
    """A transformers CLIP with random weights of a spread that makes every part of it count."""
    config = CLIPConfig(
        projection_dim=FEATURES,
        vision_config={
            "hidden_size": WIDTH,
            "intermediate_size": HIDDEN,
            "num_hidden_layers": DEPTH,
            "num_attention_heads": HEADS,
            "image_size": SIDE,
            "patch_size": PATCH,
            "hidden_act": activation,
            **sizes.get("vision", {}),
        },
        text_config={
            "hidden_size": TEXT_WIDTH,
            "intermediate_size": TEXT_HIDDEN,
            "num_hidden_layers": TEXT_DEPTH,
            "num_attention_heads": TEXT_HEADS,
            "max_position_embeddings": CONTEXT,
            "vocab_size": words,
            "hidden_act": activation,
            "bos_token_id": words - 2,
            "eos_token_id": words - 1,
            **sizes.get("text", {}),
        },
    )
    with torch.device("meta"):  # transformers' own random weights would take longer than all else
        model = CLIPModel(config)
    model = model.to_empty(device="cpu").eval().requires_grad_(False)
    for part in (model.vision_model, model.text_model):
        part.embeddings.position_ids = torch.arange(part.embeddings.position_embedding.num_embeddings)[None]
    pool = torch.randn(2**20 + 7, generator=torch.Generator().manual_seed(7))
    for number, (name, weight) in enumerate(model.named_parameters()):
        count = weight.numel()
        if weight.ndim == 0:
            weight.fill_(3.1)  # the logarithm of the logit scale
            continue
        draw = pool.roll(1009 * number).repeat(-(-count // len(pool)))[:count].view(weight.shape)
        if "norm" in name or "layrnorm" in name:
            weight.copy_(draw.mul_(0.4).add_(1.0 if name.endswith("weight") else 0.0))
        elif name.endswith("bias"):
            weight.copy_(draw.mul_(0.3))
        else:
            weight.copy_(draw.mul_(0.7 if "embedding" in name else 1.3 * weight.shape[-1] ** -0.5))
    return model


def make_inputs(model: CLIPModel, count: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Images [count, 3, H, W], token ids [count, context] and where each text ends [count]."""
    vision, text = model.config.vision_config, model.config.text_config
    generator = torch.Generator().manual_seed(5)
    images = torch.randn(count, 3, vision.image_size, vision.image_size, generator=generator)
    context = text.max_position_embeddings
    tokens = torch.randint(1, text.vocab_size - 2, (count, context), generator=generator)
    end = torch.randint(2, context - 1, (count,), generator=generator)
    tokens[torch.arange(count), end] = text.vocab_size - 1
    return images, tokens, end


def expect_features(model: CLIPModel) -> tuple[Tensor, Tensor]:
    """Image and text features, as transformers gives them, of :func:`make_inputs`."""
    images, tokens, _ = make_inputs(model)
    with torch.no_grad():
        seen = model.vision_model(pixel_values=images).pooler_output
        read = model.text_model(input_ids=tokens).pooler_output
        return model.visual_projection(seen), model.text_projection(read)


def write_json(content: Any, path: Path) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def write_tokenizer(folder: Path) -> CLIPTokenizer:
    """The files of CLIP's tokenizer on the hub, with a small vocabulary of letters and parts of words."""
    vocabulary = {word: number for number, word in enumerate(_VOCABULARY)}
    tokenizer = CLIPTokenizer(vocabulary, _MERGES)
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    write_json(vocabulary, folder / "vocab.json")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *(" ".join(pair) for pair in _MERGES)]) + "\n")
    special = {"bos_token": START, "eos_token": END, "unk_token": END, "pad_token": END}
    write_json(special, folder / "special_tokens_map.json")
    settings = {"tokenizer_class": "CLIPTokenizer", "model_max_length": CONTEXT, "do_lower_case": True}
    write_json(special | settings, folder / "tokenizer_config.json")
    return tokenizer


def write_huggingface(model: CLIPModel, folder: Path, kind: str = "safetensors", preprocessor: Any = None) -> Path:
    """The layout of the hub: weights as ``safetensors``, ``bin`` or ``shards``, configuration, tokenizer, processor."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(preprocessor or PREPROCESSOR, folder / "preprocessor_config.json")
    write_tokenizer(folder)
    if kind == "bin":
        model.config.architectures = ["CLIPModel"]
        model.config.save_pretrained(folder)
        # early files carried two buffers besides
        ids = {f"{side}_model.embeddings.position_ids": torch.arange(9)[None] for side in ("text", "vision")}
        torch.save(model.state_dict() | ids, folder / "pytorch_model.bin")
    else:
        model.save_pretrained(folder, max_shard_size="300KB" if kind == "shards" else "5GB")
    return folder
