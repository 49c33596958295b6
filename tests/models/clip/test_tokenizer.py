"""CLIP's tokenizer against ids written down, a slow encoder straight from the paper's description, and transformers."""

from __future__ import annotations

import gzip
import html
import json
import random
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import ftfy
import pytest
import regex
import torch

import lmr
from lmr.models.clip import tokenizer as module
from lmr.models.clip.tokenizer import MERGES, ClipTokenizer

START, END = 49406, 49407

PLAIN = [
    "a photo of a cat",
    "A Photo, of a CAT!",
    "a diagram",
    "itap of a great white shark.",
    "the dog's bowl; they're here, I'd say we've seen 'em, she'll 'M",
    "don't stop'RE-ing",
    "in 1984 there were 3,141.59 of 10^6",
    "r2d2 x86-64 utf8",
    "tabs\tand\nlines\r\n  and    runs of spaces   ",
    "",
    "   ",
    "!!!???... ---///((([[[{{{",
    "naïve café Ångström façade Ελλάδα Москва",
    "İstanbul STRAẞE",
    "一张猫的照片。",
    "カメラで撮った写真",
    "صورة قطة",
    "🐱🐶 a 👨‍👩‍👧 family ❤️",
    "e\u0301 combining, ½ and ² and Ⅷ",
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "snake_case and kebab-case and a/b",
    "a <|endoftext|> in the middle <|startoftext|>",
    "#hashtag @someone $5 50% a&b",
    "word " * 100,
    "🐱" * 60,
]
WEB = [  # what OpenAI's code cleans in its own way before it encodes, and transformers does not
    "一张猫的照片，狗",
    "ΟΔΟΣ",  # a final sigma
    "rock &amp; roll &amp;amp; more",
    "&lt;b&gt;bold&lt;/b&gt;",
    "“curly” ‘quotes’ and it’s",
    "ﬁne ligatures ＦＵＬＬ width",
    "schÃ¶n mojibake",
    "bell\x07 and \x1b[31mred",
    "lone \ud800 surrogate",
]


@cache
def rank_merges() -> dict[tuple[str, str], int]:
    pairs = (line.split(" ") for line in gzip.decompress(MERGES.read_bytes()).decode().splitlines())
    return {(left, right): number for number, (left, right) in enumerate(pairs)}


@cache
def list_alphabet() -> dict[int, str]:
    """Byte to symbol: itself where Latin-1 prints it, else the next character from U+0100."""
    visible = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    hidden = [b for b in range(256) if b not in visible]
    return {b: chr(b) for b in visible} | {b: chr(256 + k) for k, b in enumerate(hidden)}


@cache
def number_words() -> dict[str, int]:
    single = list(list_alphabet().values())
    words = single + [s + "</w>" for s in single] + [a + b for a, b in rank_merges()]
    return {w: k for k, w in enumerate([*words, "<|startoftext|>", "<|endoftext|>"])}


def encode_slowly(text: str, context: int = 77) -> list[int]:
    """Merge the best-ranked neighbours, the leftmost first, until none is left."""
    text = html.unescape(html.unescape(ftfy.fix_text(text))).strip()
    text = regex.sub(r"\s+", " ", text).strip().lower()
    pattern = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    ids = [START]
    for piece in regex.findall(pattern, text, regex.IGNORECASE):
        if piece in ("<|startoftext|>", "<|endoftext|>"):
            ids.append(number_words()[piece])
            continue
        symbols = [list_alphabet()[b] for b in piece.encode()]
        symbols[-1] += "</w>"
        while len(symbols) > 1:
            ranks = [rank_merges().get(pair, len(rank_merges())) for pair in pairwise(symbols)]
            best = min(range(len(ranks)), key=ranks.__getitem__)
            if ranks[best] == len(rank_merges()):
                break
            symbols[best : best + 2] = [symbols[best] + symbols[best + 1]]
        ids += [number_words()[symbol] for symbol in symbols]
    return [*ids[: context - 1], END]


def list_ids(text: str, context: int = 77) -> list[int]:
    tokens, end = ClipTokenizer(context)([text])
    assert tokens.dtype == end.dtype == torch.int64
    assert tokens[0, end[0]] == END
    return tokens[0].tolist()


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("a photo of a cat", [320, 1125, 539, 320, 2368]),
        ("a photo of a dog", [320, 1125, 539, 320, 1929]),
        ("a diagram", [320, 22697]),
        ("hello world!", [3306, 1002, 256]),
        ("", []),
    ],
)
def test_ids_are_clips(text: str, ids: list[int]) -> None:
    """Ids that CLIP's and transformers' documentation show."""
    assert list_ids(text) == [START, *ids, END]


@pytest.mark.parametrize("text", PLAIN + WEB, ids=ascii)
def test_ids_are_those_of_the_slow_encoder(text: str) -> None:
    assert list_ids(text) == encode_slowly(text)


def test_any_mixture_is_encoded_as_the_slow_encoder_does() -> None:
    generator = random.Random(0)
    parts = [
        *"aeinstxyz",
        *"AZ09 .,'!-_&;<>|",
        "the",
        "ing",
        "'s",
        " ",
        "é",
        "ß",
        "ж",
        "犬",
        "🐱",
        "\u0301",
        "½",
        "\u3000",
    ]
    for _ in range(300):
        text = "".join(generator.choices(parts, k=generator.randint(1, 40)))
        assert list_ids(text) == encode_slowly(text), ascii(text)


@pytest.fixture(scope="module")
def transformers_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """transformers' tokenizer, read from the two files it has on the hub."""
    from transformers import CLIPTokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "vocab.json").write_text(json.dumps(number_words()), encoding="utf-8")
    merges = [f"{left} {right}" for left, right in rank_merges()]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "CLIPTokenizer"}))
    tokenizer = CLIPTokenizer.from_pretrained(folder)
    assert len(tokenizer) == 49408
    return tokenizer


@pytest.mark.parametrize("text", PLAIN, ids=ascii)
def test_plain_text_is_encoded_as_transformers_does(text: str, transformers_tokenizer: Any) -> None:
    expected = transformers_tokenizer(text, truncation=True, max_length=77)["input_ids"]
    assert list_ids(text) == expected


@pytest.mark.parametrize(
    ("web", "plain"),
    [
        ("rock &amp; roll &amp;amp; more", "rock & roll & more"),
        ("“curly” ‘quotes’ and it’s", "\"curly\" 'quotes' and it's"),
        ("ﬁne ligatures ＦＵＬＬ width", "fine ligatures full width"),
        ("schÃ¶n mojibake", "schön mojibake"),
        ("bell\x07 and \x1b[31mred", "bell and red"),
    ],
)
def test_text_from_the_web_is_mended(web: str, plain: str) -> None:
    assert list_ids(web) == list_ids(plain)


def test_set_is_cut_to_its_longest() -> None:
    texts = ["a cat", "a photo of a cat, sitting", ""]
    tokens, end = ClipTokenizer()(texts)
    lengths = [len(list_ids(text)) for text in texts]
    assert tokens.shape == (3, max(lengths))
    assert end.tolist() == [length - 1 for length in lengths]
    for row, text in enumerate(texts):
        assert tokens[row, : lengths[row]].tolist() == list_ids(text)
        assert (tokens[row, lengths[row] :] == 0).all()


@pytest.mark.parametrize("context", [2, 3, 16, 77])
def test_long_text_keeps_its_end(context: int) -> None:
    text = "a very long text about many cats " * 30
    ids = list_ids(text, context)
    assert len(ids) == context
    assert ids == [*list_ids(text, 200)[: context - 1], END]


def test_feature_is_read_at_the_first_end() -> None:
    tokens, end = ClipTokenizer()(["a cat <|endoftext|> b"])
    assert tokens[0].tolist() == [START, 320, 2368, END, 321, END]
    assert end.tolist() == [3]


@pytest.mark.parametrize("texts", ["a cat", [], [None], ["a", 3]], ids=str)
def test_what_is_not_texts_gets_a_sentence(texts: Any) -> None:
    with pytest.raises(lmr.LmrError, match=r"Expected (a list of texts|at least one text)"):
        ClipTokenizer()(texts)


@pytest.mark.parametrize("context", [1, 0, -3, 7.0, None])
def test_context_too_short_gets_a_sentence(context: Any) -> None:
    with pytest.raises(lmr.LmrError, match="context of at least two tokens"):
        ClipTokenizer(context)


def test_damaged_merges_get_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = MERGES.read_bytes()
    text = gzip.decompress(whole)
    short = gzip.compress(text[: len(text) // 2].rsplit(b"\n", 1)[0])
    noise = whole[:300] + bytes(100) + whole[400:]
    path = tmp_path / "merges.gz"
    monkeypatch.setattr(module, "MERGES", path)
    for content in (None, b"", whole[:1000], noise, text, short, gzip.compress(b"one\n"), gzip.compress(b"\xff \xfe")):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(lmr.LmrError, match="reinstall lmr"):
            module.read_merges()
    path.write_bytes(whole)
    assert len(module.read_merges()) == 48894


def test_merges_come_with_their_licence() -> None:
    note = MERGES.with_name("clip_merges.LICENSE.txt").read_text(encoding="utf-8")
    assert "Copyright (c) 2021 OpenAI" in note
    assert MERGES.name in note
