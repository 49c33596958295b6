"""The options of ``lmr predict``: one list for Python, the command line and the machines of a cluster."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from lmr.apps.method_options import MethodOptions
from lmr.apps.options import AnyPath
from lmr.core.errors import LmrError


@dataclass(frozen=True, kw_only=True)
class PredictOptions(MethodOptions):
    """Everything that ``lmr predict`` is given except the images."""

    budget: float | None = None
    """spend at most X forward passes per image, with the cheaper form of the method that keeps most of its gain (the
    published method takes about 3, the frozen model 1)"""
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
    def state_path(self) -> Path | None:
        """The file that keeps adaptation and progress: ``state``, or a temporary one beside ``out``."""
        if self.state is not None:
            return Path(self.state)
        return None if self.out is None else Path(f"{os.fspath(self.out)}.state")

    def resolve(self, read_prompts: bool = False) -> Self:
        """Check the options and read the files that they name, as far as this needs neither images nor model.

        With ``read_prompts`` the prompts become the content of their file, for machines that do not have it.
        """
        resolved = super().resolve()
        numbers = {"batch size": self.batch_size, "number of top classes": self.top, "step between frames": self.every}
        for name, number in numbers.items():
            if not isinstance(number, int) or number < 1:
                raise LmrError(f"Expected a {name} of at least 1, got {number!r}.")
        if self.resume and self.overwrite:
            raise LmrError("Choose between --resume (continue the output) and --overwrite (replace it).")
        if self.adopt and (self.state is None or self.resume):
            raise LmrError("--adopt is for the --state of an earlier run with other labels, and not for --resume.")
        if self.shards is not None and self.shards < 1:
            raise LmrError(f"Expected at least one shard, got {self.shards}.")
        prompts = resolved.prompts
        if read_prompts and isinstance(prompts, (str, os.PathLike)):
            prompts = json.loads(Path(prompts).read_text("utf-8-sig"))
        return replace(resolved, prompts=prompts, top=min(self.top, len(resolved.names)))
