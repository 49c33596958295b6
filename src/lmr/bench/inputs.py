"""Models and datasets, each opened once per process, and the type of a method on them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmr.core.classifier import ZeroShot, digest_tensors
from lmr.core.errors import LmrError
from lmr.core.method import Method
from lmr.data.catalogue import open_dataset
from lmr.data.dataset import BEFORE_CHOICE, CLEAN, Dataset, DerivedSet, ImageArray
from lmr.data.streams import Batch, Stream
from lmr.images.ahead import ReadAhead
from lmr.models import Backbone, load
from lmr.watch.watched import Watched

Templates = tuple[str, ...] | str
AnyMethod = Method | Watched

KEPT_BYTES = 800_000_000  # of images; 5,000 of ImageNet take 753 MB
CLEAN_SETS = {"imagenet-c-5000": "imagenet"}  # for other sets that end with -c, the name without it


class KeptImages(DerivedSet):
    """A dataset that keeps the images of the domain that was read last; a process keeps those of one dataset.

    Methods take turns on one domain, and making its images can cost more than classifying them. Features are never
    kept, as every method makes its own; tokens, which no method adapts, are kept by running/token_cache.py.
    """

    _place: ClassVar[tuple[object, str, int] | None] = None
    _kept: ClassVar[dict[int, ImageArray]] = {}
    _bytes: ClassVar[int] = 0

    def read(self, domain: str, severity: int, indices: Iterable[int]) -> list[ImageArray]:
        """Return images; those that are not kept yet are read."""
        kept = type(self)
        if kept._place != (self.source, domain, severity):
            kept._place, kept._kept, kept._bytes = (self.source, domain, severity), {}, 0
        wanted = [int(index) for index in indices]
        missing = [index for index in wanted if index not in kept._kept]
        fresh = dict(zip(missing, self.source.read(domain, severity, missing), strict=True)) if missing else {}
        for index, image in fresh.items():
            if kept._bytes + image.nbytes <= KEPT_BYTES:
                kept._kept[index] = image
                kept._bytes += image.nbytes
        return [fresh[index] if index in fresh else kept._kept[index] for index in wanted]


def strip_watch(method: AnyMethod) -> Method:
    """Return the method that a watch wraps, or the method itself."""
    return method.method if isinstance(method, Watched) else method


@lru_cache
def find_dataset(name: str, root: str | None = None) -> KeptImages:
    """Open a dataset by its name; the error about a missing one names the command that fetches it."""
    return KeptImages(open_dataset(name, root))


def name_clean_set(name: str) -> str:
    """Return the name of the clean set that a corrupted one was made from, with the same classes."""
    whole, at, subset = name.partition(BEFORE_CHOICE)
    return CLEAN_SETS.get(whole, whole.removesuffix("-c")) + at + subset


def find_clean_dataset(name: str, root: str | None) -> Dataset:
    """Return clean images of the same classes: those of the dataset, or of the one it was made from."""
    dataset = find_dataset(name, root)
    if CLEAN in dataset.domains:
        raise LmrError(
            f"The dataset {name!r} has no clean images to classify after a stream, since its test images are the clean "
            "ones; remove 'forgetting' there."
        )
    if CLEAN in dataset.others:
        return dataset.source
    clean = find_dataset(name_clean_set(name), root)
    if clean.classes != dataset.classes or CLEAN not in clean.domains:
        raise LmrError(f"There are no clean images of the classes of {name!r}; remove 'forgetting'.")
    return clean.source


@lru_cache(1)
def load_backbone(name: str, dtype: str, device: str) -> Backbone:
    """Load a model; a process holds one at a time."""
    given: dict[str, Any] = {"dtype": getattr(torch, dtype)} if dtype != "float32" else {}
    given |= {"device": device} if device != "cpu" else {}
    return load(name, **given)


@lru_cache
def describe_backbone(name: str, dtype: str, device: str) -> str:
    """Return a digest of everything that determines a model's answers: towers, scale, bias and preprocessing."""
    is_small_model(name, dtype, device)  # while the model is loaded: a process holds one at a time
    backbone = load_backbone(name, dtype, device)
    parts = [digest_tensors(backbone.encoder.state_dict()), backbone.text_digest()]
    parts += [repr(backbone.logit_scale), repr(backbone.logit_bias), repr(backbone.preprocessing)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@lru_cache
def is_small_model(name: str, dtype: str, device: str) -> bool:
    """Return whether a model is a small one."""
    return load_backbone(name, dtype, device).is_small


@lru_cache(1)
def load_classifier(name: str, dtype: str, device: str, classes: tuple[str, ...], templates: Templates) -> ZeroShot:
    """Return a zero-shot classifier; ``templates`` are prompts with {}, or the path of a file of prompts."""
    return load_backbone(name, dtype, device).classifier(classes, templates)


def read_inputs(
    backbone: Backbone, stream: Stream, start: int, device: torch.device
) -> ReadAhead[Batch, tuple[Batch, Tensor]]:
    """Read the batches of a stream from number ``start`` on, with preprocessed images, one batch ahead."""
    return ReadAhead(
        stream.batches(start), lambda batch: (batch, backbone.preprocess(batch.images).to(device)), ahead=1
    )
