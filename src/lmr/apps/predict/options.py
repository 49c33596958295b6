"""The options of ``lmr predict``: one list for Python, the command line and the machines of a cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lmr.apps.model_options import AnyPath, ModelOptions, Prompts, choose_prompts, read_labels
from lmr.core.errors import LmrError
from lmr.models.catalog import DEFAULT_MODEL
from lmr.watch.settings import WatchSettings, read_watch


@dataclass(frozen=True, kw_only=True)
class PredictOptions(ModelOptions):
    """Everything that ``lmr predict`` is given except the images; those of the model are in ``ModelOptions``."""

    labels: AnyPath | Sequence[str]  # class names, a file of them, or a text "a,b,c"
    model: str = DEFAULT_MODEL
    method: str = "lmr"
    budget: float | None = None  # plain forwards per image that a step may cost
    templates: Sequence[str] | None = None  # texts around the class names
    prompts: Prompts | None = None  # instead of templates: a JSON file, or its content
    batch_size: int = 64
    top: int = 5  # classes to list for each image
    every: int = 1  # of a video, every N-th frame is labelled
    column: str | None = None  # of a list of paths, where it is not clear
    watch: str = "off"  # "on", "report" or "off"
    out: AnyPath | None = None  # a .jsonl or .csv file; None: JSON lines on standard output
    state: AnyPath | None = None  # keeps the adaptation from one run to the next: a file, with streams a folder
    resume: bool = False  # continue an interrupted run
    overwrite: bool = False  # replace an existing ``out``
    stream_by: str | None = None  # "folder", "column:NAME" or a regular expression: one adaptation per stream
    shards: int | None = None  # with streams: groups of streams that are labelled one after the other

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

    @property
    def state_path(self) -> Path | None:
        """The file that keeps adaptation and progress: ``state``, or a temporary one beside ``out``."""
        if self.state is not None:
            return Path(self.state)
        return None if self.out is None else Path(f"{os.fspath(self.out)}.state")

    def resolve(self, read_prompts: bool = False) -> PredictOptions:
        """Check the options as far as this needs neither images nor model, and read the files that they name.

        With ``read_prompts`` the prompts become the content of their file, for machines that do not have it.
        """
        numbers = {"batch size": self.batch_size, "number of top classes": self.top, "step between frames": self.every}
        names = read_labels(self.labels)
        for name, number in numbers.items():
            if not isinstance(number, int) or number < 1:
                raise LmrError(f"Expected a {name} of at least 1, got {number!r}.")
        if self.resume and self.overwrite:
            raise LmrError("Choose between --resume (continue the output) and --overwrite (replace it).")
        if self.shards is not None and self.shards < 1:
            raise LmrError(f"Expected at least one shard, got {self.shards}.")
        _ = self.watch_settings
        prompts = self.prompts
        if prompts is None or isinstance(prompts, (str, os.PathLike)):
            wording = choose_prompts(self.templates, prompts)
            prompts = None if prompts is None else wording
        if read_prompts and isinstance(prompts, (str, os.PathLike)):
            prompts = json.loads(Path(prompts).read_text("utf-8-sig"))
        return replace(self, labels=names, prompts=prompts, top=min(self.top, len(names)))
