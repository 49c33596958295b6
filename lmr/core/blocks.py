"""The blocks of a tower: which modules they are, and which norms belong to the last of them.

Of a tower without our own interface the blocks are found by its structure: transformers and most other libraries keep
them in one ``nn.ModuleList`` or ``nn.Sequential``.
"""

from __future__ import annotations

from torch import nn

from lmr.core.errors import LmrError


def find_blocks(tower: nn.Module) -> tuple[str, int]:
    """Name and length of the tower's sequence of blocks: the longest list of modules that each hold a LayerNorm."""
    found = [
        (len(module), name)
        for name, module in tower.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) and all(map(_holds_norm, module))
    ]
    if not found:
        raise LmrError(
            f"{type(tower).__name__} has no nn.ModuleList or nn.Sequential of blocks with a LayerNorm each, so it is "
            "not known which blocks are the last. Leave out 'blocks' to adapt all norms."
        )
    count, name = max(found, key=lambda entry: entry[0])
    return name, count


def list_last_modules(tower: nn.Module, blocks: int) -> set[str]:
    """The names of all modules in the last ``blocks`` blocks (all of them if there are fewer) and registered after."""
    sequence, count = find_blocks(tower)
    prefix = f"{sequence}." if sequence else ""
    names = [name for name, _ in tower.named_modules()]
    places = [_read_place(name, prefix) for name in names]
    last = max(k for k, place in enumerate(places) if place is not None)
    return {
        name
        for k, (name, place) in enumerate(zip(names, places, strict=True))
        if k > last or (place is not None and place >= count - blocks)
    }


def _holds_norm(block: nn.Module) -> bool:
    return any(isinstance(module, nn.LayerNorm) for module in block.modules())


def _read_place(name: str, prefix: str) -> int | None:
    """The number of the block that a module belongs to; None outside of the blocks."""
    head = name.removeprefix(prefix).split(".")[0]
    return int(head) if name.startswith(prefix) and head.isdigit() else None
