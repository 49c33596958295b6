"""Small SigLIP models with random weights and tokenizers of their own, saved as transformers saves them."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import SiglipConfig, SiglipModel, SiglipTokenizer
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

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
    """Write a whole SigLIP folder, with a sentencepiece tokenizer as SigLIP has it, and return the model."""
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
    tokenizer = SiglipTokenizer(str(folder / "spiece.model"), model_max_length=CONTEXT)
    tokenizer.save_pretrained(folder)
    return _save(folder, len(tokenizer), resample=3, **vision)


def save_siglip2(folder: Path) -> SiglipModel:
    """The same with a fast tokenizer that keeps capitals and bilinear images, as SigLIP 2 has them."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["<pad>", "<eos>", "<bos>", "<unk>", *WORDS, *(word.capitalize() for word in WORDS)]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "eos_token": "<eos>",
        "unk_token": "<unk>",
        "padding_side": "right",
        "model_max_length": CONTEXT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return _save(folder, len(words), resample=2)


def _save(folder: Path, vocabulary: int, resample: int, **vision: Any) -> SiglipModel:
    SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE}, resample=resample).save_pretrained(folder)
    model = make_siglip(vocabulary, **vision)
    model.save_pretrained(folder)
    return model
