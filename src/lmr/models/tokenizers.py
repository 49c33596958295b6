"""Tokenizers: CLIP's byte-pair encoding, those of transformers, and the words of the embedded models."""

from __future__ import annotations

import gzip
import hashlib
import html
import json
import re
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.core.spec import find_near, list_unknown
from lmr.models.transformers_library import import_transformers, quiet_transformers, shorten_error

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MERGES = Path(__file__).with_name("assets") / "clip_merges.txt.gz"  # source and licence: clip_merges.LICENSE.txt
MERGE_COUNT = 48_894
CLIP_START, CLIP_END = 49_406, 49_407  # after 256 bytes, 256 bytes that end a word, and the merges
SPECIAL = ("<|startoftext|>", "<|endoftext|>")
HIGHEST = 2  # as the id of the end token: "the highest id of a text", in configurations of early versions
PAD, START, END = "<pad>", "<start>", "<end>"  # the first three words of every vocabulary of whole words

TOKENIZER_JSON, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
VOCABULARY_FILE, MERGES_FILE = "vocab.json", "merges.txt"
_OTHER_VOCABULARIES = ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model", "vocab.txt")

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
        """Return ids int64 [N, longest], zero after the end, and the position [N] of each text's end token.

        The set is cut to its longest text: the text tower is causal, so tokens after the end cannot change a feature.
        """
        texts = check_texts(texts)
        encoder = build_encoder()  # text by text: batches start threads, and a later fork would warn about them
        rows = [[CLIP_START, *encoder.encode(clean(text)).ids[: self.context - 2], CLIP_END] for text in texts]
        # CLIP takes the feature of the first end token, also where a text contains "<|endoftext|>" itself.
        return _pad(rows), torch.tensor([row.index(CLIP_END) for row in rows])


def check_texts(texts: Sequence[str]) -> list[str]:
    """Return the texts as a list; anything else is refused."""
    if isinstance(texts, str):
        raise LmrError(f"Expected a list of texts, got the single text {texts[:50]!r}; put it in a list.")
    texts = list(texts)
    if not texts or not all(isinstance(text, str) for text in texts):
        raise LmrError(f"Expected at least one text to encode and nothing but texts, got {texts[:5]}.")
    return texts


def _pad(rows: list[list[int]]) -> Tensor:
    """Return ids int64 [N, longest], zero after the end of each row."""
    longest = max(map(len, rows))
    return torch.tensor([row + [0] * (longest - len(row)) for row in rows])


def clean(text: str) -> str:
    """Return the text as CLIP reads it: repaired, without HTML entities, with single spaces, in lower case."""
    import ftfy

    text = html.unescape(html.unescape(ftfy.fix_text(text)))  # twice: captions from the web are often escaped twice
    return re.sub(r"\s+", " ", text).strip().lower()


@cache
def build_encoder() -> Tokenizer:
    """Build the byte-pair encoder without special tokens around a text, once per process (about 0.2 s)."""
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
    """Read the merges in their order; a damaged file is refused."""
    try:
        lines = gzip.decompress(MERGES.read_bytes()).decode().splitlines()
        merges = [(left, right) for left, right in (line.split(" ") for line in lines)]
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise LmrError(f"{str(MERGES)!r} does not hold CLIP's merges; reinstall lmr. ({error})") from error
    if len(merges) != MERGE_COUNT:
        raise LmrError(f"{str(MERGES)!r} holds {len(merges)} merges instead of {MERGE_COUNT}; reinstall lmr.")
    return merges


def list_words() -> list[str]:
    """List the vocabulary in the order of its ids without special tokens: bytes, bytes that end a word, merges."""
    # GPT-2's alphabet: printable bytes of Latin-1 stand for themselves, the others take the characters from U+0100 on.
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    symbols = [chr(code) for code in (*printable, *range(256, 512 - len(printable)))]
    return [*symbols, *(symbol + "</w>" for symbol in symbols), *(left + right for left, right in read_merges())]


def has_tokenizer(folder: Path) -> bool:
    """Return True if the folder has a file with a vocabulary."""
    names = (TOKENIZER_JSON, VOCABULARY_FILE, MERGES_FILE, *_OTHER_VOCABULARIES)
    return any((folder / name).is_file() for name in names)


def has_foreign_tokenizer(folder: Path) -> bool:
    """Return True if a file shows that this folder's tokenizer is not CLIP's; False if it is, or has no files.

    Vocabulary and merges are compared; the tokens that begin and end a text may be stored in any of the files.
    """
    checks: dict[str, Callable[[str], bool]] = {
        TOKENIZER_JSON: is_clip_json,
        VOCABULARY_FILE: lambda text: _is_clip_vocabulary(json.loads(text)),
        MERGES_FILE: lambda text: _is_clip_merges([line for line in text.split("\n") if line[:8] != "#version"]),
    }
    present = [name for name in checks if (folder / name).is_file()]
    try:
        if present:
            return not all(checks[name]((folder / name).read_text(encoding="utf-8")) for name in present)
        if has_tokenizer(folder):
            return True
        path = folder / TOKENIZER_CONFIG
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return bool(present)  # a vocabulary that cannot be read is not known to be CLIP's
    kind = content.get("tokenizer_class") if isinstance(content, dict) else None
    return isinstance(kind, str) and not kind.startswith("CLIPTokenizer")


def is_clip_json(text: str) -> bool:
    """Return True if the text of a tokenizer.json is CLIP's; merges are pairs, in early files texts with a space."""
    content = json.loads(text)
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict) or not isinstance(model.get("merges"), list):
        return False
    merges = [" ".join(map(str, pair)) if isinstance(pair, list) else pair for pair in model["merges"]]
    return _is_clip_vocabulary(model.get("vocab")) and _is_clip_merges(merges)


def _is_clip_merges(merges: list[str]) -> bool:
    return [merge for merge in merges if merge] == [" ".join(pair) for pair in read_merges()]


def _is_clip_vocabulary(vocabulary: Any) -> bool:
    """Return True if these ids are CLIP's, the two special tokens aside."""
    if not isinstance(vocabulary, dict) or not all(isinstance(number, int) for number in vocabulary.values()):
        return False
    own = {word: number for word, number in vocabulary.items() if number < CLIP_START}
    return own == {word: number for number, word in enumerate(list_words())}


class TransformersTokenizer:
    """Texts to the ids of a tokenizer of transformers, and where each text ends, as CLIP's text tower needs them."""

    def __init__(self, tokenizer: Any, name: str, *, context: int, vocabulary: int, end: int) -> None:
        self.tokenizer, self.name = tokenizer, name
        self.context, self.vocabulary, self.end = context, vocabulary, end
        self.digest = digest_tokenizer(tokenizer)

    def __call__(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return ids int64 [N, longest], zero after each text, and the position [N] of each text's end token.

        The end is found as transformers' CLIP does: the first place of the configuration's end token, or of the highest
        id where that is 2. Texts are read one by one and without padding, which a causal tower does not see.
        """
        rows, ends = [], []
        for text in check_texts(texts):
            with quiet_transformers():
                row = list(map(int, self.tokenizer(text, truncation=True, max_length=self.context)["input_ids"]))
            _check_known(row, self.vocabulary, self.name)
            end = max(row) if self.end == HIGHEST else self.end
            if end not in row:
                raise LmrError(
                    f"The tokenizer of {self.name!r} does not end texts with the token {end}, as the model's "
                    "configuration says; the tokenizer belongs to another model."
                )
            rows.append(row)
            ends.append(row.index(end))
        return _pad(rows), torch.tensor(ends)


class PaddedTokenizer:
    """Texts to the ids of a tokenizer of transformers, padded to the full context as in SigLIP's training."""

    def __init__(self, tokenizer: Any, name: str, context: int, vocabulary: int) -> None:
        self.tokenizer, self.name, self.context, self.vocabulary = tokenizer, name, context, vocabulary

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Return ids int64 [N, context]: SigLIP reads its feature from the last position."""
        texts = check_texts(texts)
        if type(self.tokenizer).__name__ != "SiglipTokenizer":  # which lower-cases where its model needs it
            texts = [text.lower() for text in texts]  # SigLIP 2 was trained on lower case; Gemma's tokens have both
        options = {"padding": "max_length", "truncation": True, "max_length": self.context, "return_tensors": "pt"}
        tokens: Tensor = self.tokenizer(texts, **options)["input_ids"]  # no mask: padding was attended to in training
        _check_known([int(tokens.max())], self.vocabulary, self.name)
        return tokens


def _check_known(tokens: list[int], vocabulary: int, name: str) -> None:
    """Refuse a text without tokens, and tokens that the model of this name does not know."""
    if not tokens or max(tokens) >= vocabulary:
        came = f"the token {max(tokens)}" if tokens else "no tokens"
        raise LmrError(
            f"The tokenizer of {name!r} gives {came}, but the model knows only {vocabulary} tokens; the tokenizer "
            "belongs to another model."
        )


def read_tokenizer(folder: Path, expected: str = "tokenizer.json with tokenizer_config.json") -> Any:
    """Read a tokenizer with transformers from the files of a folder, never from code."""
    purpose = f"The tokenizer in {str(folder)!r}, which is not CLIP's,"
    transformers = import_transformers(purpose)
    options = {"local_files_only": True, "trust_remote_code": False}
    try:
        with quiet_transformers():
            tokenizer: Any = transformers.AutoTokenizer.from_pretrained(str(folder), **options)
    except ImportError as error:  # transformers asks for a package that this kind of tokenizer needs
        raise LmrError(f"{purpose} needs more packages; install them with: pip install 'lmr[siglip]'") from error
    except Exception as error:  # the tokenizers library raises bare exceptions
        reason = shorten_error(error)
        raise LmrError(f"Cannot read the tokenizer in {str(folder)!r} ({reason}); expected {expected}.") from error
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):  # transformers makes one up without a file
        raise LmrError(f"The tokenizer in {str(folder)!r} has no vocabulary; expected {expected}.")
    return tokenizer


def digest_tokenizer(tokenizer: Any) -> str:
    """Return a digest of what decides the ids of a tokenizer: its class, its vocabulary and its known rules.

    It does not depend on where the tokenizer comes from, so that states fit a model from a folder and from memory.
    """
    rules = describe_rules(tokenizer) or f"lower case: {getattr(tokenizer, 'do_lower_case', None)}"
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))
    return hashlib.sha256(f"{type(tokenizer).__name__} {vocabulary} {rules}".encode()).hexdigest()


def describe_rules(tokenizer: Any) -> str | None:
    """Return the content of a tokenizer.json, for tokenizers of the tokenizers library; None for others.

    Without padding and truncation, which every call sets anew.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    content = json.loads(backend.to_str())
    return json.dumps({key: value for key, value in content.items() if key not in ("padding", "truncation")})


def name_tokenizer(tokenizer: Any) -> str:
    """Return class and size of a tokenizer, for the screen."""
    return f"{type(tokenizer).__name__}, {len(tokenizer)} tokens"


class WordTokenizer:
    """Texts to the ids of their words. A word outside the vocabulary is an error, never dropped.

    With ``names``, the model knows just these class names: the words of a text that occur in names must be one of them,
    and all other words are those around a name. So "fish" is refused where only "aquarium fish" was learnt.
    """

    def __init__(self, model: str, words: Sequence[str], names: Sequence[str] = ()) -> None:
        self.model, self.words, self.names = model, tuple(words), tuple(names)
        self._ids = {word: number for number, word in enumerate(self.words)}
        self._of_names = {word for name in names for word in name.split()}
        self.around = tuple(w for w in self.words if not w.startswith("<") and w not in self._of_names)

    def __call__(self, texts: Sequence[str], context: int) -> tuple[Tensor, Tensor]:
        """Return ids int64 [N, longest text] padded with 0, and the position [N] of each end token.

        The set is cut to its longest text: the text tower is causal, so tokens after the end cannot change a feature.
        """
        if unknown := dict(filter(None, map(self._find_unknown, texts))):
            (name, problem), *others = unknown.items()
            if others:
                listed = list_unknown([*unknown], self.names or self.around)
                raise LmrError(f"The {self.model} model does not know {listed}.{self._describe()}")
            raise LmrError(f"The {self.model} model {problem}.{self._describe(name)}")
        rows = [[self._ids[word] for word in (START, *split_words(text), END)] for text in texts]
        if not rows:
            raise LmrError("Expected at least one text to encode, got an empty list.")
        longest = max(map(len, rows))
        if longest > context:
            text = next(t for t, row in zip(texts, rows, strict=True) if len(row) == longest)
            raise LmrError(
                f"The text {text!r} has {longest - 2} words; the {self.model} model reads at most {context - 2}."
            )
        return _pad(rows), torch.tensor([len(row) - 1 for row in rows])

    def _find_unknown(self, text: str) -> tuple[str, str] | None:
        """Return the name or word of a text that is not known, and what is wrong with it; None for a known text."""
        words = split_words(text)
        if lacking := [word for word in words if word not in self._ids]:
            name = " ".join(word for word in words if word not in self.around) if self.names else lacking[0]
            return name, f"does not know the word {lacking[0]!r} in {text!r}"
        name = " ".join(word for word in words if word in self._of_names)
        if self.names and name not in self.names:
            lack = f"knows no class {name!r}, as in {text!r}" if name else f"needs a class name in {text!r}"
            return name or text, lack
        return None

    def _describe(self, word: str = "") -> str:
        """Return the end of a message about what is unknown: names or words near a word, and the known ones."""
        if not self.names:
            near = find_near(word, [w for w in self.around if len(w) > 2], 1) if word else []
            hint = f" Did you mean {near[0]!r}?" if near else ""
            return f"{hint} Its vocabulary: {', '.join(self.around)}."
        near = self.find_near(word) if word else []
        hint = f" Near ones: {', '.join(near)}." if near else ""
        return (
            f"{hint} It knows {len(self.names)} class names and {len(self.around)} words around them; 'lmr doctor "
            f"{self.model}' lists both. For other words load a CLIP model, such as ViT-B-16."
        )

    def find_near(self, words: str, count: int = 6) -> list[str]:
        """List names that share a word with these words, then names that are spelt alike or differ in number."""
        sharing = [name for name in self.names if set(name.split()) & set(words.split())]
        inside = [name for name in self.names if len(words) > 3 and (words in name or name in words)]
        return list(dict.fromkeys([*sharing, *inside, *find_near(words, self.names, count)]))[:count]


def split_words(text: str) -> list[str]:
    """Return the lower-case words of a text; punctuation, underscores and hyphens separate them."""
    return re.findall(r"[^\W_]+", text.lower())
