"""The facts of a loaded model: values that code compares, and texts for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

# The order in which a screen shows the texts; others follow.
TITLES = ("format", "files", "architecture", "sizes from", "activation", "preprocessing", "tokenizer", "context")


class ModelFormat(Enum):
    """The form a model's files have. The values are for the screen; code compares the members."""

    PHOTO = "lmr-photo"
    POCKET = "lmr-pocket"
    OPENAI = "OpenAI"
    OPEN_CLIP = "open_clip"
    HUGGINGFACE = "Hugging Face"
    SIGLIP = "Hugging Face, through transformers"
    MEMORY = "transformers, in memory"
    RANDOM = "random weights"
    OTHER = "other"  # a model that is not loaded by lmr.load


@dataclass(frozen=True)
class ModelFacts:
    """The facts of a loaded model. The defaults say that nothing is known, as for a model of a user's own class."""

    format: ModelFormat = ModelFormat.OTHER
    weights: Path | None = None  # the weights file, or the index of a sharded one
    unwrapped: tuple[str, ...] = ()  # tables and prefixes around the names of the tensors that were removed
    architecture: str | None = None  # open_clip's name of the sizes, where they have one
    activation_assumed: bool = False  # GELU by the named architecture alone, in sizes that OpenAI's QuickGELU has too
    reads_texts: bool = True  # False without a tokenizer
    shown: Mapping[str, str] = field(default_factory=dict)  # texts under their titles


def describe_activations(image: str, text: str) -> str:
    """Return the activations of both towers as text."""
    return image if image == text else f"{image} (image), {text} (text)"
