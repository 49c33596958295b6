"""The options about classes, model and method that ``lmr predict``, ``lmr check`` and ``lmr serve`` share.

This module imports nothing heavy, so that help is fast.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from lmr.apps.options import DEFAULT_MODEL, AnyPath, DType, ModelOptions, Prompts
from lmr.core.errors import LmrError
from lmr.watch.settings import WatchSettings, read_watch


@dataclass(frozen=True, kw_only=True)
class MethodOptions(ModelOptions):
    """The classes, the model and the method of ``lmr predict``, ``lmr check`` and ``lmr serve``."""

    dtype: DType | None = "auto"
    """type of the frozen image tower; adapted parameters stay float32. auto: bfloat16 for a large model where the
    processor computes in it, after a check that the labels of photographs stay; otherwise float32"""
    labels: AnyPath | Sequence[str] | None = None
    """the class names: a file with one per line, with code<TAB>name lines or with JSON of either; or a,b,c"""
    model: str = DEFAULT_MODEL
    """the model: a name from 'lmr list', a Hugging Face hub name such as openai/clip-vit-base-patch16, a folder of
    weights (default: photo, which comes with lmr)"""
    method: str = "steady"
    """a method of 'lmr list', with arguments as in "lmr(lr=5e-4)"; values that are not given follow from the number of
    classes. steady adapts when its answers become less clear, lmr from the first image on"""
    prior: str | Mapping[str, float] | None = None
    """the class shares to expect: history, those counted before the answers became less clear; uniform, about as many
    images of each class, for images that are bad from the first one on; or shares such as car=0.8,truck=0.1, where
    the other classes share the rest evenly (default: the method's own)"""
    unknown: float | None = None
    """give images whose score 'known' is below X, from 0 to 1, no label and do not adapt on them; costs a forward
    pass per image (default: off, every image has a label)"""
    templates: Sequence[str] | None = None
    prompts: Prompts | None = None  # a JSON file, or its content
    reuse: float = 1.0
    """frames of a camera or a video that differ from the last new one by noise alone take its answer, without a forward
    pass: a factor of what counts as noise; 0: compute every frame"""
    watch: str = "off"
    """on: watch the adaptation of each stream without labels and roll it back when it goes wrong; report: only say
    so"""

    @property
    def names(self) -> list[str]:
        """The class names of resolved options."""
        assert isinstance(self.labels, list), "resolve() reads the class names"
        return self.labels

    @property
    def wording(self) -> Prompts | None:
        """The templates or the prompts of resolved options; None for the model's default."""
        return self.templates if self.prompts is None else self.prompts

    @property
    def watch_settings(self) -> WatchSettings | None:
        """The settings of the watch, or None if it is off."""
        return read_watch(self.watch)

    def resolve(self) -> Self:
        """Check the options as far as this needs neither images nor model, and read the files that they name.

        The prior becomes an argument of the method.
        """
        from lmr.apps.model_options import add_prior, choose_prompts, read_labels  # slow to import
        from lmr.core.known import check_unknown

        if self.labels is None:
            raise LmrError("Give the class names with --labels.")
        names, prompts = read_labels(self.labels), self.prompts
        _ = self.watch_settings
        if not 0 <= self.reuse < math.inf:
            raise LmrError(f"Expected a finite --reuse of at least 0, got {self.reuse}.")
        unknown = check_unknown(self.unknown)
        if prompts is None or isinstance(prompts, (str, os.PathLike)):
            wording = choose_prompts(self.templates, prompts)
            prompts = None if prompts is None else wording
        method = self.method if self.prior is None else add_prior(self.method, self.prior, names)
        return replace(self, labels=names, prompts=prompts, method=method, prior=None, unknown=unknown)


@dataclass(frozen=True, kw_only=True)
class LabelOptions(MethodOptions):
    """The options of ``lmr label``; of those about the method none counts."""

    out: AnyPath = "labels.csv"  # the file of labels, with lines of path,label; a file that exists is continued
    host: str = "127.0.0.1"
    """the address to listen on; with one that other machines reach, such as 0.0.0.0, the page has a secret address"""
    port: int = 0  # the port; 0 takes a free one
    estimate: bool = True  # estimate the accuracy with the model while labelling
