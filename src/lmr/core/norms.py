"""NormBank: the LayerNorm weights and biases of a tower as rows, one row per stream of images."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lmr.core.errors import LmrError
from lmr.core.locks import hold, make_leaf

_TOP = (9, 10, 11)  # the top blocks of a transformer of twelve
_LENT = ("weight", "bias", "forward")  # instance attributes that hide a norm's own while it is served


class RowNorm(nn.LayerNorm):
    """A LayerNorm over the last axis that can be served one row for all samples or a row for each of them.

    Its parameters are [width], or [B, width] for x [B, ..., width]. It computes in their precision and returns the
    precision of x, so that a tower in half precision does not round its adapted parameters. A copy or pickle has the
    norm's own parameters, also if it is made while a row is served.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.copy().items() if key not in _LENT}

    def forward(self, x: Tensor) -> Tensor:
        """[B, ..., width] to the same."""
        weight, bias = self.weight, self.bias
        if weight.ndim == 1:
            return nn.functional.layer_norm(x.to(weight.dtype), weight.shape, weight, bias, self.eps).to(x.dtype)
        scaled = nn.functional.layer_norm(x.to(weight.dtype), weight.shape[1:], None, None, self.eps)
        spread = len(weight), *[1] * (x.ndim - 2), -1
        return torch.addcmul(bias.view(spread), scaled, weight.view(spread)).to(x.dtype)


@dataclass(frozen=True)
class _Norm:
    """One LayerNorm and the place of its parameters in a row."""

    name: str
    module: nn.LayerNorm
    weight: slice
    bias: slice | None


class NormBank:
    """Finds every affine ``nn.LayerNorm`` of a tower and lets it run with parameters from given rows [A, size].

    The bank holds no adapted parameters: rows belong to the caller of ``serve``. The tower's own parameters are
    never changed. Inside ``serve`` its norms use the rows, outside their own, so several methods can share one
    tower. With one row each norm runs its own forward on a view of the row, at no extra cost. With several rows every
    sample is scaled and shifted by its own row. Norms with tied parameters are adapted separately.

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
            if not isinstance(module, nn.LayerNorm) or name in skip:
                continue
            own = [_find_own(module, key) for key in ("weight", "bias")]
            if not isinstance(own[0], Tensor):
                continue
            count = own[0].numel()
            bias = slice(size + count, size + 2 * count) if isinstance(own[1], Tensor) else None
            self.norms.append(_Norm(name, module, slice(size, size + count), bias))
            values += [tensor.detach().flatten() for tensor in own if isinstance(tensor, Tensor)]
            size += count if bias is None else 2 * count
        if not self.norms:
            raise LmrError(
                f"{type(tower).__name__} has no nn.LayerNorm with weights, so there is nothing to adapt. Use a method "
                "that adapts no weights; 'lmr list NAME' says what the method NAME adapts."
            )
        wide = torch.float32
        for value in values:
            wide = torch.promote_types(wide, value.dtype)
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

    @contextmanager
    def serve(self, rows: Tensor, index: Tensor | None = None) -> Iterator[None]:
        """Within this context the norms use ``rows`` [A, size].

        Sample k of a batch uses row ``index[k]``; with a single row no index is needed. Gradients flow to ``rows``.
        """
        if rows.ndim != 2 or len(rows) == 0 or rows.shape[1] != self.size:
            raise LmrError(f"Expected rows [streams, {self.size}] for this tower's norms, got {list(rows.shape)}.")
        if index is None and len(rows) > 1:
            raise LmrError(f"Expected an index that gives each sample one of the {len(rows)} rows, got none.")
        with hold(self.tower), nullcontext() if len(rows) == 1 else _avoid_fused_layers():
            before = [{k: v for k, v in norm.module.__dict__.items() if k in _LENT} for norm in self.norms]
            try:
                self._take_back()
                self._lend(rows[0] if len(rows) == 1 else rows[index])
                yield
            finally:
                self._take_back()
                for norm, earlier in zip(self.norms, before, strict=True):
                    norm.module.__dict__.update(earlier)

    def locate_batch(self, images: Tensor, encode: Callable[[Tensor], Any] | None = None) -> None:
        """Find the axis of the batch for each norm and each rank of its input: some work on [tokens, batch, width].

        Two and three copies of one image are sent through ``encode`` (the tower): the axis that grows is the batch.
        """
        if self._axes or all(isinstance(norm.module, RowNorm) for norm in self.norms):
            return
        calls: list[tuple[str, torch.Size]] = []
        hooks = [
            norm.module.register_forward_pre_hook(lambda _, given, name=norm.name: calls.append((name, given[0].shape)))
            for norm in self.norms
        ]
        try:
            with hold(self.tower), torch.no_grad():
                for copies in (2, 3):
                    (encode or self.tower)(images[:1].expand(copies, *images.shape[1:]))
        finally:
            for hook in hooks:
                hook.remove()
        half = len(calls) // 2
        axes: dict[tuple[str, int], int] = {}
        for (name, two), (again, three) in zip(calls[:half], calls[half:], strict=True):
            grown = [k for k, sizes in enumerate(zip(two, three, strict=False)) if sizes == (2, 3)]
            key = name, len(two)  # a norm may be called in two places, on tokens and on a pooled feature
            if name != again or len(two) != len(three) or len(grown) != 1 or axes.setdefault(key, grown[0]) != grown[0]:
                raise LmrError(
                    f"Cannot tell which axis of {list(two)} holds the batch in the norm {name!r}, so this tower cannot "
                    "serve several streams at once. Use one stream per method instead."
                )
        self._axes = axes

    def _take_back(self) -> None:
        """Remove all lent attributes, so that every norm uses its own parameters."""
        for norm in self.norms:
            for lent in _LENT:
                norm.module.__dict__.pop(lent, None)

    def _lend(self, rows: Tensor) -> None:
        """Let the norms use one row [size] for all samples, or a row for each sample [B, size].

        Instance attributes hide the registered parameters, so that a norm's own forward reads the row. With a row for
        each sample, and in a tower of half precision, where a step of 1e-3 would be lost, the forward is replaced too.
        """
        for norm in self.norms:
            module, own = norm.module, norm.module.weight
            weight, bias = rows[..., norm.weight], None if norm.bias is None else rows[..., norm.bias]
            if isinstance(module, RowNorm) and (bias is not None or rows.ndim == 1):
                module.__dict__.update(weight=weight, bias=bias)
                continue
            shape = *rows.shape[:-1], *own.shape
            weight, bias = weight.view(shape), None if bias is None else bias.view(shape)
            is_plain = type(module).forward is nn.LayerNorm.forward  # a subclass may compute something else
            if rows.ndim == 1 and (own.dtype == rows.dtype or not is_plain):
                module.__dict__["weight"] = weight.to(own.dtype)
                if bias is not None:
                    module.__dict__["bias"] = bias.to(own.dtype)
            elif is_plain:
                module.__dict__["forward"] = self._make_forward(norm, weight, bias)
            else:
                raise LmrError(
                    f"The norm {norm.name!r} is a {type(module).__name__} with its own forward, which "
                    "several streams in one batch would bypass. Use one stream per method instead."
                )

    def _make_forward(self, norm: _Norm, weight: Tensor, bias: Tensor | None) -> Any:
        """Return a forward in the precision of parameters [*shape], or [B, *shape] to scale and shift each sample."""
        shape, eps = tuple(norm.module.normalized_shape), norm.module.eps

        def forward(x: Tensor) -> Tensor:
            wide = x.to(weight.dtype)
            if weight.ndim == len(shape):
                return nn.functional.layer_norm(wide, shape, weight, bias, eps).to(x.dtype)
            axis = self._axes.get((norm.name, x.ndim), 0)
            if tuple(x.shape[-len(shape) :]) != shape or x.shape[axis] != len(weight):
                raise LmrError(
                    f"The norm {norm.name!r} sees a tensor {list(x.shape)}; many streams need features last "
                    f"{list(shape)} and the batch of {len(weight)} along axis {axis}. Use one stream per method "
                    "instead."
                )
            spread = [1] * (x.ndim - len(shape)) + list(shape)
            spread[axis] = len(weight)
            scaled = nn.functional.layer_norm(wide, shape, None, None, eps)
            if bias is None:
                return (scaled * weight.view(spread)).to(x.dtype)
            return torch.addcmul(bias.view(spread), scaled, weight.view(spread)).to(x.dtype)

        return forward


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


_FUSED = make_leaf()  # guards the two below
_fused_avoided = 0  # how many services avoid the fused layers
_fused_setting = True  # what the user had set before the first of them


@contextmanager
def _avoid_fused_layers() -> Iterator[None]:
    """Within this context PyTorch's fused encoder layer is off: it reads ``norm.weight`` itself and ignores the rows.

    The setting is that of the whole process, so the last of several threads restores it.
    """
    global _fused_avoided, _fused_setting
    with _FUSED:
        if not _fused_avoided:
            _fused_setting = torch.backends.mha.get_fastpath_enabled()
        _fused_avoided += 1
        torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        with _FUSED:
            _fused_avoided -= 1
            if not _fused_avoided:
                torch.backends.mha.set_fastpath_enabled(_fused_setting)


def _find_own(module: nn.LayerNorm, key: str) -> Any:
    """Return the norm's own parameter, also while a row is served, perhaps by another thread."""
    registered = module._parameters
    return registered[key] if key in registered else getattr(module, key)
