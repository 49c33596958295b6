"""Where a model's towers live and in which precision: the devices and types that can be used, and the move there."""

from __future__ import annotations

import torch
from torch import nn

from lmr.core.errors import LmrError

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def choose_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """The type of the frozen weights, float32 if none is named."""
    if dtype is not None and dtype not in DTYPES:
        raise LmrError(f"Expected one of {', '.join(map(str, DTYPES))} for the weights, got {dtype!r}.")
    return dtype or torch.float32


def read_device(device: str | torch.device) -> torch.device:
    """The device of this name, whether this machine has it or not."""
    try:
        return torch.device(device)
    except Exception as error:
        raise _refuse_device(device, error) from error


def check_device(device: str | torch.device) -> None:
    """Refuse a device on which no tensor can be made; asked before anything large is read."""
    try:
        found = torch.empty(0, device=device).device
    except Exception as error:  # each kind of device that is missing raises its own error
        raise _refuse_device(device, error) from error
    if found.type == "meta":
        raise _refuse_device(device, "tensors on it have no values")


def _refuse_device(device: object, reason: object) -> LmrError:
    first = str(reason).partition("\n")[0][:200].rstrip(".")
    return LmrError(f"The device {device!r} cannot be used here: {first}. Use 'cpu'.")


def place_tower(tower: nn.Module, device: str | torch.device, dtype: torch.dtype) -> None:
    """Freeze and move a tower; its norms are adapted, so their parameters never lose precision."""
    tower.eval().requires_grad_(False)
    wide = torch.promote_types(dtype, torch.float32)
    for module in tower.modules():
        own = wide if isinstance(module, nn.LayerNorm) else dtype
        for parameter in module.parameters(recurse=False):
            parameter.data = parameter.data.to(own)
    tower.to(device)
