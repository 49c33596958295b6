"""A second device without hardware: tensors that are on "fake_gpu", compute on the CPU and count waits for them.

As on a GPU, operations refuse tensors of both devices, but for numbers. The program waits for the device where a value
is read, where a tensor is copied in either direction, and where the size of a result depends on values. The numbers of
waits are those of the kernels for CUDA in torch 2.13.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

import lmr

WAITS = {
    **dict.fromkeys(("_local_scalar_dense", "equal", "nonzero", "masked_select", "_linalg_check_errors"), 1),
    **dict.fromkeys(("_unique2", "unique_dim", "unique_consecutive", "_linalg_eigh", "_linalg_svd"), 1),
    "bincount": 2,  # for the smallest and the largest number
}
INDEXED = ("index", "index_put", "index_put_", "_index_put_impl_")
MADE = ("eye", "eye.m", "arange", "arange.start", "arange.start_step", "linspace")  # made empty, then enlarged in C++

_counts: list[Counter[str]] = []  # one for each open context


class _Module(_DummyBackendModule):
    """What torch asks of ``torch.fake_gpu``."""

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return []


_setup_privateuseone_for_python_backend("fake_gpu", _Module())
DEVICE = torch.device("fake_gpu", 0)


class SecondTensor(Tensor):
    """A tensor of the second device; ``values`` is where it really is."""

    values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> SecondTensor:
        form = {"strides": values.stride(), "storage_offset": values.storage_offset(), "dtype": values.dtype}
        made: SecondTensor = Tensor._make_wrapper_subclass(cls, values.shape, device=DEVICE, **form)  # type: ignore
        made.values = values
        return made

    def tolist(self) -> Any:
        """Return the values; torch's own refuses subclasses."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, *args, **(kwargs or {}))


def _run(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operation on the CPU, for tensors of which some are on the second device, or for a new one."""
    name = function.name().removeprefix("aten::").partition(".")[0]
    if name == "_fused_sdp_choice":
        return 0  # attention by plain products
    tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
    second = [value for value in tensors if isinstance(value, SecondTensor)]
    mixed = any(value.ndim and not isinstance(value, SecondTensor) for value in tensors)
    if second and mixed and name not in ("copy_", "_to_copy", *INDEXED):
        raise RuntimeError(f"Expected all tensors on one device, found two in {function}.")
    there = torch.device(kwargs.get("device") or (tensors[0].device if tensors else DEVICE)).type == DEVICE.type
    if waits := _count_waits(name, args, kwargs, there):
        for counts in _counts:
            counts[name] += waits
    plain, named = tree_map_only(SecondTensor, lambda value: value.values, (args, kwargs))
    found = function(*plain, **named | ({"device": "cpu"} if "device" in named else {}))
    if torch.Tag.inplace_view in function.tags:
        with no_dispatch():  # the shape of the tensor itself changes too
            function(*args, **kwargs)
    given = {id(value.values if isinstance(value, SecondTensor) else value): value for value in tensors}

    def wrap(value: Tensor) -> Tensor:
        same = given.get(id(value))
        assert same is None or same.shape == value.shape, f"{function} changed the shape of a tensor"
        return same if same is not None else SecondTensor(value) if there else value

    return tree_map_only(Tensor, wrap, found)


def _count_waits(name: str, args: Any, kwargs: Any, there: bool) -> int:
    if name == "copy_":
        return int(args[0].device != args[1].device and not kwargs.get("non_blocking"))
    if name == "_to_copy":
        return int(there != isinstance(args[0], SecondTensor) and not kwargs.get("non_blocking"))
    if name == "repeat_interleave":
        return int(kwargs.get("output_size") is None)
    if name in INDEXED:
        filled = name != "index" and args[2].numel() == 1  # one value for all that a mask selects
        found = [index for index in args[1] if index is not None]
        return sum(not isinstance(i, SecondTensor) or (i.dtype == torch.bool and not filled) for i in found)
    return WAITS.get(name, 0)


def _register() -> list[torch.library.Library]:
    """Tell torch how to make tensors on the device; what has such tensors as arguments reaches them itself."""
    every, own = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    every.fallback(_run, "PrivateUse1")
    for name in ("copy_", *MADE):  # copy_: torch.tensor calls it past Python
        packet, _, overload = name.partition(".")
        own.impl(name, partial(_run, getattr(getattr(torch.ops.aten, packet), overload or "default")), "PrivateUse1")
    return [every, own]


_LIBRARIES = _register()


@contextmanager
def count_waits() -> Iterator[Counter[str]]:
    """Count how often all threads wait for the device, by operation."""
    counts: Counter[str] = Counter()
    _counts.append(counts)
    try:
        yield counts
    finally:
        _counts.remove(counts)


def move_backbone(backbone: lmr.Backbone) -> lmr.Backbone:
    """Move both towers, in place. ``Module.to`` gives parameters the tensors of a subclass nowhere."""
    for tower in (backbone.encoder, backbone._text):  # type: ignore[attr-defined]
        for module in tower.modules():
            for key, value in module._parameters.items():
                if value is not None:
                    module._parameters[key] = nn.Parameter(value.detach().to(DEVICE), requires_grad=False)
            for key, value in module._buffers.items():
                if value is not None:
                    module._buffers[key] = value.to(DEVICE)
    return backbone
