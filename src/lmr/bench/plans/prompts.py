"""The prompts of a plan: a template, several templates that are averaged, or a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmr.core.errors import LmrError
from lmr.core.files import read_json
from lmr.models.prompts import read_sentences, write_prompts


@dataclass(frozen=True)
class PromptSet:
    """Templates with {} for the class name, or the path of a JSON file class -> prompts, with a name."""

    name: str
    templates: tuple[str, ...] | str

    def write(self, classes: Sequence[str]) -> list[list[str]]:
        """Return the prompts of every class."""
        return write_prompts(classes, self.templates)

    def describe(self, classes: Sequence[str]) -> dict[str, Any]:
        """Return the name, the total number of prompts, and a digest of them."""
        written = self.write(classes)
        digest = hashlib.sha256(json.dumps(written).encode()).hexdigest()[:16]
        return {"name": self.name, "count": sum(map(len, written)), "digest": digest}

    @property
    def argument(self) -> str:
        """The value of the field ``prompts`` that gives this set."""
        if isinstance(self.templates, str):
            return self.templates
        several = json.dumps([list(self.templates)], ensure_ascii=False)
        return self.templates[0] if len(self.templates) == 1 else several


def read_prompt_set(entry: Any, folder: Path) -> PromptSet:
    """Read the prompts of a plan.

    A string with {} is a template, a list of such strings is averaged, any other string is the name of a file. The file
    is JSON: class -> list of prompts (as in CuPL), or a list of templates. It is looked for in ``folder`` and in the
    current folder.
    """
    if isinstance(entry, str) and "{}" in entry:
        return PromptSet(entry, (entry,))
    if isinstance(entry, list):
        # The digest distinguishes sets of equal length.
        digest = hashlib.sha256(json.dumps(entry).encode()).hexdigest()[:8]
        return _read_templates(entry, f"{len(entry)} templates {digest}")
    if not isinstance(entry, str) or not entry:
        raise LmrError(f"Expected prompts as a template with {{}}, a list of templates or a file, got {entry!r}.")
    path = next((place for place in (folder / entry, Path(entry)) if place.is_file()), None)
    if path is None:
        raise LmrError(
            f"There is no prompt file {entry!r}. CuPL's prompts for ImageNet are the file "
            "imagenet_prompts/CuPL_image_prompts.json of the repository sarahpratt/CuPL on GitHub; download it and "
            "give its path as prompts."
        )
    content = read_json(path, "the JSON file of prompts")
    if isinstance(content, list):
        return _read_templates(content, path.name)
    read_sentences(path)
    return PromptSet(path.name, str(path.resolve()))


def _read_templates(templates: Sequence[Any], name: str) -> PromptSet:
    if not templates or not all(isinstance(text, str) and "{}" in text for text in templates):
        raise LmrError(f"Expected templates with {{}} where the class name goes, got {list(templates)[:5]}.")
    return PromptSet(templates[0] if len(templates) == 1 else name, tuple(templates))
