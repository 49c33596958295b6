"""Models and datasets, each opened once per process, and the type of a method on them."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from lmr.bench.machine import count_cores
from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.method import Method
from lmr.core.placement import digest_tensors
from lmr.core.registry import load_function
from lmr.core.remembered import Kept
from lmr.core.wrapper import Wrapper, unwrap
from lmr.data.catalogue import open_dataset
from lmr.data.dataset import BEFORE_CHOICE, CLEAN, Dataset, DerivedSet, ImageArray
from lmr.data.streams import Batch, Stream
from lmr.images.ahead import ReadAhead
from lmr.models import GROUP, Backbone, load

FEATURES: Kept = {}  # of the batches of this process
Templates = tuple[str, ...] | str
AnyMethod = Method | Wrapper

LOADERS = 8  # threads that read images for a GPU, at most
KEPT_BYTES = 800_000_000  # of images; 5,000 of ImageNet take 753 MB
CLEAN_SETS = {"imagenet-c-5000": "imagenet"}  # for other sets that end with -c, the name without it


class KeptImages(DerivedSet):
    """A dataset that keeps the images of the domain that was read last; a process keeps those of one dataset.

    Methods take turns on one domain, and making its images can cost more than classifying them.
    """

    _place: ClassVar[tuple[object, str, int] | None] = None
    _kept: ClassVar[dict[int, ImageArray]] = {}
    _bytes: ClassVar[int] = 0
    _lock: ClassVar[threading.Lock] = threading.Lock()  # threads read at the same time, but keep one after the other

    def read(self, domain: str, severity: int, indices: Iterable[int]) -> list[ImageArray]:
        """Return images; those that are not kept yet are read."""
        kept, place, wanted = type(self), (self.source, domain, severity), [int(index) for index in indices]
        with kept._lock:
            if kept._place != place:
                kept._place, kept._kept, kept._bytes = place, {}, 0
            found = {index: kept._kept[index] for index in wanted if index in kept._kept}
        missing = [index for index in wanted if index not in found]
        fresh = dict(zip(missing, self.source.read(domain, severity, missing), strict=True)) if missing else {}
        with kept._lock:
            for index, image in fresh.items() if kept._place == place else ():
                if index not in kept._kept and kept._bytes + image.nbytes <= KEPT_BYTES:
                    kept._kept[index] = image
                    kept._bytes += image.nbytes
        found |= fresh
        return [found[index] for index in wanted]


class Inputs(NamedTuple):
    """A batch of a stream with its preprocessed images and the digest of their values."""

    batch: Batch
    images: Tensor
    digest: str


def strip_watch(method: AnyMethod) -> Method:
    """Return the method that a watch wraps, or the method itself."""
    return unwrap(method)


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
    parts += [own[1]] if (own := load_function(name, GROUP, "model")) else []
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


def read_inputs(backbone: Backbone, stream: Stream, start: int, device: torch.device) -> ReadAhead[int, Inputs]:
    """Read the batches of a stream from number ``start`` on, with preprocessed images, one batch ahead.

    A GPU needs images faster than one thread prepares them, and leaves the cores free: several threads do, and copy
    from pinned memory, so that the step before need not end first.
    """

    def prepare(number: int) -> Inputs:
        batch = stream.batch(number)
        images = backbone.preprocess(batch.images)
        ready = images.pin_memory() if device.type == "cuda" else images
        return Inputs(batch, ready.to(device, non_blocking=device.type == "cuda"), digest_tensors({"images": images}))

    threads = 1 if device.type == "cpu" else min(LOADERS, count_cores())
    return ReadAhead(range(start, len(stream)), prepare, ahead=threads, workers=threads)
