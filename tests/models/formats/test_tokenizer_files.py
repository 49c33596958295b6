"""The tokenizer beside a model's weights: CLIP's is recognised in every file, another one is never taken for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import checkpoint_maker as maker
import lmr
from lmr.models.clip.tokenizer import SPECIAL, list_words, read_merges
from lmr.models.formats.tokenizer_files import find_foreign_tokenizer
from lmr.models.model_facts import TokenizerKind


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return maker.write_huggingface(maker.make_model(words=49408), tmp_path_factory.mktemp("model"))


def make_vocabulary(swap: bool = False) -> dict[str, int]:
    """CLIP's ids, or those of another tokenizer of the same size: two words have changed places."""
    vocabulary = {word: number for number, word in enumerate((*list_words(), *SPECIAL))}
    if swap:
        vocabulary["cat</w>"], vocabulary["dog</w>"] = vocabulary["dog</w>"], vocabulary["cat</w>"]
    return vocabulary


def make_tokenizer(vocabulary: dict[str, int], merges: list[Any]) -> dict[str, Any]:
    special = [{"id": vocabulary[word], "content": word, "special": True} for word in SPECIAL]
    return {"added_tokens": special, "model": {"type": "BPE", "vocab": vocabulary, "merges": merges}}


def write_merges(folder: Path, merges: list[tuple[str, str]]) -> None:
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


OWN: dict[str, Callable[[Path], None]] = {
    "no files": lambda path: None,
    "vocab.json": lambda path: maker.write_json(make_vocabulary(), path / "vocab.json"),
    "merges.txt": lambda path: write_merges(path, read_merges()),
    "pairs": lambda path: maker.write_json(make_tokenizer(make_vocabulary(), read_merges()), path / "tokenizer.json"),
    "texts": lambda path: maker.write_json(
        make_tokenizer(make_vocabulary(), [" ".join(pair) for pair in read_merges()]), path / "tokenizer.json"
    ),
    "class": lambda path: maker.write_json({"tokenizer_class": "CLIPTokenizerFast"}, path / "tokenizer_config.json"),
    "other class with CLIP's files": lambda path: (
        maker.write_json(make_vocabulary(), path / "vocab.json"),
        maker.write_json({"tokenizer_class": "PreTrainedTokenizerFast"}, path / "tokenizer_config.json"),
    )[0],
}


@pytest.mark.parametrize("files", OWN)
def test_clips_own_is_recognised(files: str, tmp_path: Path) -> None:
    OWN[files](tmp_path)
    assert find_foreign_tokenizer(tmp_path) is None


def test_what_transformers_writes_is_recognised(tmp_path: Path) -> None:
    from transformers import CLIPTokenizer

    (tmp_path / "early").mkdir()
    maker.write_json(make_vocabulary(), tmp_path / "early" / "vocab.json")
    write_merges(tmp_path / "early", read_merges())
    CLIPTokenizer.from_pretrained(str(tmp_path / "early")).save_pretrained(tmp_path / "late")
    for folder in ("early", "late"):
        assert find_foreign_tokenizer(tmp_path / folder) is None


FOREIGN: dict[str, tuple[str, Callable[[Path], None]]] = {
    "vocabulary": ("vocab.json", lambda path: maker.write_json(make_vocabulary(swap=True), path / "vocab.json")),
    "merges": ("merges.txt", lambda path: write_merges(path, read_merges()[::-1])),
    "tokenizer": (
        "tokenizer.json",
        lambda path: maker.write_json(
            make_tokenizer(make_vocabulary(swap=True), read_merges()), path / "tokenizer.json"
        ),
    ),
    "tokenizer's merges": (
        "tokenizer.json",
        lambda path: maker.write_json(make_tokenizer(make_vocabulary(), read_merges()[::-1]), path / "tokenizer.json"),
    ),
    "another model": (
        "tokenizer.json",
        lambda path: maker.write_json({"model": {"type": "Unigram", "vocab": [["a", -1.0]]}}, path / "tokenizer.json"),
    ),
    "ids": ("vocab.json", lambda path: maker.write_json({"a": "b"}, path / "vocab.json")),
    "list": ("tokenizer.json", lambda path: maker.write_json([1, 2], path / "tokenizer.json")),
    "pairs": (
        "tokenizer.json",
        lambda path: maker.write_json(make_tokenizer(make_vocabulary(), [[1, 2, 3]]), path / "tokenizer.json"),
    ),
    "number": (
        "tokenizer.json",
        lambda path: maker.write_json(make_tokenizer(make_vocabulary(), [7]), path / "tokenizer.json"),
    ),
    "cut": ("vocab.json", lambda path: (path / "vocab.json").write_text(json.dumps(make_vocabulary())[:-9]) and None),
    "pieces": ("spiece.model", lambda path: (path / "spiece.model").write_bytes(b"x") and None),
    "class": (
        "tokenizer_config.json",
        lambda path: maker.write_json({"tokenizer_class": "BertTokenizer"}, path / "tokenizer_config.json"),
    ),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_another_tokenizer_is_found(kind: str, tmp_path: Path) -> None:
    name, write = FOREIGN[kind]
    write(tmp_path)
    assert find_foreign_tokenizer(tmp_path) == name


def test_model_with_another_tokenizer_reads_texts_with_it(folder: Path, tmp_path: Path) -> None:
    """Two words of CLIP's vocabulary change places, so each reads as the other."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    maker.write_json(make_vocabulary(), copy / "vocab.json")
    backbone = lmr.load(copy)
    assert backbone.model_facts.tokenizer is TokenizerKind.CLIP
    own = backbone.encode_text(["a dog", "a cat"])
    maker.write_json(make_vocabulary(swap=True), copy / "vocab.json")
    (copy / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in read_merges()))
    swapped = lmr.load(copy)
    assert swapped.model_facts.tokenizer is TokenizerKind.TRANSFORMERS
    assert swapped.facts["tokenizer"] == "CLIPTokenizer, 49408 tokens"
    torch.testing.assert_close(swapped.encode_text(["a cat", "a dog"]), own, rtol=0, atol=1e-6)
    assert swapped.text_digest() != backbone.text_digest()
    (copy / "merges.txt").unlink()
    with pytest.raises(lmr.LmrError, match=r"tokenizer in .*copy"):
        lmr.load(copy)


def test_open_clip_names_its_own_tokenizer(tmp_path: Path) -> None:
    maker.write_open_clip(maker.make_model(words=49408), tmp_path)
    config = maker.make_open_clip_config(True, text={"vocab_size": 49408})
    maker.write_json(config, tmp_path / "open_clip_config.json")
    maker.write_json({"tokenizer_class": "BertTokenizer"}, tmp_path / "tokenizer_config.json")
    assert lmr.load(tmp_path).model_facts.tokenizer is TokenizerKind.CLIP
