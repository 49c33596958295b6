"""Where towers live and in which precision: the devices and types that can be used, the move there, and digests.

A tower is the one source of its placement: classifiers and methods that use it follow when they are next used.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from lmr.core.errors import LmrError
from lmr.core.norms import RowNorm

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

_MOVES = "_lmr_moves"  # the attribute of a module that counts its moves; it is copied and pickled with the module

_ROUNDED = "_lmr_rounded"  # the attribute that maps digests of a tower in half precision to those before

Device = str | int | torch.device
Placement = tuple[torch.device, torch.dtype]


def choose_dtype(dtype: torch.dtype | str | None) -> torch.dtype:
    """Return the type of the frozen weights, which may be given by its name; float32 if none is."""
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is not None and found not in DTYPES:
        raise LmrError(f"Expected one of {', '.join(map(str, DTYPES))} for the weights, got {dtype!r}.")
    return found or torch.float32


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
    device: Device | torch.dtype | None, dtype: torch.dtype | str | None
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


def digest_tensors(tensors: dict[str, Tensor]) -> str:
    """Return the SHA-256 over names, types, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()


def digest_weights(tower: nn.Module) -> str:
    """Return the digest of a tower's weights; for one in half precision that of the weights which were rounded."""
    digest = digest_tensors(tower.state_dict())
    known: dict[str, str] = getattr(tower, _ROUNDED, {})
    return known.get(digest, digest)


def place_tower(tower: nn.Module, device: torch.device | None = None, dtype: torch.dtype | None = None) -> None:
    """Freeze a tower and move it, in place; None keeps the device or the type.

    The norms of this package's towers compute in the precision of their own parameters, which are adapted, so they stay
    in float32 at least. Other norms follow the tower, as with ``nn.Module.to``: they could not take its activations.
    """
    before = digest_weights(tower) if dtype is not None and dtype.itemsize < 4 else None
    tower.eval().requires_grad_(False)
    for module in tower.modules():
        setattr(module, _MOVES, getattr(module, _MOVES, 0) + 1)
        own = widen(dtype) if dtype is not None and isinstance(module, RowNorm) else dtype
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            # In place: a tensor may be registered in more than one module.
            tensor.data = tensor.data.to(device, own if tensor.is_floating_point() else None)
    if before is not None:
        rounded: dict[str, str] = dict(getattr(tower, _ROUNDED, {}))
        rounded.setdefault(digest_tensors(tower.state_dict()), before)  # of weights that are rounded again, the first
        setattr(tower, _ROUNDED, rounded)
