"""Class names, class ids and image lists that papers agree on.

They are facts, each with its source: ``imagenet.tsv`` joins the 1,000 ids (the package timm, Apache-2.0) with the
curated names CLIP papers use (the package open_clip_torch, MIT); ``imagenet_a.txt`` and ``imagenet_r.txt`` are the 200
classes of ImageNet-A and -R (timm); ``imagenet_c_5000.txt`` is the list of validation images most ImageNet-C numbers
are made on, in its own order (the package robustbench, MIT); ``cifar10.txt`` and ``cifar100.txt`` are the names the
archives of Krizhevsky hold, with spaces for underscores.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent


@cache
def read_list(name: str) -> tuple[str, ...]:
    """The lines of one of the lists: "cifar10", "cifar100", "imagenet_a", "imagenet_r" or "imagenet_c_5000"."""
    return tuple((_FOLDER / f"{name}.txt").read_text("utf-8").splitlines())


@cache
def read_imagenet() -> dict[str, str]:
    """ImageNet's class ids with their names, in class order; two names come twice, no id does."""
    lines = (_FOLDER / "imagenet.tsv").read_text("utf-8").splitlines()
    return dict(line.split("\t") for line in lines)
