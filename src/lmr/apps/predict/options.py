"""The options of ``lmr predict``: one list for Python, the command line and the machines of a cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lmr.apps.options import DEFAULT_MODEL, AnyPath, ModelOptions, Prompts
from lmr.core.errors import LmrError
from lmr.watch.settings import WatchSettings, read_watch


@dataclass(frozen=True, kw_only=True)
class PredictOptions(ModelOptions):
    """Everything that ``lmr predict`` is given except the images; those of the model are in ``ModelOptions``."""

    labels: AnyPath | Sequence[str]
    model: str = DEFAULT_MODEL
    method: str = "steady"
    """a method of 'lmr list', with arguments as in "lmr(lr=5e-4)"; values that are not given follow from the number of
    classes. steady adapts after the images have changed, lmr from the first image on"""
    prior: AnyPath | Mapping[str, float] | None = None
    """the class shares to expect: history, those of the images before the first change; uniform, about as many images
    of each class, for images that are bad from the first one on; shares such as car=0.8,truck=0.1, where the other
    classes share the rest evenly; or a file of name,share lines (default: the method's own)"""
    budget: float | None = None
    """spend at most X forward passes per image, with the cheaper form of the method that keeps most of its gain (the
    published method takes about 3, the frozen model 1)"""
    unknown: str | float | None = None
    """images whose score ``known`` is below this have no label and teach nothing; "auto" chooses it without labels"""
    templates: Sequence[str] | None = None
    prompts: Prompts | None = None  # a JSON file, or its content
    batch_size: int = 64  # images per adaptation step
    top: int = 5  # classes to list for each image
    every: int = 1  # label every N-th frame of a video
    column: str | None = None
    """the column of a list that has the paths, or in a .parquet file the bytes of the images (default: path, file_name,
    filename, file, image or image_path; if there is none of them, bytes)"""
    out: AnyPath | None = None  # write to FILE.jsonl or FILE.csv (default: JSON lines on standard output)
    state: AnyPath | None = None
    """keep what was learnt in this file: it is read at the start if it exists, and written after every batch; with
    --stream-by, a folder with such a file per stream, written at the end"""
    adopt: bool = False
    """continue the --state of a run with other --labels: what was learnt stays, what belongs to a class follows its
    name, and new classes begin anew"""
    watch: str = "off"
    """on: watch the adaptation without labels and roll it back when it goes wrong; report: only say so"""
    resume: bool = False
    """resume an interrupted run; with --state, also label the images that were added since a run ended"""
    overwrite: bool = False  # replace --out if it exists (default: refuse to)
    stream_by: str | None = None
    """adapt to every stream on its own: the images of one folder, those in whose paths a regular expression finds the
    same text for its one group, or those with the same value in a column of the list; needs --out, which has the
    streams one after the other"""
    shards: int | None = None
    """with --ray: divide the streams into N shards with about the same number of images, which run at the same time
    (default: as many as the cluster has room for)"""

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

        The prior becomes an argument of the method. With ``read_prompts`` the prompts become the content of their file,
        for machines that do not have it.
        """
        from lmr.apps.model_options import add_prior, choose_prompts, read_labels  # slow to import
        from lmr.core.known import check_unknown

        numbers = {"batch size": self.batch_size, "number of top classes": self.top, "step between frames": self.every}
        names = read_labels(self.labels)
        for name, number in numbers.items():
            if not isinstance(number, int) or number < 1:
                raise LmrError(f"Expected a {name} of at least 1, got {number!r}.")
        if self.resume and self.overwrite:
            raise LmrError("Choose between --resume (continue the output) and --overwrite (replace it).")
        if self.adopt and (self.state is None or self.resume):
            raise LmrError("--adopt is for the --state of an earlier run with other labels, and not for --resume.")
        if self.shards is not None and self.shards < 1:
            raise LmrError(f"Expected at least one shard, got {self.shards}.")
        _ = self.watch_settings
        unknown = check_unknown(self.unknown)
        prompts = self.prompts
        if prompts is None or isinstance(prompts, (str, os.PathLike)):
            wording = choose_prompts(self.templates, prompts)
            prompts = None if prompts is None else wording
        if read_prompts and isinstance(prompts, (str, os.PathLike)):
            prompts = json.loads(Path(prompts).read_text("utf-8-sig"))
        method = self.method if self.prior is None else add_prior(self.method, self.prior, names)
        return replace(
            self,
            labels=names,
            prompts=prompts,
            top=min(self.top, len(names)),
            method=method,
            prior=None,
            unknown=unknown,
        )
