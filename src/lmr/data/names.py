"""Names that papers agree on: class names, class ids, lists of images; and the names of the orders of a stream.

The files in ``assets`` are facts, each with its source: ``imagenet.tsv`` joins the 1,000 ids (the package timm,
Apache-2.0) with the curated names CLIP papers use (the package open_clip_torch, MIT); ``imagenet_a.txt`` and
``imagenet_r.txt`` are the 200 classes of ImageNet-A and -R (timm); ``imagenet_c_5000.txt`` is the list of validation
images most ImageNet-C numbers are computed on, in its own order (the package robustbench, MIT); ``cifar10.txt`` and
``cifar100.txt`` are the names in Krizhevsky's archives, with spaces for underscores.

The command line imports this module: it needs neither NumPy nor torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

ASSETS = Path(__file__).with_name("assets")
ORDERS = ("shuffle", "file", "dirichlet", "classes", "bursts", "shift", "skew", "haul")  # see ``make_stream``


def describe_order(facts: Mapping[str, str]) -> str:
    """Return an order for people, from the facts in a row: its kind and what that depends on, without its hash."""
    plain = ("kind", "concentration", "rounds", "timing")  # values that need no name
    return " ".join(value if key in plain else f"{key} {value}" for key, value in facts.items() if key != "hash")


@cache
def read_list(name: str) -> tuple[str, ...]:
    """Return the lines of a list: "cifar10", "cifar100", "imagenet_a", "imagenet_r" or "imagenet_c_5000"."""
    return tuple((ASSETS / f"{name}.txt").read_text("utf-8").splitlines())


@cache
def read_imagenet() -> dict[str, str]:
    """Return ImageNet's class ids with their names, in class order; ids are unique, two names occur twice."""
    lines = (ASSETS / "imagenet.tsv").read_text("utf-8").splitlines()
    return dict(line.split("\t") for line in lines)
