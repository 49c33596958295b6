"""NormBank: the LayerNorm weights and biases of a tower as rows, one row per stream of images."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from lmr.core.errors import LmrError

_TOP = (9, 10, 11)  # the top blocks of a transformer of twelve
# Devices on which a kernel for each image is faster (twice) than one kernel for all images and scaling afterwards.
_LOOPING = ("cpu",)


class RowNorm(nn.LayerNorm):
    """A LayerNorm that computes in the precision of its parameters and returns the precision of its input.

    A tower in half precision thus does not round its adapted norms. The batch is the first axis of the input.
    """

    def forward(self, x: Tensor) -> Tensor:
        """[B, ..., width] to the same."""
        wide = x.to(self.weight.dtype)
        return F.layer_norm(wide, self.normalized_shape, self.weight, self.bias, self.eps).to(x.dtype)


@dataclass(frozen=True)
class _Norm:
    """One LayerNorm and the place of its parameters in a row."""

    name: str
    module: nn.LayerNorm
    weight: slice
    bias: slice | None


class NormBank:
    """Finds every affine ``nn.LayerNorm`` of a tower and lets it run with parameters from given rows [A, size].

    The bank holds no adapted parameters: rows belong to the caller of ``serve``. The tower is never changed. Inside
    ``serve``, calls of ``torch.nn.functional.layer_norm`` with parameters of the tower compute with those of the rows,
    in the calling thread alone: several methods and threads can use one tower at the same time. With one row this costs
    nothing. With several rows every sample is scaled and shifted by its own row. Norms that share their parameters are
    adapted as one.

    The norms that ``skip`` names always use their own parameters.

    Examples:
        >>> import lmr, torch
        >>> tower = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.LayerNorm(6))
        >>> bank = lmr.NormBank(tower)
        >>> bank.size  # six weights and six biases
        12
        >>> x = torch.randn(2, 4)
        >>> with bank.serve(bank.start.unsqueeze(0) * 2):
        ...     doubled = tower(x)
        >>> torch.allclose(doubled, 2 * tower(x))
        True
    """

    def __init__(self, tower: nn.Module, skip: Collection[str] = ()) -> None:
        self.tower = tower
        self.norms: list[_Norm] = []
        values: list[Tensor] = []
        size = 0
        for name, module in tower.named_modules():
            if not isinstance(module, nn.LayerNorm) or name in skip or not isinstance(module.weight, Tensor):
                continue
            if any(module.weight is norm.module.weight for norm in self.norms):
                continue
            count, bias = module.weight.numel(), None
            values.append(module.weight.detach().flatten())
            if isinstance(module.bias, Tensor):
                bias = slice(size + count, size + 2 * count)
                values.append(module.bias.detach().flatten())
            self.norms.append(_Norm(name, module, slice(size, size + count), bias))
            size += count if bias is None else 2 * count
        if not self.norms:
            raise LmrError(
                f"{type(tower).__name__} has no nn.LayerNorm with weights, so there is nothing to adapt. Use a method "
                "that adapts no weights; 'lmr list NAME' says what the method NAME adapts."
            )
        wide = torch.float32
        for value in values:
            wide = torch.promote_types(wide, value.dtype)
        self._sizes = [len(value) for value in values]
        self.start = torch.cat([value.to(wide) for value in values])
        self.limit = max(1e6, 10 * float(self.start.abs().max()))  # no useful parameter is larger
        self._axes: dict[tuple[str, int], int] = {}

    @property
    def size(self) -> int:
        """P, the number of parameters in a row."""
        return len(self.start)

    def name_parameters(self, row: Tensor) -> dict[str, Tensor]:
        """Return the values of a row [P] as parameters, under their names in the tower's ``state_dict()``."""
        named: dict[str, Tensor] = {}
        for norm in self.norms:
            begin, shape = f"{norm.name}." if norm.name else "", norm.module.normalized_shape
            named[f"{begin}weight"] = row[norm.weight].view(shape)
            if norm.bias is not None:
                named[f"{begin}bias"] = row[norm.bias].view(shape)
        return named

    def serve(self, rows: Tensor, index: Tensor | None = None) -> TorchFunctionMode:
        """Return a context within which the norms use ``rows`` [A, size].

        Sample k of a batch uses row ``index[k]``; with a single row no index is needed. Gradients flow to ``rows``.
        """
        rows = rows[0] if len(rows) == 1 else rows[index]
        pieces = iter(
            torch.split(rows, self._sizes, -1)
        )  # not slices: the gradient of each would be as large as all rows
        served = {}
        for norm in self.norms:
            shape = *rows.shape[:-1], *norm.module.normalized_shape
            weight, bias = next(pieces).view(shape), None if norm.bias is None else next(pieces).view(shape)
            served[id(norm.module.weight)] = norm.name, weight, bias

        def normalise(
            x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
        ) -> Tensor:
            if id(weight) not in served:
                return F.layer_norm(x, shape, weight, bias, eps)
            name, weight, bias = served[id(weight)]
            wide = x.to(weight.dtype)  # a step of 1e-3 would be lost in half precision
            if rows.ndim == 1:
                return F.layer_norm(wide, shape, weight, bias, eps).to(x.dtype)
            axis = self._axes.get((name, x.ndim), 0)
            if x.shape[axis] != len(rows):
                raise LmrError(
                    f"The norm {name!r} sees a tensor {list(x.shape)}; many streams need the batch of {len(rows)} "
                    f"along axis {axis}. Use one stream per method instead."
                )
            return _normalise_each(wide, shape, weight, bias, eps, axis).to(x.dtype)

        return _LayerNorms(normalise)

    def locate_batch(self, images: Tensor, encode: Callable[[Tensor], Any] | None = None) -> None:
        """Find the axis of the batch for each norm and each rank of its input: some work on [tokens, batch, width].

        One image is sent through ``encode`` (the tower): the batch is the axis of size 1.
        """
        if self._axes or all(isinstance(norm.module, RowNorm) for norm in self.norms):
            return
        names = {id(norm.module.weight): norm.name for norm in self.norms}
        seen: list[tuple[str, list[int]]] = []

        def record(x: Tensor, shape: Sequence[int], weight: Tensor | None = None, *rest: Any, **named: Any) -> Tensor:
            if id(weight) in names:
                seen.append((names[id(weight)], list(x.shape)))
            return F.layer_norm(x, shape, weight, *rest, **named)

        with _LayerNorms(record), torch.no_grad():
            (encode or self.tower)(images[:1])
        axes: dict[tuple[str, int], int] = {}
        for name, shape in seen:
            axis = shape.index(1) if 1 in shape else -1
            key = name, len(shape)  # a norm may be called in two places, on tokens and on a pooled feature
            if axis < 0 or axes.setdefault(key, axis) != axis:
                raise LmrError(
                    f"Cannot tell which axis of {shape} holds the batch in the norm {name!r}, so this tower cannot "
                    "serve several streams at once. Use one stream per method instead."
                )
        self._axes = axes


class _LayerNorms(TorchFunctionMode):
    """A context within which a function takes the calls of ``layer_norm`` of this thread."""

    def __init__(self, normalise: Callable[..., Tensor]) -> None:
        super().__init__()
        self.normalise = normalise

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return (self.normalise if function is F.layer_norm else function)(*args, **(kwargs or {}))


def _normalise_each(
    x: Tensor, shape: Sequence[int], weight: Tensor, bias: Tensor | None, eps: float, axis: int
) -> Tensor:
    """Apply a LayerNorm whose parameters are [B, *shape], the batch along ``axis`` of x."""
    if x.device.type in _LOOPING:
        biases: Sequence[Tensor | None] = [None] * len(weight) if bias is None else bias.unbind()
        each = zip(x.unbind(axis), weight.unbind(), biases, strict=True)
        return torch.stack([F.layer_norm(sample, shape, scale, shift, eps) for sample, scale, shift in each], axis)
    spread = [1] * (x.ndim - len(shape)) + list(shape)
    spread[axis] = len(weight)
    scaled = F.layer_norm(x, shape, None, None, eps)
    if bias is None:
        return scaled * weight.view(spread)
    return torch.addcmul(bias.view(spread), scaled, weight.view(spread))


def list_top_modules(tower: nn.Module) -> set[str]:
    """Return the names of modules that methods leave alone because they are near the answer (Niu et al. 2023).

    These are the blocks 9 to 11 (from 0), whatever the depth of the tower, a ``layer4``, and a final ``norm``. A final
    norm of another name, as CLIP's, is not among them. The blocks are the longest ``nn.ModuleList`` or
    ``nn.Sequential`` whose modules each hold a LayerNorm.
    """
    modules = dict(tower.named_modules())
    chains = {
        f"{name}." if name else "": len(module)
        for name, module in modules.items()
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) and all(map(_holds_norm, module))
    }
    longest = max(chains, key=lambda begin: chains[begin], default=None)
    tops = () if longest is None else tuple(f"{longest}{number}." for number in _TOP)
    return {
        name for name in modules if name == "norm" or "norm." in name or "layer4" in name or f"{name}.".startswith(tops)
    }


def _holds_norm(block: nn.Module) -> bool:
    return any(isinstance(module, nn.LayerNorm) for module in block.modules())
