"""The interface of all datasets, and datasets made from others: corrupted on the fly, or with some of the classes."""

from __future__ import annotations

import hashlib
import os
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lmr.core.errors import LmrError, MissingFile
from lmr.data.corruptions import CORRUPTIONS, EXTRA
from lmr.data.corruptions.apply import corrupt_batch
from lmr.data.provenance import describe_made

ImageArray = NDArray[np.uint8]  # [H, W, 3], RGB
Labels = NDArray[np.int64]
CLEAN = "clean"
SEVERITIES = (1, 2, 3, 4, 5)
BEFORE_CHOICE = "@"  # in the name of a subset, between the name of the whole set and the chosen classes


class Dataset(ABC):
    """Labelled images in one or several domains; image k is the same scene in all of them.

    ``classes`` are the candidates, in the order of the labels. A benchmark runs ``domains``; ``others`` may be
    requested too. ``severities`` is (0,) for clean sets. ``digest`` changes when the images, the labels or their order
    do; ``protocol`` describes the origin of the images as text. ``reads_files`` is True if images are decoded from
    files whenever they are read.

    Examples:
        >>> import lmr
        >>> from lmr.data.catalogue import open_dataset
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
        """Return the class of every image of a domain: int64 [N]."""

    def read(self, domain: str, severity: int, indices: Iterable[int]) -> list[ImageArray]:
        """Return images by their index in the set, uint8 [H, W, 3]; clean images ignore the severity."""
        wanted = [int(index) for index in indices]
        self.check(domain, severity, wanted)
        return self._read(domain, severity, wanted)

    def _read(self, domain: str, severity: int, indices: list[int]) -> list[ImageArray]:
        raise NotImplementedError

    def count(self, domain: str) -> int:
        """Return the number of images of a domain."""
        return len(self.labels(domain))

    def digest_part(self, domains: Sequence[str], severity: int) -> str:
        """Return the digest of the data of a stream through some domains; files of other domains do not change it."""
        return self.digest

    def describe_part(self, domains: Sequence[str]) -> dict[str, str]:
        """Return the protocol of a stream through some domains."""
        return dict(self.protocol)

    def check(self, domain: str, severity: int | None = None, indices: Sequence[int] = ()) -> None:
        """Raise LmrError for a domain, severity or image that the set does not have."""
        if domain not in self.domains + self.others:
            known = ", ".join(self.domains + self.others)
            raise LmrError(f"The dataset {self.name!r} has no domain {domain!r}; choose one of: {known}.")
        if severity is not None and domain != CLEAN and self.severities != (0,) and severity not in self.severities:
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
        """Return the class of every image."""
        self.check(domain)
        return self._labels


class ArraySet(CleanSet):
    """Clean images of one size in memory: uint8 [N, H, W, 3] and labels [N], which count the ``classes`` from 0."""

    _images: NDArray[np.uint8]

    def __init__(
        self, name: str, images: NDArray[np.uint8], labels: NDArray[np.int64] | Sequence[int], classes: Sequence[str]
    ) -> None:
        self.name, self.classes = name, tuple(classes)
        self._images, self._labels = np.asarray(images), np.asarray(labels, np.int64)
        shape, count = self._images.shape, len(self._labels)
        if self._images.dtype != np.uint8 or len(shape) != 4 or shape[::3] != (count, 3) or not count:
            raise LmrError(f"Expected uint8 images [{count}, H, W, 3] for {count} labels, got {shape}.")
        if self._labels.min() < 0 or self._labels.max() >= len(self.classes):
            raise LmrError(f"Expected labels from 0 to {len(self.classes) - 1} for {name!r}.")
        self.protocol = {"images": f"{count} images in memory"}

    @cached_property
    def digest(self) -> str:
        """The digest of every pixel and label, whatever file they were read from."""
        return make_digest(self._images.tobytes(), self._labels.astype("<i8").tobytes())

    def _read(self, domain: str, severity: int, indices: list[int]) -> list[ImageArray]:
        return [self._images[index].copy() for index in indices]


class CorruptedOnTheFly(Dataset):
    """A clean set seen through the 15 (+ 4) corruptions, computed when an image is read.

    The noise of an image depends on its number in ``numbers`` (default: its index), the corruption, the severity and
    the seed, and hence not on the order or the batch. ``finish`` is what the authors of the official files did to a
    corrupted image before they stored it.
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
        numbers: Sequence[int] | None = None,
        finish: Callable[[ImageArray], ImageArray] | None = None,
    ) -> None:
        self.name, self.clean, self.classes = name, clean, clean.classes
        self.constants, self.seed = constants, seed
        self._numbers, self._finish = numbers, finish
        self.reads_files = clean.reads_files
        self.protocol = {**clean.protocol, "corruptions": describe_made(constants, seed)}

    @property
    def digest(self) -> str:
        """The digest of the clean images and of how they are corrupted."""
        return make_digest(self.clean.digest, "on the fly", self.constants, str(self.seed))

    def labels(self, domain: str) -> Labels:
        """Return the labels of the clean images."""
        self.check(domain)
        return self.clean.labels(CLEAN)

    def _read(self, domain: str, severity: int, indices: list[int]) -> list[ImageArray]:
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
        )
        return [self._finish(image) for image in corrupted] if self._finish else list(corrupted)


class CorruptedFiles(Dataset):
    """Corrupted images from files in an official layout.

    ``open_clean`` opens the clean set when the domain "clean" is first used; without it there is no such domain.
    """

    domains = CORRUPTIONS
    severities = SEVERITIES

    def __init__(self, folder: Path, open_clean: Callable[[], Dataset] | None) -> None:
        self.folder, self._open_clean = folder, open_clean
        self.others = (*EXTRA, CLEAN) if open_clean else EXTRA

    @cached_property
    def _clean(self) -> Dataset:
        assert self._open_clean is not None  # check() has refused the domain otherwise
        return self._open_clean()

    @cached_property
    def digest(self) -> str:
        """The digest of every benchmark corruption that exists, at all severities."""
        existing = [domain for domain in self.domains if self._has(domain)]
        return make_digest(*(self.digest_part(existing, severity) for severity in self.severities))

    def digest_part(self, domains: Sequence[str], severity: int) -> str:
        """Return the digest of a sample of the files of some domains: reading all of them would take minutes."""
        parts: list[str | bytes] = [self._identity]
        for domain in domains:
            if domain == CLEAN:
                parts += [domain, self._clean.digest]
            else:
                parts += [domain, str(severity), *self._sample(domain, severity)]
        return make_digest(*parts)

    def labels(self, domain: str) -> Labels:
        """Return the class of every image, the same at every severity."""
        self.check(domain)
        return self._clean.labels(CLEAN) if domain == CLEAN else self._read_labels(domain)

    def _read(self, domain: str, severity: int, indices: list[int]) -> list[ImageArray]:
        return self._clean.read(CLEAN, 0, indices) if domain == CLEAN else self._read_files(domain, severity, indices)

    @property
    @abstractmethod
    def _identity(self) -> str | bytes:
        """The part of the digest that all domains share."""

    @abstractmethod
    def _has(self, domain: str) -> bool:
        """Return True if there are files of a corruption."""

    @abstractmethod
    def _sample(self, domain: str, severity: int) -> list[str | bytes]:
        """Return the part of the digest that depends on the files of a corruption."""

    @abstractmethod
    def _read_labels(self, domain: str) -> Labels:
        """Return the labels of a corruption."""

    @abstractmethod
    def _read_files(self, domain: str, severity: int, indices: list[int]) -> list[ImageArray]:
        """Read images of a corruption, by their index."""


class DerivedSet(Dataset):
    """A set with images of another one, ``source``; what a subclass does not change is as there."""

    def __init__(self, source: Dataset) -> None:
        self.source = source
        self.name, self.classes, self.protocol = source.name, source.classes, source.protocol
        self.domains, self.others, self.severities = source.domains, source.others, source.severities
        self.reads_files = source.reads_files

    @property
    def digest(self) -> str:
        """The digest of the source."""
        return self.source.digest

    def digest_part(self, domains: Sequence[str], severity: int) -> str:
        """Return the digest of a part of the source."""
        return self.source.digest_part(domains, severity)

    def describe_part(self, domains: Sequence[str]) -> dict[str, str]:
        """Return the protocol of a part of the source."""
        return self.source.describe_part(domains)

    def labels(self, domain: str) -> Labels:
        """Return the labels of the source."""
        return self.source.labels(domain)


class ClassSubset(DerivedSet):
    """The images of some classes of another set.

    ``cifar100-c@10`` has ten classes, ``cifar100-c@10.2`` ten others, ``photo-c@cat+dog`` those with these names.

    Image k of the whole set has the same pixels here. A number of classes is consecutive in the list of the whole set,
    from a seeded position on, so that a smaller subset with the same seed lies within a larger one. Neighbours in a
    list are often alike (drawings of one shape, ImageNet's dogs), and a subset of them is harder to tell apart than a
    random one: five drawings at random are easy under every corruption.
    """

    def __init__(self, name: str, whole: Dataset, choice: str) -> None:
        total, names = len(whole.classes), choice.split("+")
        count, dot, seed = choice.partition(".")
        if count.isdecimal() and (seed.isdecimal() or not dot):
            if not 2 <= int(count) <= total:
                raise LmrError(
                    f"Expected from 2 to {total} classes, those of {whole.name!r}, in {name!r}, got {count}."
                )
            self.chosen = choose_classes(total, int(count), int(seed or 0))
            self._choice = f"{count} of {total}, chosen with seed {int(seed or 0)}"
        elif len(set(names)) > 1 and set(names) <= set(whole.classes):
            self.chosen = sorted({whole.classes.index(own) for own in names})
            self._choice = f"{len(self.chosen)} of {total}, chosen by name"
        else:
            raise LmrError(
                f"Cannot read the dataset {name!r}; ten classes of it are {whole.name}@10, another ten "
                f"{whole.name}@10.2, where 2 is a seed, and two by name {whole.name}@{'+'.join(whole.classes[:2])}. "
                f"Its classes: {', '.join(whole.classes[:20])}{', …' if total > 20 else ''}."
            )
        super().__init__(whole)
        self.name, self.classes = name, tuple(whole.classes[place] for place in self.chosen)
        self.protocol = {**whole.protocol, "subset": self._choice}

    @property
    def digest(self) -> str:
        """The digest of the whole set and the chosen classes."""
        return self._digest(super().digest)

    def digest_part(self, domains: Sequence[str], severity: int) -> str:
        """Return the digest of this part of the whole set and the chosen classes."""
        return self._digest(super().digest_part(domains, severity))

    def _digest(self, whole: str) -> str:
        return make_digest(whole, "classes", *map(str, self.chosen))

    def describe_part(self, domains: Sequence[str]) -> dict[str, str]:
        """Return the protocol of this part of the whole set, and the choice."""
        return {**super().describe_part(domains), "subset": self._choice}

    def labels(self, domain: str) -> Labels:
        """Return the labels, which count the chosen classes from 0."""
        labels = self.source.labels(domain)
        return np.searchsorted(self.chosen, labels[self._find_places(domain)]).astype(np.int64)

    def _read(self, domain: str, severity: int, indices: list[int]) -> list[ImageArray]:
        return self.source.read(domain, severity, self._find_places(domain)[indices].tolist())

    def _find_places(self, domain: str) -> Labels:
        """Return the index of every image in the whole set: int64 [N]."""
        return np.flatnonzero(np.isin(self.source.labels(domain), self.chosen))


def choose_classes(total: int, count: int, seed: int = 0) -> list[int]:
    """Return ``count`` consecutive classes of ``total`` from a random one on, cyclically; sorted."""
    first = random.Random(seed).randrange(total)
    return sorted((first + place) % total for place in range(count))


def make_digest(*parts: str | bytes) -> str:
    """Return 16 hexadecimal digits of the parts and their boundaries."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        whole.update(len(data).to_bytes(8, "little") + data)
    return whole.hexdigest()[:16]


def find_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder that contains the sets: the given one, else $LMR_DATA, else ~/.cache/lmr/data."""
    return Path(root or os.environ.get("LMR_DATA") or "~/.cache/lmr/data").expanduser()


def find_first(root: Path, places: Iterable[str]) -> Path | None:
    """Return the first of these paths under the root that exists."""
    return next((root / place for place in places if (root / place).exists()), None)


class MissingData(MissingFile):
    """A set that is not under the root, so that another one may be used instead. A damaged set is another error.

    Examples:
        >>> import lmr
        >>> from lmr.data.catalogue import open_dataset
        >>> try:
        ...     dataset = open_dataset("cifar10", root=".")
        ... except lmr.MissingData as error:
        ...     print(error.advice)
        `lmr fetch cifar10` gets it.
    """

    def __init__(self, message: str, root: Path = Path(), advice: str = "") -> None:
        super().__init__(message)
        self.root, self.advice = root, advice  # where it was searched, and the command that gets it


def describe_missing(name: str, root: Path, places: Iterable[str], hint: str = "") -> MissingData:
    """Return the error for a missing set: where it was searched, and the command that gets it."""
    looked = ", ".join(places)
    extra = f" {hint}" if hint else ""
    return MissingData(
        f"The dataset {name!r} is not in {str(root)!r} (looked for: {looked}). Run `lmr fetch {name}` to get it, or "
        f"give the folder that contains it as the root (or as $LMR_DATA).{extra}",
        root,
        f"`lmr fetch {name}` gets it.{extra}",
    )
