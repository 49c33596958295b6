"""Where towers live and in which precision: the devices and types that can be used, and the move there.

A tower is the one source of its placement: classifiers and methods that use it follow when they are next used.
"""

from __future__ import annotations

import torch
from torch import nn

from lmr.core.errors import LmrError
from lmr.core.norms import RowNorm

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

_MOVES = "_lmr_moves"  # the attribute of a module that counts its moves; it is copied and pickled with the module

Device = str | int | torch.device
Placement = tuple[torch.device, torch.dtype]


def choose_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """Return the type of the frozen weights, float32 if none is named."""
    if dtype is not None and dtype not in DTYPES:
        raise LmrError(f"Expected one of {', '.join(map(str, DTYPES))} for the weights, got {dtype!r}.")
    return dtype or torch.float32


def check_device(device: Device) -> torch.device:
    """Return the device of this name; refuse it if no tensor can be made on it."""
    try:
        found = torch.empty(0, device=device).device
    except Exception as error:  # each kind of device that is missing raises its own error
        raise _refuse_device(device, error) from error
    if found.type == "meta":
        raise _refuse_device(device, "tensors on it have no values")
    return found


def _refuse_device(device: object, reason: object) -> LmrError:
    first = str(reason).partition("\n")[0][:200].rstrip(".")
    return LmrError(f"The device {device!r} cannot be used here: {first}. Use 'cpu'.")


def read_target(
    device: Device | torch.dtype | None, dtype: torch.dtype | None
) -> tuple[torch.device | None, torch.dtype | None]:
    """Return the checked arguments of a ``to``. As in torch, a type may come first: ``to(torch.bfloat16)``."""
    if isinstance(device, torch.dtype):
        if dtype is not None:
            raise LmrError(f"Expected a device and a type, got the two types {device} and {dtype}.")
        device, dtype = None, device
    return None if device is None else check_device(device), None if dtype is None else choose_dtype(dtype)


def find_placement(tower: nn.Module) -> Placement | None:
    """Device and type of a tower: those of its first floating parameter; None where it has none."""
    own = (parameter for parameter in tower.parameters() if parameter.is_floating_point())
    first = next(own, None)
    return None if first is None else (first.device, first.dtype)


def find_whole(tower: nn.Module) -> nn.Module:
    """Return the module that moves with a tower: its ``whole_model``, or else the tower itself."""
    whole = getattr(tower, "whole_model", None)
    return whole if isinstance(whole, nn.Module) else tower


def count_moves(tower: nn.Module) -> int:
    """Return a number that grows whenever ``place_tower`` moves any part of a tower."""
    return sum(getattr(module, _MOVES, 0) for module in tower.modules())


def widen(dtype: torch.dtype) -> torch.dtype:
    """Return this type, but never below float32: the type of norms, prototypes and states."""
    return torch.promote_types(dtype, torch.float32)


def place_tower(tower: nn.Module, device: torch.device | None = None, dtype: torch.dtype | None = None) -> None:
    """Freeze a tower and move it, in place; None keeps the device or the type.

    The norms of this package's towers compute in the precision of their own parameters, which are adapted, so they stay
    in float32 at least. Other norms follow the tower, as with ``nn.Module.to``: they could not take its activations.
    """
    tower.eval().requires_grad_(False)
    for module in tower.modules():
        setattr(module, _MOVES, getattr(module, _MOVES, 0) + 1)
        own = widen(dtype) if dtype is not None and isinstance(module, RowNorm) else dtype
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            # In place: a tensor may be registered in more than one module.
            tensor.data = tensor.data.to(device, own if tensor.is_floating_point() else None)
