"""Saved: what a method and a wrapper of one have in common: they step, and are saved, loaded and moved."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

import torch
from torch import Tensor, nn

from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.files import write_atomically
from lmr.core.placement import Device
from lmr.core.prediction import Prediction, State
from lmr.core.state import decode_state, encode_state, find_tensors, identify, read_names, read_state
from lmr.core.streams import StreamIds, Streams


class Saved:
    """What is saved and loaded: a method, or a wrapper of one."""

    # Subclasses have these; a wrapper takes from its method what it does not define.
    classifier: ZeroShot
    streams: int
    state: State
    spec: str
    step: Callable[..., Prediction]
    reset: Callable[..., None]
    session: Callable[[], AbstractContextManager[None]]
    check: Callable[..., tuple[Tensor, Streams]]
    find_rows: Callable[[StreamIds], Tensor]
    state_dict: Callable[..., dict[str, Any]]
    load_state_dict: Callable[..., None]
    stand_in: Callable[[Sequence[str], str, int], Saved]
    carry: Callable[[Mapping[str, Tensor], Any], State]

    def as_module(self) -> nn.Module:
        """Return an ``nn.Module`` whose ``forward(images)`` adapts on the batch and returns its logits."""
        return MethodModule(self)

    def to(self, device: Device | torch.dtype | None = None, dtype: torch.dtype | str | None = None) -> Self:
        """Move the classifier as ``ZeroShot.to`` does, and the state with it, in place.

        The state is never below float32. Other methods on the same classifier follow at their next call.
        """
        self.classifier.to(device, dtype)
        with self.session():
            return self

    def adopt(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a state of other classes as one of the classes of this method, as ``with_classes`` carries it over."""
        with self.session():
            if not isinstance(state, Mapping) or state.get("classes") == self.classifier.fingerprint["classes"]:
                return state
            count = find_tensors(state).get("predicted")
            streams = len(count) if isinstance(count, Tensor) and count.ndim else 0
            old = self.stand_in(read_names(state), str(state.get("classes")), max(streams, 1))
            old.load_state_dict(state)
            return old.carry_all(self)

    def carry_all(self, new: Self) -> dict[str, Any]:
        """Return the state of all streams as one of ``new``, which has other classes."""
        return {**identify(new.spec, new.classifier), "tensors": self.carry(self.state, new)}

    def save(
        self, path: str | os.PathLike[str], streams: StreamIds = None, notes: Mapping[str, str] | None = None
    ) -> None:
        """Write the state to one safetensors file, atomically, with ``notes`` that ``load`` returns."""
        write_atomically(path, self.dump(streams, notes))

    def load(self, path: str | os.PathLike[str], streams: StreamIds = None, *, adopt: bool = False) -> dict[str, str]:
        """Load a state written by ``save`` and return its notes. A file that does not fit changes nothing.

        With ``adopt`` the state may have other classes, as ``with_classes`` carries them over.
        """
        return self._load(*read_state(path), repr(os.fspath(path)), streams, adopt=adopt)

    def dump(self, streams: StreamIds = None, notes: Mapping[str, str] | None = None) -> bytes:
        """Return the content of the file that ``save`` writes."""
        if not all(isinstance(text, str) for note in (notes or {}).items() for text in note):
            raise LmrError(f"Expected notes as a mapping of strings to strings, got {notes!r}.")
        state = self.state_dict(streams)
        facts = {key: str(value) for key, value in state.items() if key != "tensors"}
        return encode_state(state["tensors"], facts | {f"note.{key}": value for key, value in (notes or {}).items()})

    def restore(self, content: bytes, streams: StreamIds = None) -> dict[str, str]:
        """Load the content of a state file, as ``load`` does."""
        name = "the given state"
        return self._load(*decode_state(content, name.capitalize()), name, streams)

    def _load(
        self,
        tensors: Mapping[str, Tensor],
        facts: Mapping[str, str],
        name: str,
        streams: StreamIds,
        *,
        adopt: bool = False,
    ) -> dict[str, str]:
        state: Mapping[str, Any] = {**facts, "tensors": tensors}
        try:
            self.load_state_dict(self.adopt(state) if adopt else state, streams)
        except LmrError as error:
            raise LmrError(f"Cannot use {name}: {error}") from error
        return {key.removeprefix("note."): value for key, value in facts.items() if key.startswith("note.")}


class MethodModule(nn.Module):
    """A method as a module: ``forward(images)`` adapts on the batch and returns its logits [B, C].

    An evaluation loop written for a model that adapts in its forward, such as ``tent.Tent(model)``, runs unchanged.
    The encoder is a submodule, so that ``to`` moves the model. It stays frozen and in evaluation mode.
    """

    def __init__(self, method: Saved) -> None:
        super().__init__()
        self.method, self.encoder = method, method.classifier.encoder

    def forward(self, images: Tensor) -> Tensor:
        """Adapt on the images [B, ...] and return their logits [B, C]."""
        return self.method.step(images).logits

    def reset(self) -> None:
        """Return the method to its start."""
        self.method.reset()

    def train(self, mode: bool = True) -> Self:
        """Leave the frozen encoder in evaluation mode."""
        self.training = mode
        return self
