"""The options of ``lmr predict``: one list for Python, the command line and the machines of a cluster."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

from lmr.apps.method_options import MethodOptions
from lmr.apps.options import AnyPath
from lmr.core.errors import LmrError
from lmr.core.files import read_json


@dataclass(frozen=True, kw_only=True)
class PredictOptions(MethodOptions):
    """Everything that ``lmr predict`` is given except the images."""

    batch_size: int = 64  # images per adaptation step
    top: int = 5  # classes to list for each image
    passes: int = 2
    """over image files: the second pass answers all of them with what the first has learnt; videos, streams, --state
    and --truth have one"""
    every: int = 1  # label every N-th frame of a video
    truth: AnyPath | None = None
    """true labels of some of the images, as 'lmr label' writes them: lines of path,label; or a folder with one
    sub-folder per class; they correct all answers, and show how accurate these are"""
    column: str | None = None
    """the column of a list that has the paths (default: path, file_name, filename, file, image or image_path)"""
    out: AnyPath | None = None
    """write to FILE.jsonl or FILE.csv (default: JSON lines on standard output); with --stream-by, to a folder with one
    .jsonl file per stream"""
    html: AnyPath | None = None
    """also write a page with all images, the answers of the frozen and the adapted model, and a filter by class; it
    costs one more forward pass per image"""
    state: AnyPath | None = None
    """keep what was learnt in this file: it is read at the start if it exists, and written after every batch; with
    --stream-by, a folder with such a file per stream"""
    adopt: bool = False
    """continue the --state of a run with other --labels: what was learnt stays, what belongs to a class follows its
    name, and new classes begin anew"""
    resume: bool = False
    """resume an interrupted run; with --state, also label the images that were added since a run ended"""
    overwrite: bool = False  # replace --out if it exists (default: refuse to)
    stream_by: str | None = None
    """adapt to every stream on its own: the images of one folder, or those in whose paths a regular expression finds
    the same text for its one group"""

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
        if self.passes not in (1, 2):
            raise LmrError(f"Expected 1 or 2 passes, got {self.passes!r}.")
        if self.resume and self.overwrite:
            raise LmrError("Choose between --resume (continue the output) and --overwrite (replace it).")
        if self.adopt and (self.state is None or self.resume):
            raise LmrError("--adopt is for the --state of an earlier run with other labels, and not for --resume.")
        if self.truth is not None:
            for option in ("state", "stream_by", "adopt"):
                if getattr(self, option):
                    name = option.replace("_", "-")
                    raise LmrError(f"--truth answers all images as one folder, so that --{name} does not fit; omit it.")
        if self.html is not None and self.out is not None and not os.fspath(self.out).lower().endswith(".jsonl"):
            raise LmrError("--html shows the answers of a .jsonl file; give --out FILE.jsonl, or no --out.")
        if self.html is not None and self.stream_by is not None:
            raise LmrError("--html shows one file of answers, so that --stream-by does not fit; omit one of them.")
        prompts = resolved.prompts
        if read_prompts and isinstance(prompts, (str, os.PathLike)):
            prompts = read_json(prompts, "the prompts in")
        return replace(resolved, prompts=prompts, top=min(self.top, len(resolved.names)))


@dataclass(frozen=True, kw_only=True)
class CheckOptions(PredictOptions):
    """The options of ``lmr check``; of the others, those about classes, model, method and batches count."""

    truth: AnyPath | None = None
    """true labels of some of the images of any folder, as 'lmr label' writes them: lines of path,label (default: the
    names of the sub-folders); all of them judge, and each image is corrected by the others"""
    passes: int = 2
    """also try a second pass of the method, as 'lmr predict' does it over image files; 1 tries none"""
    order: Literal["names", "times"] = "names"
    """answer the images in the order of their file names, whatever their folders, or of the times when the files were
    last changed"""
