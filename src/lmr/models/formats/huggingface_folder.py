"""The files of a folder in Hugging Face's form, which transformers opens by itself: model, preprocessing, tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lmr.models.clip.tokenizer import SPECIAL, list_words, read_merges
from lmr.models.formats.preprocessing_configs import PREPROCESSOR, describe_preprocessing
from lmr.models.formats.tokenizer_files import MERGES, TOKENIZER_CONFIG, VOCABULARY
from lmr.models.preprocessing import Preprocessing
from lmr.models.quiet_transformers import quiet_transformers


def write_model(model: Any, folder: Path) -> None:
    """``config.json`` and ``model.safetensors`` of a model of transformers."""
    with quiet_transformers():
        model.save_pretrained(str(folder))


def write_preprocessing(preprocessing: Preprocessing, family: str, folder: Path) -> None:
    """``preprocessor_config.json`` for the processor of a model family, "CLIP" or "Siglip"."""
    _write_json(folder / PREPROCESSOR, describe_preprocessing(preprocessing, family))


def write_clip_tokenizer(context: int, folder: Path) -> None:
    """CLIP's tokenizer: vocabulary, merges and special tokens; texts are cut to the context."""
    start, end = SPECIAL
    _write_json(folder / VOCABULARY, {word: number for number, word in enumerate((*list_words(), *SPECIAL))})
    lines = ["#version: 0.2", *(" ".join(pair) for pair in read_merges())]
    (folder / MERGES).write_text("\n".join(lines) + "\n", encoding="utf-8")
    tokens = {"bos_token": start, "eos_token": end, "unk_token": end, "pad_token": end}
    settings = {"tokenizer_class": "CLIPTokenizer", "model_max_length": context}
    _write_json(folder / TOKENIZER_CONFIG, settings | tokens)


def write_tokenizer(tokenizer: Any, folder: Path) -> None:
    """The files of a tokenizer of transformers."""
    with quiet_transformers():
        tokenizer.save_pretrained(str(folder))


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
