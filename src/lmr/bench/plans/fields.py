"""The fields of a plan: plan files, the command line, the hash and the command of a run all read these dataclasses.

The text at a field is its help. This module imports nothing heavy, so that help is fast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from lmr.data.names import ORDERS

FOLDER = "lmr-runs"  # default folder of runs


def _choose(*choices: str, default: str | None = None) -> Any:
    """Return a text that is one of some choices, by default the first."""
    return field(default=default or choices[0], metadata={"choices": choices})


def _count(default: Any, low: int, high: int | None = None) -> Any:
    """Return whole numbers from ``low`` to ``high``."""
    return field(default=default, metadata={"low": low, "high": high})


def _real(default: float | None, below: float, order: str) -> Any:
    """Return a number above 0 and ``below`` a bound, which one order uses."""
    return field(default=default, metadata={"below": below, "order": order})


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The fields that each run takes over from its plan. One that is not the default is in the run's hash and command.

    The names of those about the order are those of ``lmr.data.streams.Order``.
    """

    order: str = _choose(*ORDERS)  # order of the images in a stream
    concentration: float = _real(0.1, math.inf, "dirichlet")  # of order=dirichlet: small is strongly imbalanced
    majority: float = _real(0.8, 1, "skew")  # of order=skew: the share of the dominant classes
    tail: float | None = _real(None, 1, "skew")
    """of order=skew, in place of a majority: class k has a share in proportion to tail^k"""
    onset: int = _count(0, 0)  # clean images at the beginning of every stream, which are not counted
    labels_when: str = _choose("causal", "whole")
    """causal: images among the first ones reveal their label once they are answered; whole: any images, before the
    stream, and the others are judged"""
    reset: str = _choose("domain", "never")  # never: one stream through all corruptions
    rounds: int = _count(1, 1)  # with reset=never: how often the stream goes through all corruptions
    mix: bool = False  # shuffle all corruptions into one stream
    timing: str = _choose("wait", "live")
    """live: the stream does not wait; a method whose step costs k forwards adapts on every k-th batch"""
    forgetting: int = _count(0, 0)  # clean images to classify after the stream
    recovery: bool = False
    """also measure how many of zero-shot's errors are corrected; costs a forward that is not timed"""
    dtype: str = _choose("float32", "bfloat16", "float16", "float64")  # type of the frozen weights
    device: str = "cpu"  # where models run


@dataclass(frozen=True, kw_only=True)
class PlanFields(RunSettings):
    """The fields of a plan as a whole; a tuple may have several values, and all combinations are run."""

    methods: tuple[Any, ...]
    """such as lmr, "tent(lr=1e-3)" or ./mine.py:mine; all; or paper, those that the paper compares"""
    preset: tuple[str, ...] = ()  # presets to use; each method takes the first that it has (default: its own defaults)
    datasets: tuple[str, ...]
    """such as photo-c, cifar10-c, pacs, folder:PATH, domains:PATH or csv:PATH; 'cifar100-c|' may be missing"""
    corruptions: tuple[str, ...] = ()
    """such as fog or clean, or domains of the set; all (default: those of the benchmark)"""
    severities: tuple[int, ...] = _count((5,), 1, 5)  # from 1 to 5 (default: 5)
    backbones: tuple[str, ...] = ("photo",)  # models, as lmr.load takes them (default: photo)
    prompts: tuple[Any, ...] = ()
    """templates such as "a photo of a {}.", or JSON files; each is a set, and so is a list of templates"""
    batch_sizes: tuple[int, ...] = _count((), 1)  # images per step (default: the batch size of each method's preset)
    seeds: tuple[int, ...] = _count((1,), 0)  # seeds of the order of the images (default: 1)
    dominant: tuple[str, ...] = field(default=("",), metadata={"order": "skew"})
    """of order=skew: the number of the dominant class, a stream for each; '1+3': both together; '1>3': 3 takes over
    half-way, or at the onset (default: drawn by the seed)"""
    labels: tuple[int, ...] = _count((0,), 0)
    """random images of every stream that reveal their label, which corrects the answers (default: 0)"""
    images: int | None = _count(None, 1)  # use N images of each stream, the same for all seeds (default: all)
    latin: bool = False  # with reset=never: one stream for each order of a Latin square of the domains
    watch: tuple[Any, ...] = ("off",)  # on, report or off; several to compare them
    select: str | None = None
    """a file of values for each method: also run each with those that are best on the four extra corruptions"""
