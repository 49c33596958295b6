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
DType = Literal["auto", "float32", "bfloat16", "float16", "float64"]
DEFAULT_MODEL = "photo"  # of lmr.models.catalog, whose package is slow to import


@dataclass(frozen=True)
class ModelOptions:
    """The options of ``lmr.load``."""

    device: str | None = None  # where it runs, such as cuda (default: cpu)
    dtype: DType | None = None  # type of the frozen weights; adapted parameters stay float32 (default: float32)

    def load(self, model: str) -> Backbone:
        """Load a model by its name or folder."""
        import torch

        from lmr.models import load

        if self.dtype is not None and self.dtype not in get_args(DType):
            raise LmrError(
                f"Expected one of {', '.join(get_args(DType))} as the type of the weights, got {self.dtype!r}."
            )
        dtype = None if self.dtype in (None, "auto") else getattr(torch, str(self.dtype))
        return load(model, device=self.device or "cpu", dtype=dtype)

    def note(self) -> dict[str, str]:
        """Return the options that may change the last bits of a result."""
        return {"device": self.device or "cpu", "dtype": self.dtype or "float32"}


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(ModelOptions):
    """The options of ``lmr doctor``; those of the model are in ``ModelOptions``."""

    labels: AnyPath | Sequence[str] | None = None
    """class names to check the model with, for a model that knows few words: a file with one per line, or a,b,c"""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The options of ``lmr export``: class names, prompts and model as they were when the state was made."""

    labels: AnyPath | Sequence[str] | None = None
    """the class names the state was made with: a file, as lmr predict reads it, or a,b,c (default: those that a state
    of lmr predict notes, with its templates)"""
    templates: Sequence[str] | None = None
    prompts: AnyPath | None = None
    model: str = DEFAULT_MODEL
    dtype: DType | None = None  # the type of the weights (default: float32, which states of any type fit)
    method: str | None = None  # only for a method in a file of your own; other states name their method
    stream: int | None = None  # the stream to export, from 0 on, where the state holds several


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
    """what keeps the states: sqlite:FILE for one service, postgresql://USER@HOST/DATABASE for any number of replicas,
    none for memory, which ends with the service"""
    adopt: bool = False
    """go on with the states of a store of other classes: what they keep of a class follows its name"""
    mqtt: str | None = None
    """publish every answer to this broker, with discovery for Home Assistant: mqtt://host, or
    mqtts://user@host:port/prefix; needs pip install 'lmr[mqtt]'"""
    mqtt_password_file: AnyPath | None = None
    """a file with the password of the user of the broker, which the command line would show to other users of the
    machine (default: the variable LMR_MQTT_PASSWORD)"""
    notify: str | None = None
    """post every event, such as a camera that shows no picture, as JSON to this address of this machine; tried four
    times"""
    notify_host: str | None = None  # other hosts that --notify may name: A or A,B
    log_level: Literal["info", "warning", "error"] | None = None
    """the log, JSON lines on standard error; info has a line for every request (default: info; with --demo:
    warning)"""
