"""The facts of a loaded model: values for code, and the same as text for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from lmr.models.catalog import OPENAI_MODELS
from lmr.models.preprocessing import Preprocessing


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


class SizesSource(Enum):
    """The source of a model's sizes and activation."""

    CONFIG = "the configuration beside the weights"
    ARCHITECTURE = "the named architecture"
    WEIGHTS = "the weights, which are OpenAI's"
    UNKNOWN = "unknown"


class TokenizerKind(Enum):
    """The kind of tokenizer that a model reads texts with."""

    CLIP = "CLIP's byte-pair encoding"
    TRANSFORMERS = "a tokenizer of transformers"
    WORDS = "the words of the embedded model"
    NONE = "none (own vocabulary)"  # texts cannot be read
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class ModelFacts:
    """The facts of a loaded model. The defaults say that nothing is known, as for a model of a user's own class."""

    format: ModelFormat = ModelFormat.OTHER
    weights: Path | None = None  # the weights file, or the index of a sharded one
    container: str = ""  # how the file stores tensors, for the screen
    unwrapped: tuple[str, ...] = ()  # tables and prefixes around the names of the tensors that were removed
    architecture: str | None = None  # open_clip's name of the sizes, where they have one
    sizes: str = ""  # the sizes as text, where they have no name
    sizes_source: SizesSource = SizesSource.UNKNOWN
    config: str = ""  # the name of the configuration file that decided the sizes, if one did
    activations: tuple[str, str] | None = None  # of the image tower and the text tower
    preprocessing: Preprocessing | None = None
    preprocessing_file: str | None = None  # None where the constants of the model's family are used
    tokenizer: TokenizerKind = TokenizerKind.UNKNOWN
    tokenizer_name: str = ""  # of a tokenizer of transformers: its class and the size of its vocabulary
    context: int | None = None  # tokens of the longest text
    remarks: Mapping[str, str] = field(default_factory=dict)  # what else the file says of itself, for the screen

    @property
    def reads_texts(self) -> bool:
        """False if the model is known not to read texts."""
        return self.tokenizer is not TokenizerKind.NONE

    @property
    def is_huggingface(self) -> bool:
        """True if transformers reads models of this form."""
        return self.format in (ModelFormat.HUGGINGFACE, ModelFormat.SIGLIP)

    @property
    def activation_assumed(self) -> bool:
        """True if only a named architecture made the activation GELU, in sizes that OpenAI's QuickGELU models share."""
        return self.sizes_source is SizesSource.ARCHITECTURE and self.architecture in OPENAI_MODELS


def describe_facts(facts: ModelFacts) -> dict[str, str]:
    """Return the facts as text under their titles, in the order a screen shows them; unknown ones are left out."""
    shown: dict[str, str] = {}
    if facts.format is not ModelFormat.OTHER:
        shown["format"] = _describe_format(facts)
    if facts.weights is not None or facts.format is ModelFormat.RANDOM:
        shown["files"] = str(facts.weights or "none")
    if facts.sizes_source is not SizesSource.UNKNOWN or facts.architecture or facts.sizes:
        shown["architecture"] = facts.architecture or facts.sizes or "own sizes"
    if facts.sizes_source is not SizesSource.UNKNOWN:
        shown["sizes from"] = _describe_sizes_source(facts)
    if facts.activations is not None:
        image, text = facts.activations
        shown["activation"] = image if image == text else f"{image} (image), {text} (text)"
    if facts.preprocessing is not None:
        shown["preprocessing"] = _describe_preprocessing(facts.preprocessing, facts)
    if facts.tokenizer is not TokenizerKind.UNKNOWN:
        shown["tokenizer"] = facts.tokenizer_name or facts.tokenizer.value
    if facts.context is not None:
        shown["context"] = str(facts.context)
    if facts.unwrapped:
        shown["unwrapped"] = ", ".join(facts.unwrapped)
    return shown | dict(facts.remarks)


def _describe_format(facts: ModelFacts) -> str:
    if not facts.container:
        return facts.format.value
    form, comma, how = facts.format.value.partition(", ")
    return f"{form} ({facts.container}){comma}{how}"


def _describe_sizes_source(facts: ModelFacts) -> str:
    source, shown = facts.sizes_source, facts.sizes_source.value
    if source is SizesSource.CONFIG and facts.config:
        return facts.config
    return f"{shown} {facts.architecture}" if source is SizesSource.ARCHITECTURE else shown


def _describe_preprocessing(preprocessing: Preprocessing, facts: ModelFacts) -> str:
    family = "SigLIP" if facts.format is ModelFormat.SIGLIP else "CLIP"
    edge = "short side" if preprocessing.resize == "short" else preprocessing.resize
    source = facts.preprocessing_file or f"{family}'s own constants"
    return f"{edge} to {preprocessing.resolution}, {preprocessing.interpolation}; from {source}"
