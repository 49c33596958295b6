"""CLIP's tokenizer: lower-cased byte-pair encoding over the 48,894 merges that come with the package."""

from __future__ import annotations

import gzip
import html
import re
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmr.core.errors import LmrError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MERGES = Path(__file__).with_name("clip_merges.txt.gz")  # source and licence: clip_merges.LICENSE.txt
MERGE_COUNT = 48_894
START, END = 49_406, 49_407  # the two ids after the bytes (256), the bytes that end a word (256) and the merges
SPECIAL = ("<|startoftext|>", "<|endoftext|>")

# CLIP splits a cleaned text into contractions, words, single digits and runs of anything else (Radford et al. 2021,
# simple_tokenizer.py); the special texts are split off before that.
PIECES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"


class ClipTokenizer:
    """Texts to the ids CLIP was trained on.

    Text is cleaned as in OpenAI's code: ftfy repairs it (straight quotes, broken encodings), HTML entities are
    resolved, white space is collapsed, letters are lower-cased. A text longer than the context is cut and keeps its
    end token.
    """

    def __init__(self, context: int = 77) -> None:
        if not isinstance(context, int) or context < 2:
            raise LmrError(f"Expected a context of at least two tokens (77 for CLIP), got {context!r}.")
        self.context = context

    def __call__(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Ids int64 [N, longest], zero after the end, and the position [N] of each text's end token.

        The set is cut to its longest text: the text tower is causal, so tokens after the end cannot change a feature.
        """
        texts = check_texts(texts)
        encoder = build_encoder()  # text by text: batches start threads, and a later fork would warn about them
        rows = [[START, *encoder.encode(clean(text)).ids[: self.context - 2], END] for text in texts]
        longest = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        # CLIP takes the feature of the first end token, also where a text contains "<|endoftext|>" itself.
        return tokens, torch.tensor([row.index(END) for row in rows])


def check_texts(texts: Sequence[str]) -> list[str]:
    """The texts as a list; anything else is refused."""
    if isinstance(texts, str):
        raise LmrError(f"Expected a list of texts, got the single text {texts[:50]!r}; put it in a list.")
    texts = list(texts)
    if not texts or not all(isinstance(text, str) for text in texts):
        raise LmrError(f"Expected at least one text to encode and nothing but texts, got {texts[:5]}.")
    return texts


def clean(text: str) -> str:
    """The text as CLIP reads it: repaired, without HTML entities, with single spaces, in lower case."""
    import ftfy

    text = html.unescape(html.unescape(ftfy.fix_text(text)))  # twice: captions from the web are often escaped twice
    return re.sub(r"\s+", " ", text).strip().lower()


@cache
def build_encoder() -> Tokenizer:
    """The byte-pair encoder without special tokens around a text, built once per process (about 0.2 s)."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

    merges = read_merges()
    vocabulary = {word: number for number, word in enumerate((*list_words(), *SPECIAL))}
    encoder = Tokenizer(models.BPE(vocabulary, merges, end_of_word_suffix="</w>"))
    split = pre_tokenizers.Split(Regex(PIECES), behavior="removed", invert=True)
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    encoder.pre_tokenizer = pre_tokenizers.Sequence([split, spell])
    encoder.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIAL])
    return encoder


def read_merges() -> list[tuple[str, str]]:
    """The merges in their order; a damaged file is refused."""
    try:
        lines = gzip.decompress(MERGES.read_bytes()).decode().splitlines()
        merges = [(left, right) for left, right in (line.split(" ") for line in lines)]
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise LmrError(f"{str(MERGES)!r} does not hold CLIP's merges; reinstall lmr. ({error})") from error
    if len(merges) != MERGE_COUNT:
        raise LmrError(f"{str(MERGES)!r} holds {len(merges)} merges instead of {MERGE_COUNT}; reinstall lmr.")
    return merges


def list_words() -> list[str]:
    """The vocabulary in the order of its ids, without the two special tokens: bytes, bytes that end a word, merges."""
    symbols = list_byte_symbols()
    return [*symbols, *(symbol + "</w>" for symbol in symbols), *(left + right for left, right in read_merges())]


def list_byte_symbols() -> list[str]:
    """One visible character per byte, in the order of CLIP's ids: printable Latin-1 first, then the other bytes.

    Printable bytes stand for themselves; the others take the characters from U+0100 on (GPT-2's alphabet).
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = 256 - len(printable)
    return [chr(byte) for byte in printable] + [chr(256 + number) for number in range(others)]
