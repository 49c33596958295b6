"""Small CLIP checkpoints in every format, made from one transformers model with random weights.

The names of OpenAI and open_clip are written out by hand here and share no code with the library.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import CLIPConfig, CLIPModel

SIDE, PATCH, WIDTH, DEPTH, HEADS, FEATURES, HIDDEN = 32, 8, 128, 2, 2, 24, 160
TEXT_WIDTH, TEXT_DEPTH, TEXT_HEADS, TEXT_HIDDEN, CONTEXT = 64, 3, 1, 256, 16
WORDS = 300  # a small vocabulary; its last id ends a text

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
PREPROCESS_CFG = {"mean": PREPROCESSOR["image_mean"], "std": PREPROCESSOR["image_std"]}


def make_model(activation: str = "quick_gelu", words: int = WORDS, half: bool = False, **sizes: Any) -> CLIPModel:
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
    if half:
        for weight in model.parameters():
            weight.copy_(weight.half().float())
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


def rename_to_openai(model: CLIPModel, text_prefix: str = "") -> dict[str, Tensor]:
    """The weights in the names OpenAI and open_clip use."""
    image, text = model.vision_model, model.text_model
    named = {
        "visual.conv1.weight": image.embeddings.patch_embedding.weight,
        "visual.class_embedding": image.embeddings.class_embedding,
        "visual.positional_embedding": image.embeddings.position_embedding.weight,
        "visual.ln_pre.weight": image.pre_layrnorm.weight,
        "visual.ln_pre.bias": image.pre_layrnorm.bias,
        "visual.ln_post.weight": image.post_layernorm.weight,
        "visual.ln_post.bias": image.post_layernorm.bias,
        "visual.proj": model.visual_projection.weight.T,
        f"{text_prefix}token_embedding.weight": text.embeddings.token_embedding.weight,
        f"{text_prefix}positional_embedding": text.embeddings.position_embedding.weight,
        f"{text_prefix}ln_final.weight": text.final_layer_norm.weight,
        f"{text_prefix}ln_final.bias": text.final_layer_norm.bias,
        f"{text_prefix}text_projection": model.text_projection.weight.T,
        "logit_scale": model.logit_scale,
    }
    for begin, tower in (("visual.", image), (text_prefix, text)):
        for number, layer in enumerate(tower.encoder.layers):
            block, attention = f"{begin}transformer.resblocks.{number}.", layer.self_attn
            for kind in ("weight", "bias"):
                triple = [getattr(getattr(attention, f"{name}_proj"), kind) for name in "qkv"]
                named |= {
                    f"{block}attn.in_proj_{kind}": torch.cat(triple),
                    f"{block}attn.out_proj.{kind}": getattr(attention.out_proj, kind),
                    f"{block}ln_1.{kind}": getattr(layer.layer_norm1, kind),
                    f"{block}ln_2.{kind}": getattr(layer.layer_norm2, kind),
                    f"{block}mlp.c_fc.{kind}": getattr(layer.mlp.fc1, kind),
                    f"{block}mlp.c_proj.{kind}": getattr(layer.mlp.fc2, kind),
                }
    return {name: tensor.detach().clone().contiguous() for name, tensor in named.items()}


def make_openai_state(model: CLIPModel) -> dict[str, Tensor]:
    """A state dict as OpenAI's archives give it: half precision, with three scalars."""
    state = {name: tensor.half() for name, tensor in rename_to_openai(model).items()}
    scalars = {"input_resolution": SIDE, "context_length": CONTEXT, "vocab_size": model.config.text_config.vocab_size}
    return state | {name: torch.tensor(value) for name, value in scalars.items()}


def make_open_clip_config(quick: bool, preprocess: dict[str, Any] | None = None, **extra: Any) -> dict[str, Any]:
    return {
        "model_cfg": {
            "embed_dim": FEATURES,
            "quick_gelu": quick,
            "vision_cfg": {
                "image_size": SIDE,
                "layers": DEPTH,
                "width": WIDTH,
                "head_width": WIDTH // HEADS,
                "patch_size": PATCH,
                "mlp_ratio": HIDDEN / WIDTH,
                **extra.get("vision", {}),
            },
            "text_cfg": {
                "context_length": CONTEXT,
                "vocab_size": WORDS,
                "width": TEXT_WIDTH,
                "heads": TEXT_HEADS,
                "layers": TEXT_DEPTH,
                **extra.get("text", {}),
            },
            **extra.get("model", {}),
        },
        "preprocess_cfg": PREPROCESS_CFG if preprocess is None else preprocess,
    }


class _Node(nn.Module):
    """A branch of a tree of modules."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def save_torchscript(state: dict[str, Tensor], path: Path) -> None:
    """A real TorchScript archive whose modules hold these tensors, parameters where floating, buffers otherwise."""
    root = _Node()
    for name, tensor in state.items():
        *branches, leaf = name.split(".")
        node: nn.Module = root
        for branch in branches:
            if branch not in node._modules:
                node.add_module(branch, _Node())
            node = node._modules[branch]  # type: ignore[assignment]
        if tensor.is_floating_point():
            node.register_parameter(leaf, nn.Parameter(tensor))
        else:
            node.register_buffer(leaf, tensor)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch is about to leave TorchScript behind
        torch.jit.save(torch.jit.script(root), str(path))


def write_json(content: Any, path: Path) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def write_huggingface(model: CLIPModel, folder: Path, kind: str = "safetensors") -> Path:
    """Hugging Face's layout: weights as ``safetensors``, ``bin`` or ``shards``, with both configuration files."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(
        PREPROCESSOR | dict.fromkeys(("size", "crop_size"), model.config.vision_config.image_size),
        folder / "preprocessor_config.json",
    )
    if kind == "bin":
        model.config.architectures = ["CLIPModel"]
        model.config.save_pretrained(folder)
        # early files carried two buffers besides
        ids = {f"{side}_model.embeddings.position_ids": torch.arange(9)[None] for side in ("text", "vision")}
        torch.save(model.state_dict() | ids, folder / "pytorch_model.bin")
    else:
        model.save_pretrained(folder, max_shard_size="300KB" if kind == "shards" else "5GB")
    return folder


def write_open_clip(model: CLIPModel, folder: Path, kind: str = "safetensors", text_prefix: str = "") -> Path:
    """open_clip's layout: ``safetensors`` or ``bin`` with open_clip_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    quick = model.config.vision_config.hidden_act == "quick_gelu"
    write_json(make_open_clip_config(quick), folder / "open_clip_config.json")
    state = rename_to_openai(model, text_prefix)
    if kind == "safetensors":
        save_file(state, folder / "open_clip_model.safetensors")
    else:
        torch.save(state, folder / "open_clip_pytorch_model.bin")
    return folder
