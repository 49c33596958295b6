"""Prompts: the texts of each class from templates, and their tokens, encoded by the text tower they are given to.

Tokenised prompts are objects and not closures, so that they can be copied and pickled. They go to the device of the
tower, so that a tower that was moved can still read them.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.core.class_names import check_class_names
from lmr.core.errors import LmrError
from lmr.core.files import read_json
from lmr.core.placement import find_placement, widen
from lmr.core.spec import simplify_name, suggest
from lmr.models.towers.text import TextTower, encode_after

DEFAULT_TEMPLATES = ("a photo of a {}.",)

# Templates with {} where the class name goes; or class -> sentences; or the path of a JSON file of the latter.
Templates = Sequence[str] | Mapping[str, Sequence[str]] | str | os.PathLike[str]


def write_prompts(names: Sequence[str], templates: Templates) -> list[list[str]]:
    """Return the prompts of every class, at least one each, in the order of the names.

    Underscores in names read as spaces. A set of sentences per class (Pratt et al. 2023, CuPL) is matched to the names
    regardless of case and underscores; other classes in the set are ignored.
    """
    if isinstance(names, str) or (isinstance(templates, str) and "{}" in templates):
        raise LmrError("Expected lists of class names and of templates, got a single text; put it in a list.")
    names = list(names)
    check_class_names(names)
    if len(names) < 2:
        raise LmrError(f"Expected at least two class names, got {names}.")
    _refuse_lookalikes(names)
    if isinstance(templates, str | os.PathLike):
        return _pick_sentences(names, read_sentences(templates), f"The prompt file {os.fspath(templates)!r}")
    if isinstance(templates, Mapping):
        return _pick_sentences(names, templates, "The set of prompts")
    templates = list(templates)
    if not templates or not all(isinstance(template, str) and "{}" in template for template in templates):
        raise LmrError(f"Expected templates with {{}} where the class name goes, got {templates[:5]}.")
    return [[_fill(template, name) for template in templates] for name in names]


def read_sentences(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the object class -> sentences in a JSON file."""
    content = read_json(path, "the JSON file of prompts")
    if not isinstance(content, dict):
        raise LmrError(
            f"Expected class -> list of sentences in {os.fspath(path)!r}, found a {type(content).__name__} instead."
        )
    return content


def _pick_sentences(names: Sequence[str], sentences: Mapping[str, Sequence[str]], where: str) -> list[list[str]]:
    keys: dict[str, list[str]] = defaultdict(list)
    for key in sentences:
        keys[simplify_name(str(key))].append(key)
    missing = [name for name in names if name not in sentences and simplify_name(name) not in keys]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise LmrError(
            f"{where} has no sentences for {', '.join(map(repr, missing[:5]))}{more}; it needs every one of the "
            f"{len(names)} classes and has {len(sentences)}.{suggest(missing[0], map(str, sentences))}"
        )
    prompts = []
    for name in names:
        found = [name] if name in sentences else keys[simplify_name(name)]
        if len(found) > 1:
            raise LmrError(f"{where} has both {found[0]!r} and {found[1]!r} for the class {name!r}; keep one of them.")
        own = sentences[found[0]]
        usable = isinstance(own, Sequence) and not isinstance(own, str | bytes) and len(own) > 0
        if not usable or not all(isinstance(text, str) and text.strip() for text in own):
            raise LmrError(
                f"{where} should give {found[0]!r} a list of sentences, none of them empty; got {own!r:.100}."
            )
        prompts.append([_fill(text, name) for text in own])
    return prompts


def _refuse_lookalikes(names: Sequence[str]) -> None:
    """Refuse two spellings of one name. The same name may occur twice, as in CLIP's names of ImageNet's classes."""
    spellings: dict[str, str] = {}
    for name in names:
        earlier = spellings.setdefault(" ".join(name.replace("_", " ").split()), name)
        if earlier != name:
            raise LmrError(
                f"The class names {earlier!r} and {name!r} differ only in white space or underscores, so they would "
                "get the same prompts. Remove or rename one of them."
            )


def _fill(template: str, name: str) -> str:
    return str(template.replace("{}", name.replace("_", " ").strip()))


class TokenPrompts:
    """Token ids [N, L] of N prompts, for a tower that takes nothing else."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens

    def __call__(self, tower: nn.Module, part: slice) -> Tensor:
        """Return features [n, D] of some prompts, as the tower gives them."""
        features: Tensor = tower(bring(self.tokens[part], tower))
        return features

    def encode(self, tower: nn.Module) -> Tensor:
        """Return unit features [N, D] of all prompts, without gradient and never below float32."""
        with torch.no_grad():
            raw = self(tower, slice(0, len(self.tokens)))
            return F.normalize(raw.to(widen(raw.dtype)), dim=-1)


class CausalPrompts(TokenPrompts):
    """Token ids [N, L] and where each prompt ends [N], for a causal tower.

    Every part is cut to its own longest prompt, as tokens after the end cannot change a feature.
    """

    def __init__(self, tokens: Tensor, end: Tensor) -> None:
        super().__init__(tokens)
        self.end = end

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return int(self.end.max()) + 1

    def __call__(self, tower: nn.Module, part: slice) -> Tensor:
        """Return features [n, D] of some prompts, as the tower gives them."""
        end = self.end[part]
        features: Tensor = tower(*(bring(x, tower) for x in (self.tokens[part, : int(end.max()) + 1], end)))
        return features


def bring(tokens: Tensor, tower: nn.Module) -> Tensor:
    """Return tokens on the device of the tower. They are kept on the host, so that cutting them waits for no device."""
    placement = find_placement(tower)
    return tokens if placement is None else tokens.to(placement[0])


Tokenize = Callable[[Sequence[str]], tuple[Tensor, Tensor]]  # texts to ids [N, L] and where each text ends [N]


class ContextTokens:
    """Token ids [C, L] of prompts that begin alike, with a start token and ``words`` context words; their ends [C].

    What comes before the class name is the same for all classes. The tower is causal, so it is computed once for all
    of them. Classes with names of equal length are encoded together, as the longest decides the cost.
    """

    def __init__(self, tokens: Tensor, end: Tensor, words: int) -> None:
        self.tokens, self.end, self.words = tokens, end, words
        self.order = end.sort(stable=True).indices

    def start(self, tower: nn.Module) -> Tensor:
        """Return the vectors [n, w] of the context's words."""
        assert isinstance(tower, TextTower)
        words: Tensor = tower.words(self.tokens[0, 1 : 1 + self.words].to(tower.positions.device))
        return words

    def encode(self, tower: nn.Module, classes: Tensor, context: Tensor) -> Tensor:
        """Return raw features [k, D] of some classes with a context [n, w]."""
        assert isinstance(tower, TextTower)
        device, end = tower.positions.device, self.end[classes]
        first = tower.words(self.tokens[:1, 0].to(device))
        rest = self.tokens[classes, 1 + self.words : int(end.max()) + 1]
        prefix = torch.cat([first, context.to(first.dtype)])
        return encode_after(tower, prefix, rest.to(device), end.to(device) - len(prefix))


class ContextTokenizer:
    """Writes "context name." for every class and tokenises it: what a TextSide calls to ``learn`` a context."""

    def __init__(self, tokenize: Tokenize) -> None:
        self.tokenize = tokenize

    def __call__(self, context: str, names: Sequence[str]) -> ContextTokens:
        """Return the prompts; the context's tokens are those that the names alone do not have."""
        if not context.strip() or "{}" in context:
            raise LmrError(f"Expected words such as 'a photo of a' as the context of the prompts, got {context!r}.")
        tokens, end = self._read(f"{context.strip()} {{}}.", names)
        bare, bare_end = self._read("{}.", names)
        words = int(end[0] - bare_end[0])
        rows = zip(tokens, end.tolist(), bare, strict=True)
        if words < 1 or not all(_joins(row[: last + 1], tokens[0, 1 : 1 + words], own) for row, last, own in rows):
            raise LmrError(
                f"The prompts '{context} NAME.' do not have the tokens of {context!r} followed by those of the class "
                "name, for every class. Choose another context, or shorter class names."
            )
        return ContextTokens(tokens, end, words)

    def _read(self, template: str, names: Sequence[str]) -> tuple[Tensor, Tensor]:
        return self.tokenize([own[0] for own in write_prompts(names, [template])])


def _joins(prompt: Tensor, context: Tensor, name: Tensor) -> bool:
    """Return True if a prompt is a start token, the context's tokens, and the name's without start and padding."""
    begun = 1 + len(context)
    rest = prompt[begun:]
    return torch.equal(prompt[1:begun], context) and torch.equal(rest, name[1 : 1 + len(rest)])
