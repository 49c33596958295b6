"""CLIP's tokenizer against a slow one and transformers'; tokenizers beside weights; the words of embedded models."""

from __future__ import annotations

import gzip
import html
import json
import random
import shutil
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import ftfy
import pytest
import regex
import torch
from torch.nn import functional as F
from transformers import AutoTokenizer, CLIPModel

import checkpoint_maker as maker
import lmr
import processor_maker as processors
from lmr.core.errors import LmrError
from lmr.models import tokenizers as module
from lmr.models.agreement import compare_with_transformers
from lmr.models.clip import Clip
from lmr.models.tokenizers import (
    END,
    MERGES,
    PAD,
    SPECIAL,
    START,
    ClipTokenizer,
    TransformersTokenizer,
    WordTokenizer,
    digest_tokenizer,
    has_foreign_tokenizer,
    list_words,
    read_merges,
    read_tokenizer,
)

CLIP_START, CLIP_END = 49406, 49407

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
    ids = [CLIP_START]
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
    return [*ids[: context - 1], CLIP_END]


def list_ids(text: str, context: int = 77) -> list[int]:
    tokens, end = ClipTokenizer(context)([text])
    assert tokens.dtype == end.dtype == torch.int64
    assert tokens[0, end[0]] == CLIP_END
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
    assert list_ids(text) == [CLIP_START, *ids, CLIP_END]


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
    assert ids == [*list_ids(text, 200)[: context - 1], CLIP_END]


def test_feature_is_read_at_the_first_end() -> None:
    tokens, end = ClipTokenizer()(["a cat <|endoftext|> b"])
    assert tokens[0].tolist() == [CLIP_START, 320, 2368, CLIP_END, 321, CLIP_END]
    assert end.tolist() == [3]


@pytest.mark.parametrize("texts", ["a cat", [], [None], ["a", 3]], ids=str)
def test_what_is_not_texts_gets_a_message(texts: Any) -> None:
    with pytest.raises(lmr.LmrError, match=r"Expected (a list of texts|at least one text)"):
        ClipTokenizer()(texts)


@pytest.mark.parametrize("context", [1, 0, -3, 7.0, None])
def test_context_too_short_gets_a_message(context: Any) -> None:
    with pytest.raises(lmr.LmrError, match="context of at least two tokens"):
        ClipTokenizer(context)


def test_damaged_merges_get_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert not has_foreign_tokenizer(tmp_path)


def test_what_transformers_writes_is_recognised(tmp_path: Path) -> None:
    from transformers import CLIPTokenizer

    (tmp_path / "early").mkdir()
    maker.write_json(make_vocabulary(), tmp_path / "early" / "vocab.json")
    write_merges(tmp_path / "early", read_merges())
    CLIPTokenizer.from_pretrained(str(tmp_path / "early")).save_pretrained(tmp_path / "late")
    for folder in ("early", "late"):
        assert not has_foreign_tokenizer(tmp_path / folder)


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
    assert (tmp_path / name).is_file()
    assert has_foreign_tokenizer(tmp_path)


def test_model_with_another_tokenizer_reads_texts_with_it(folder: Path, tmp_path: Path) -> None:
    """Two words of CLIP's vocabulary change places, so each reads as the other."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    maker.write_json(make_vocabulary(), copy / "vocab.json")
    backbone = lmr.load(copy)
    assert backbone.facts["tokenizer"] == "CLIP's byte-pair encoding"
    own = backbone.encode_text(["a dog", "a cat"])
    maker.write_json(make_vocabulary(swap=True), copy / "vocab.json")
    (copy / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in read_merges()))
    swapped = lmr.load(copy)
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
    assert lmr.load(tmp_path).facts["tokenizer"] == "CLIP's byte-pair encoding"


TEXTS = ["a photo of the cat", "dog", "a small red bird of the ship " * 9, "an unknown word"]


def save(folder: Path, end: int | None = None, **config: Any) -> Any:
    """A whole folder; the id of the end token is the last one, or ``end``."""
    tokenizer = processors.make_tokenizer(end)
    number = tokenizer.convert_tokens_to_ids("</s>")
    model = maker.make_model(words=len(tokenizer) + 3, text={"eos_token_id": number, **config})
    maker.write_huggingface(model, folder)
    tokenizer.save_pretrained(folder)
    change(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    return model


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def expect(model: Any, folder: Path) -> torch.Tensor:
    """transformers' unit features of the texts, padded together on the right, as its processor pads them."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    context = {"truncation": True, "max_length": maker.CONTEXT}
    with torch.no_grad():
        given = tokenizer(TEXTS, padding=True, return_tensors="pt", **context)
        raw = model.get_text_features(given["input_ids"], attention_mask=given["attention_mask"])
    return F.normalize(raw.pooler_output, dim=-1)


@pytest.mark.parametrize(
    ("end", "config"), [(None, {}), (5, {}), (None, {"eos_token_id": 2})], ids=["last", "in between", "the highest id"]
)
def test_features_are_those_of_transformers(end: int | None, config: dict[str, Any], tmp_path: Path) -> None:
    model = save(tmp_path, end, **config)
    backbone = lmr.load(tmp_path)
    torch.testing.assert_close(backbone.encode_text(TEXTS), expect(model, tmp_path), rtol=0, atol=1e-5)
    assert backbone.model_facts.reads_texts
    assert (
        backbone.facts["tokenizer"].endswith("Backend, 14 tokens") or "Fast, 14 tokens" in backbone.facts["tokenizer"]
    )
    side = backbone.text_side(TEXTS)
    torch.testing.assert_close(side.all_prototypes(2), backbone.encode_text(TEXTS), rtol=0, atol=1e-6)
    images = torch.randn(2, *backbone.input_shape)
    assert compare_with_transformers(backbone, images, TEXTS).holds(1e-5)


def test_folder_is_written_with_its_tokenizer(tmp_path: Path) -> None:
    """transformers and lmr read the written folder as the first one."""
    save(tmp_path / "one", 5)
    backbone = lmr.load(tmp_path / "one")
    (tmp_path / "two").mkdir()
    backbone.write_huggingface(tmp_path / "two", {})
    again = CLIPModel.from_pretrained(tmp_path / "two")
    torch.testing.assert_close(expect(again, tmp_path / "two"), backbone.encode_text(TEXTS), rtol=0, atol=1e-5)
    twin = lmr.load(tmp_path / "two")
    torch.testing.assert_close(twin.encode_text(TEXTS), backbone.encode_text(TEXTS), rtol=0, atol=1e-5)


def test_tokenizer_decides_the_digest(tmp_path: Path) -> None:
    save(tmp_path)
    digest = lmr.load(tmp_path).text_digest()
    assert lmr.load(tmp_path).text_digest() == digest
    text = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(text.replace('"cat"', '"cow"'))
    assert lmr.load(tmp_path).text_digest() != digest
    used, fresh = processors.make_tokenizer(), processors.make_tokenizer()
    used("a cat", padding="max_length", truncation=True, max_length=9)  # the tokenizers library remembers this
    assert digest_tokenizer(used) == digest_tokenizer(fresh)


def test_end_token_and_context_decide_the_digest(tmp_path: Path) -> None:
    """Both decide the features of a text, so prototypes kept for one end token are not those of another."""
    save(tmp_path)
    backbone = lmr.load(tmp_path)
    assert isinstance(backbone, Clip)
    own, digest = backbone._own_tokenizer, backbone.text_digest()
    assert own is not None
    for name, value in (("end", 2), ("context", own.context - 1)):
        before = getattr(own, name)
        setattr(own, name, value)
        assert backbone.text_digest() != digest
        setattr(own, name, before)
    assert backbone.text_digest() == digest


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": 3}', "\x00"])
def test_broken_file_gets_a_message(content: str, tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(lmr.LmrError, match=r"tokenizer in .*; expected tokenizer\.json with tokenizer_config\.json"):
        lmr.load(tmp_path)


def test_vocabulary_of_another_kind_is_not_made_up(tmp_path: Path) -> None:
    """Without a file that it knows, transformers gives a tokenizer of two special tokens."""
    maker.write_huggingface(maker.make_model(), tmp_path)
    (tmp_path / "spiece.model").write_bytes(b"?")
    with pytest.raises(lmr.LmrError, match="has no vocabulary"):
        read_tokenizer(tmp_path)
    with pytest.raises(lmr.LmrError, match="has no vocabulary"):
        lmr.load(tmp_path)


def test_code_beside_the_weights_never_runs(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "mine.py").write_text("raise SystemExit('run')")
    change(tmp_path / "tokenizer_config.json", auto_map={"AutoTokenizer": ["mine.Mine", None]}, tokenizer_class="Mine")
    assert len(read_tokenizer(tmp_path)) == 14  # transformers reads the files and leaves the code alone


def test_tokens_that_do_not_fit_are_refused() -> None:
    sizes = {"context": 9, "end": 13}
    with pytest.raises(lmr.LmrError, match="gives the token 13, but the model knows only 10 tokens"):
        TransformersTokenizer(processors.make_tokenizer(), "mine", vocabulary=10, **sizes)(["cat"])
    with pytest.raises(lmr.LmrError, match="does not end texts with the token 3"):
        TransformersTokenizer(processors.make_tokenizer(), "mine", vocabulary=14, **sizes | {"end": 3})(["cat"])
    read = TransformersTokenizer(processors.make_tokenizer(), "mine", vocabulary=14, **sizes)
    tokens, end = read(["cat", "a photo of the dog"])
    assert tokens.tolist() == [[1, 7, 13, 0, 0, 0, 0], [1, 3, 4, 5, 6, 8, 13]]
    assert end.tolist() == [2, 6]
    for texts in ("cat", [], [3]):
        with pytest.raises(lmr.LmrError):
            read(texts)  # type: ignore[arg-type]


WORDS = (PAD, START, END, "a", "photo", "of", "oak", "tree", "cat", "palm")
FREE = WordTokenizer("small", WORDS)
NAMED = WordTokenizer("named", WORDS, ("oak tree", "palm tree", "cat"))


@pytest.mark.parametrize("tokenizer", [FREE, NAMED])
def test_texts_become_ids_and_ends(tokenizer: WordTokenizer) -> None:
    tokens, end = tokenizer(["a Photo of a cat.", "oak_tree"], context=8)
    assert tokens.tolist() == [[1, 3, 4, 5, 3, 8, 2], [1, 6, 7, 2, 0, 0, 0]]
    assert end.tolist() == [6, 3]


def test_without_names_any_words_may_be_joined() -> None:
    assert FREE(["cat tree"], 8)[0].tolist() == [[1, 8, 7, 2]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a photo of a tree", "knows no class 'tree', as in 'a photo of a tree'. Near ones: oak tree, palm tree."),
        ("a cat tree", "knows no class 'cat tree'"),
        ("a photo", "needs a class name in 'a photo'"),
        ("a photo of cats", "does not know the word 'cats' in 'a photo of cats'. Near ones: cat."),
        ("", "needs a class name in ''"),
    ],
)
def test_with_names_only_these_are_read(text: str, words: str) -> None:
    with pytest.raises(LmrError) as error:
        NAMED([text], 8)
    assert words in str(error.value)
    assert "It knows 3 class names and 3 words around them; 'lmr doctor named' lists both." in str(error.value)


def test_unknown_word_without_names_lists_the_vocabulary() -> None:
    with pytest.raises(LmrError, match=r"does not know the word 'photos' .*Did you mean 'photo'.*a, photo, of, oak"):
        FREE(["a photos"], 8)


def test_long_texts_and_empty_lists_are_refused() -> None:
    with pytest.raises(LmrError, match="has 7 words; the small model reads at most 6"):
        FREE(["a " * 7], 8)
    with pytest.raises(LmrError, match="at least one text"):
        FREE([], 8)
