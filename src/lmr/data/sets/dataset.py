"""The interface of all datasets, and a dataset that corrupts another one on the fly."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lmr.core.errors import LmrError
from lmr.data.corruptions import CORRUPTIONS, EXTRA, corrupt_batch
from lmr.data.provenance import DataOrigin, Provenance, describe_made

ImageArray = NDArray[np.uint8]  # [H, W, 3], RGB
Labels = NDArray[np.int64]
CLEAN = "clean"
SEVERITIES = (1, 2, 3, 4, 5)


class Dataset(ABC):
    """Labelled images in one or several domains; image k is the same scene in all of them.

    ``classes`` are the candidates, in the order of the labels. ``domains`` are those a benchmark runs; ``others`` may
    be requested too. ``severities`` is (0,) for clean sets. ``digest`` changes when the images, the
    labels or their order do; ``protocol`` says in words where the images come from. ``reads_files`` is set where
    images are decoded from files whenever they are read.

    Examples:
        >>> import lmr
        >>> from lmr.data.sets.catalogue import open_dataset
        >>> dataset = open_dataset("photo")
        >>> isinstance(dataset, lmr.Dataset), dataset.classes[:2], dataset.count("clean")
        (True, ('airplane', 'automobile'), 2000)
        >>> dataset.read("clean", 0, [0, 1])[0].shape
        (32, 32, 3)
    """

    name: str
    classes: tuple[str, ...]
    domains: tuple[str, ...] = (CLEAN,)
    others: tuple[str, ...] = ()
    severities: tuple[int, ...] = (0,)
    protocol: dict[str, str]
    reads_files: bool = False

    @property
    @abstractmethod
    def digest(self) -> str:
        """16 hexadecimal digits."""

    @abstractmethod
    def labels(self, domain: str) -> Labels:
        """The class of every image of a domain: int64 [N]."""

    @abstractmethod
    def read(self, domain: str, severity: int, indices: Iterable[int]) -> list[ImageArray]:
        """Images by their index in the set, as uint8 [H, W, 3]; a clean image has no severity."""

    def count(self, domain: str) -> int:
        """The number of images of a domain."""
        return len(self.labels(domain))

    def digest_part(self, domains: Sequence[str], severity: int) -> str:
        """The digest of what a stream through some domains reads; files of other domains do not change it."""
        return self.digest

    def describe_part(self, domains: Sequence[str]) -> dict[str, str]:
        """The protocol of a stream through some domains, in words."""
        return dict(self.protocol)

    def find_origin(self, domains: Sequence[str]) -> DataOrigin:
        """Where the data of a stream through some domains come from: what ``describe_part`` says in words."""
        return DataOrigin()

    def check(self, domain: str, severity: int | None = None, indices: Sequence[int] = ()) -> None:
        """Raise LmrError for what the set does not have."""
        if domain not in self.domains + self.others:
            known = ", ".join(self.domains + self.others)
            raise LmrError(f"The dataset {self.name!r} has no domain {domain!r}; choose one of: {known}.")
        if severity is not None and domain != CLEAN and severity not in self.severities:
            raise LmrError(f"Expected a severity from 1 (mild) to 5 (strong) for {self.name!r}, got {severity!r}.")
        if len(indices):
            count = self.count(domain)
            if not 0 <= min(indices) <= max(indices) < count:
                raise LmrError(
                    f"The dataset {self.name!r} has the images 0 to {count - 1}, but {min(indices)} to {max(indices)} "
                    "were requested."
                )


class CleanSet(Dataset):
    """Clean images whose labels are known without reading them."""

    _labels: Labels

    def labels(self, domain: str) -> Labels:
        """The class of every image."""
        self.check(domain)
        return self._labels

    def read(self, domain: str, severity: int, indices: Iterable[int]) -> list[ImageArray]:
        """The images, once the request has been checked."""
        indices = [int(index) for index in indices]
        self.check(domain, severity, indices)
        return self._read(indices)

    @abstractmethod
    def _read(self, indices: list[int]) -> list[ImageArray]:
        """Images that the set has, by their index."""


class CorruptedOnTheFly(Dataset):
    """A clean set seen through the 15 (+ 4) corruptions, computed when an image is read.

    The noise of an image depends on its number in ``numbers`` (its index if there are none), the corruption, the
    severity and the seed, and hence not on the order or the batch. ``finish`` is what the authors of the official files
    did to a corrupted image before they stored it.
    """

    domains = CORRUPTIONS
    others = (*EXTRA, CLEAN)
    severities = SEVERITIES

    def __init__(
        self,
        name: str,
        clean: Dataset,
        constants: Literal["cifar", "imagenet"],
        *,
        seed: int = 0,
        workers: int = 1,
        numbers: Sequence[int] | None = None,
        finish: Callable[[ImageArray], ImageArray] | None = None,
    ) -> None:
        self.name, self.clean, self.classes = name, clean, clean.classes
        self.constants, self.seed, self.workers = constants, seed, workers
        self._numbers, self._finish = numbers, finish
        self.reads_files = clean.reads_files
        self.protocol = {**clean.protocol, "corruptions": describe_made(constants, seed)}

    @property
    def digest(self) -> str:
        """Of the clean images and of how they are corrupted."""
        return make_digest(self.clean.digest, "on the fly", self.constants, str(self.seed))

    def find_origin(self, domains: Sequence[str]) -> DataOrigin:
        """Made by lmr from the clean images."""
        return DataOrigin(self.clean.find_origin([CLEAN]).images, Provenance.MADE)

    def labels(self, domain: str) -> Labels:
        """The labels of the clean images."""
        self.check(domain)
        return self.clean.labels(CLEAN)

    def read(self, domain: str, severity: int, indices: Iterable[int]) -> list[ImageArray]:
        """Read the clean images and corrupt them."""
        indices = [int(index) for index in indices]
        self.check(domain, severity, indices)
        images = self.clean.read(CLEAN, 0, indices)
        if domain == CLEAN or not images:
            return images
        corrupted = corrupt_batch(
            np.stack(images),
            domain,
            severity,
            seed=self.seed,
            indices=[self._numbers[index] for index in indices] if self._numbers else indices,
            constants=self.constants,
            workers=self.workers,
        )
        return [self._finish(image) for image in corrupted] if self._finish else list(corrupted)


def make_digest(*parts: str | bytes) -> str:
    """16 hexadecimal digits of the parts; their boundaries count."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        whole.update(len(data).to_bytes(8, "little") + data)
    return whole.hexdigest()[:16]


def find_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder that contains the sets: the one given, else $LMR_DATA, else ~/.cache/lmr/data."""
    return Path(root or os.environ.get("LMR_DATA") or "~/.cache/lmr/data").expanduser()


def find_first(root: Path, places: Iterable[str]) -> Path | None:
    """The first of these places under the root that exists."""
    return next((root / place for place in places if (root / place).exists()), None)


class MissingData(LmrError):
    """A set is not under the root, so that another one may be used instead. A damaged set is another error.

    Examples:
        >>> import lmr
        >>> from lmr.data.sets.catalogue import open_dataset
        >>> try:
        ...     dataset = open_dataset("cifar10", root=".")
        ... except lmr.MissingData as error:
        ...     print(error.advice)
        `lmr fetch cifar10` gets it.
    """

    def __init__(self, message: str, root: Path = Path(), advice: str = "") -> None:
        super().__init__(message)
        self.root, self.advice = root, advice  # where it was searched, and the command that gets it, in words


def describe_missing(name: str, root: Path, places: Iterable[str], hint: str = "") -> MissingData:
    """The error for a missing set: where it was searched, and the command that gets it."""
    looked = ", ".join(places)
    extra = f" {hint}" if hint else ""
    return MissingData(
        f"The dataset {name!r} is not in {str(root)!r} (looked for: {looked}). Run `lmr fetch {name}` to get it, or "
        f"give the folder that contains it as the root (or as $LMR_DATA).{extra}",
        root,
        f"`lmr fetch {name}` gets it.{extra}",
    )
