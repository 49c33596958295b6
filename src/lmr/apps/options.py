"""The options that commands share, for Python and the command line: the text at a field is its help.

This module imports nothing heavy, so that help is fast.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from lmr.core.errors import LmrError

if TYPE_CHECKING:
    from lmr.models import Backbone

AnyPath = str | os.PathLike[str]
Prompts = Sequence[str] | Mapping[str, Sequence[str]] | AnyPath
DType = Literal["float32", "bfloat16", "float16"]
ExportFormat = Literal["transformers", "onnx"]
DEFAULT_MODEL = "photo"  # of lmr.models.catalog, whose package is slow to import


@dataclass(frozen=True)
class ModelOptions:
    """The options of ``lmr.load``."""

    architecture: str | None = None
    """for a file that does not name its architecture: ViT-B-16-quickgelu for weights tuned from OpenAI's, which have
    QuickGELU, ViT-B-16 for those with GELU (LAION, DataComp)"""
    device: str | None = None  # where it runs, such as cuda (default: cpu)
    dtype: DType | None = None  # type of the frozen weights; adapted parameters stay float32 (default: float32)
    memory: Literal["fast", "lean"] = "fast"
    """lean: compute parts of a step twice to save memory, for large models"""

    def load(self, model: str) -> Backbone:
        """Load a model by its name, folder or file."""
        import torch

        from lmr.models import load

        if self.dtype is not None and self.dtype not in get_args(DType):
            raise LmrError(
                f"Expected one of {', '.join(get_args(DType))} as the type of the weights, got {self.dtype!r}."
            )
        dtype = None if self.dtype is None else getattr(torch, self.dtype)
        return load(model, architecture=self.architecture, device=self.device or "cpu", dtype=dtype, memory=self.memory)

    def note(self) -> dict[str, str]:
        """Return the options that may change the last bits of a result; the type of the weights is in their digest."""
        return {"device": self.device or "cpu", "memory": self.memory}


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(ModelOptions):
    """The options of ``lmr doctor``; those of the model are in ``ModelOptions``."""

    data: AnyPath | None = None
    """labelled images: a folder with one sub-folder per class, or a table with the columns path and label"""
    dataset: str | None = None
    """the dataset that the images are from, to compare with the published accuracy: imagenet, imagenet-v2, imagenet-a,
    imagenet-r, imagenet-sketch, cifar10 or cifar100"""
    labels: AnyPath | Sequence[str] | None = None
    """class names, where the sub-folders are not named by class: one per line in the sorted order of the sub-folders,
    sub-folder<TAB>name lines, JSON of either, or a,b,c"""
    templates: Sequence[str] | None = None
    prompts: AnyPath | None = None
    images: int | None = None  # use N of the images, drawn at random, the same in every run (default: all)
    batch_size: int = 64  # images at a time


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The options of ``lmr export``: class names, prompts and model as they were when the state was made."""

    labels: AnyPath | Sequence[str] | None = None
    """the class names the state was made with: a file, as lmr predict reads it, or a,b,c (default: those that a state
    of lmr predict notes, with its templates)"""
    templates: Sequence[str] | None = None
    prompts: AnyPath | None = None
    model: str = DEFAULT_MODEL
    architecture: str | None = None  # for a file that does not name its architecture
    dtype: DType | None = None  # the type the state was made with (default: float32)
    method: str | None = None  # only for a method in a file of your own; other states name their method
    stream: int | None = None  # the stream to export, from 0 on, where the state holds several
    overwrite: bool = False  # replace --out if it is an earlier export (default: refuse to)
    format: ExportFormat = "transformers"
    """a folder for transformers, or one file for onnxruntime and other runtimes of ONNX"""


@dataclass(frozen=True)
class ServerOptions:
    """Where a service listens, the token of its clients, its store, and its log."""

    host: str = "127.0.0.1"
    """the address to listen on; one that other machines reach, such as 0.0.0.0, needs --token-file (default: 127.0.0.1,
    this machine alone)"""
    port: int = 8080  # the port; 0 takes a free one
    token_file: AnyPath | None = None
    """a file with a secret text; requests must have it in the header 'Authorization: Bearer ...'"""
    store: str = "none"
    """what keeps the states: sqlite:FILE for one service, postgresql://USER@HOST/DATABASE for any number of replicas
    (several databases, with commas between them, share the streams), none for memory, which ends with the service"""
    mqtt: str | None = None
    """publish every answer to this broker, with discovery for Home Assistant: mqtt://host, or
    mqtts://user:password@host:port/prefix; needs pip install 'lmr[mqtt]'"""
    log_level: Literal["info", "warning", "error"] = "info"
    """the log, JSON lines on standard error; info has a line for every request (default: info; with --demo:
    warning)"""
