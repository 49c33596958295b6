"""Check that the tokenizer beside a model's weights is CLIP's: another of the same size would give wrong tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lmr.models.clip.tokenizer import START, list_words, read_merges

TOKENIZER_JSON, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
VOCABULARY, MERGES = "vocab.json", "merges.txt"
_OTHER_VOCABULARIES = ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model", "vocab.txt")


def has_tokenizer(folder: Path) -> bool:
    """Whether there is a file with a vocabulary."""
    names = (TOKENIZER_JSON, VOCABULARY, MERGES, *_OTHER_VOCABULARIES)
    return any((folder / name).is_file() for name in names)


def find_foreign_tokenizer(folder: Path) -> str | None:
    """The name of the file that shows that this folder's tokenizer is not CLIP's; None where it is, or has no files.

    Vocabulary and merges are compared; the tokens that begin and end a text may be stored in any of the files.
    """
    checks = ((TOKENIZER_JSON, is_clip_json), (VOCABULARY, _is_clip_vocabulary), (MERGES, _is_clip_merges))
    present = [(name, check) for name, check in checks if (folder / name).is_file()]
    for name, check in present:
        try:
            same = check((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            same = False  # a file that cannot be read is not known to be CLIP's
        if not same:
            return name
    if present:
        return None
    other = next((name for name in _OTHER_VOCABULARIES if (folder / name).is_file()), None)
    return other or (TOKENIZER_CONFIG if _names_other_class(folder / TOKENIZER_CONFIG) else None)


def is_clip_json(text: str) -> bool:
    """The file of the tokenizers library; its merges are pairs, in early files texts with a space."""
    content = json.loads(text)
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict) or not isinstance(model.get("merges"), list):
        return False
    merges = [" ".join(map(str, pair)) if isinstance(pair, list) else pair for pair in model["merges"]]
    return _is_same_vocabulary(model.get("vocab")) and merges == [" ".join(pair) for pair in read_merges()]


def _is_clip_vocabulary(text: str) -> bool:
    return _is_same_vocabulary(json.loads(text))


def _is_clip_merges(text: str) -> bool:
    """One merge a line, after a line with the version of the format."""
    lines = [line for line in text.split("\n") if line and not line.startswith("#version")]
    return lines == [" ".join(pair) for pair in read_merges()]


def _is_same_vocabulary(vocabulary: Any) -> bool:
    """Whether these ids are CLIP's, the two special tokens aside."""
    if not isinstance(vocabulary, dict) or not all(isinstance(number, int) for number in vocabulary.values()):
        return False
    own = {word: number for word, number in vocabulary.items() if number < START}
    return own == {word: number for number, word in enumerate(list_words())}


def _names_other_class(path: Path) -> bool:
    """Whether a tokenizer's settings name a class that is not CLIP's."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    kind = content.get("tokenizer_class") if isinstance(content, dict) else None
    return isinstance(kind, str) and not kind.startswith("CLIPTokenizer")
