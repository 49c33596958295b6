"""Small tokenizers and processors of transformers, and a small NaFlex model, to go with random models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoTokenizer,
    CLIPProcessor,
    PreTrainedTokenizerFast,
    Siglip2Config,
    Siglip2Model,
    Siglip2Processor,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

WORDS = ("a", "photo", "of", "the", "cat", "dog", "ship", "red", "small", "bird")
PATCH, PATCHES, CONTEXT = 4, 20, 12


def make_tokenizer(end: int | None = None, extra: int = 0) -> PreTrainedTokenizerFast:
    """A word-level tokenizer of a vocabulary of its own; ``end`` is the id of its end token, the last one if None."""
    words = ["<pad>", "<s>", "<unk>", *WORDS, *(f"w{k}" for k in range(extra))]
    words.insert(len(words) if end is None else end, "</s>")
    ids = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [(word, ids[word]) for word in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=special)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def make_clip_processor(side: int, tokenizer: Any = None) -> CLIPProcessor:
    image = CLIPImageProcessorPil(size={"shortest_edge": side}, crop_size={"height": side, "width": side})
    return CLIPProcessor(image_processor=image, tokenizer=tokenizer or make_tokenizer())


def make_naflex(vocabulary: int) -> Siglip2Model:
    """A NaFlex model with random weights in which every weight counts."""
    text = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2}
    text |= {"vocab_size": vocabulary, "max_position_embeddings": CONTEXT, "projection_size": 32}
    text |= {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision |= {"patch_size": PATCH, "num_patches": 16}
    torch.manual_seed(1)
    model = Siglip2Model(Siglip2Config(text_config=text, vision_config=vision)).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter += 0.1 * torch.randn_like(parameter)
    model.logit_scale.fill_(2.0)
    model.logit_bias.fill_(-3.5)
    return model


def make_naflex_processor(tokenizer: Any = None) -> Siglip2Processor:
    image = Siglip2ImageProcessorPil(patch_size=PATCH, max_num_patches=PATCHES)
    return Siglip2Processor(image_processor=image, tokenizer=tokenizer or make_tokenizer())


def save_naflex(folder: Path) -> tuple[Siglip2Model, Siglip2Processor]:
    processor = make_naflex_processor()
    model = make_naflex(len(processor.tokenizer))
    model.save_pretrained(folder)
    processor.image_processor.save_pretrained(folder)
    processor.tokenizer.save_pretrained(folder)
    processor.tokenizer = AutoTokenizer.from_pretrained(folder)  # of the class that transformers reads for this model
    return model, processor
