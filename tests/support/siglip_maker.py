"""Small SigLIP models with random weights and tokenizers of their own, in the layout of the Hugging Face hub."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import SiglipConfig, SiglipModel

SIDE, PATCH, WIDTH, HEADS, CONTEXT = 32, 8, 32, 2, 12
WORDS = ("cat", "dog", "bird", "house", "table", "red", "blue", "star", "ring", "on", "the", "left", "of", "a", "photo")


def make_siglip(vocabulary: int, **vision: Any) -> SiglipModel:
    """A SigLIP in which every weight counts: norms that are not one and zero, a scale and a bias."""
    logging.getLogger("transformers").setLevel(logging.ERROR)  # its default end token lies outside a small vocabulary
    config = SiglipConfig(
        text_config={
            "hidden_size": 48,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "vocab_size": vocabulary,
            "max_position_embeddings": CONTEXT,
            "projection_size": WIDTH,
            "bos_token_id": None,
            "eos_token_id": 1,
            "pad_token_id": 1,
        },
        vision_config={
            "hidden_size": WIDTH,
            "intermediate_size": 56,
            "num_hidden_layers": 2,
            "num_attention_heads": HEADS,
            "image_size": SIDE,
            "patch_size": PATCH,
            **vision,
        },
    )
    torch.manual_seed(0)
    model = SiglipModel(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter += 0.05 * torch.randn_like(parameter)
    model.logit_scale.fill_(2.5)
    model.logit_bias.fill_(-4.25)
    return model


def save_siglip(folder: Path, **vision: Any) -> SiglipModel:
    """Write a whole folder as google/siglip-base-patch16-224 has it, and return the model."""
    folder.mkdir(parents=True, exist_ok=True)
    corpus = [f"a photo of a {one} {other}" for one in WORDS for other in WORDS]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus),
        model_prefix=str(folder / "spiece"),
        vocab_size=60,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    (folder / "spiece.vocab").unlink()
    special = {"eos_token": "</s>", "pad_token": "</s>", "unk_token": "<unk>"}
    settings = {"do_lower_case": True, "tokenizer_class": "SiglipTokenizer", "model_input_names": ["input_ids"]}
    pieces = sentencepiece.SentencePieceProcessor(str(folder / "spiece.model")).get_piece_size()
    return _save(folder, pieces, special, settings, resample=3, **vision)


def save_siglip2(folder: Path) -> SiglipModel:
    """The same as google/siglip2-base-patch16-224 has it: Gemma's tokenizer, which keeps capitals; bilinear images."""
    folder.mkdir(parents=True, exist_ok=True)
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>"}
    merges = [("o", "f"), ("c", "a"), ("ca", "t"), ("r", "e"), ("re", "d"), ("▁", "a"), ("▁", "of"),
              ("p", "h"), ("o", "t"), ("ph", "ot"), ("phot", "o"), ("▁", "photo"), ("t", "h"), ("th", "e"),
              ("▁", "the")]  # fmt: skip
    letters = "▁.,!abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    words = [*special.values(), *letters, *map("".join, merges)]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
    tokenizer.add_special_tokens(list(special.values()))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "add_bos_token": False,
        "add_eos_token": True,
        "tokenizer_class": "GemmaTokenizer",
        "processor_class": "SiglipProcessor",
        "padding_side": "right",
        "model_input_names": ["input_ids"],
    }
    return _save(folder, len(words), special, settings, resample=2)


def _save(
    folder: Path, vocabulary: int, special: dict[str, Any], settings: dict[str, Any], resample: int, **vision: Any
) -> SiglipModel:
    processor = {
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "SiglipImageProcessor",
        "image_std": [0.5, 0.5, 0.5],
        "processor_class": "SiglipProcessor",
        "resample": resample,
        "rescale_factor": 1 / 255,
        "size": {"height": SIDE, "width": SIDE},
    }
    files = {
        "preprocessor_config": processor,
        "special_tokens_map": special,
        "tokenizer_config": special | settings | {"model_max_length": CONTEXT},
    }
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    model = make_siglip(vocabulary, **vision)
    model.save_pretrained(folder)
    return model
