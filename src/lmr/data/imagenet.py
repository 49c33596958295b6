"""ImageNet's validation set and its variants -C, -A, -R, -Sketch and -V2, from their usual folders.

Labels are indices among the 1,000 classes, except for -A and -R: there a model chooses among their 200 classes only.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from lmr.core.errors import LmrError
from lmr.data.corruptions import EXTRA
from lmr.data.corruptions.constants import find_group
from lmr.data.dataset import (
    CLEAN,
    CorruptedFiles,
    CorruptedOnTheFly,
    Dataset,
    ImageArray,
    Labels,
    describe_missing,
    find_first,
    make_digest,
)
from lmr.data.labelled import ImageFileSet, list_classes, measure_some
from lmr.data.names import read_imagenet, read_list
from lmr.data.provenance import describe_files, read_archive_note
from lmr.images.files import open_image

# The folders of a set under the root, in the order in which they are searched.
FOLDERS = {
    "imagenet": ("imagenet/val", "ILSVRC2012/val", "ILSVRC/Data/CLS-LOC/val", "imagenet"),
    "imagenet-a": ("imagenet-a", "ImageNet-A", "imagenet_a"),
    "imagenet-r": ("imagenet-r", "ImageNet-R", "imagenet_r"),
    "imagenet-sketch": ("imagenet-sketch/sketch", "imagenet-sketch", "sketch", "ImageNet-Sketch"),
    "imagenet-v2": ("imagenetv2-matched-frequency-format-val", "imagenet-v2"),
    "imagenet-c": ("imagenet-c", "ImageNet-C", "imagenet_c"),
}
COUNTS = {
    "imagenet": 50_000,
    "imagenet-a": 7_500,
    "imagenet-r": 30_000,
    "imagenet-sketch": 50_889,
    "imagenet-v2": 10_000,
}
SMALL = "imagenet-c-5000"  # the set of the listed images
_SMALL_LIST = "imagenet_c_5000"
PREPARED = "short side to 256 (bilinear), centre 224x224, as the authors of ImageNet-C"
_SAMPLED = 16  # files per corruption and severity whose sizes go into a digest


def open_imagenet(name: str, root: Path) -> ImageFileSet:
    """Open the validation set, -A, -R, -Sketch or -V2 from a folder under the root."""
    folder = find_first(root, FOLDERS[name])
    if folder is None:
        raise describe_missing(name, root, FOLDERS[name])
    names, wnids = read_imagenet(), tuple(read_imagenet())
    if name in ("imagenet-a", "imagenet-r"):
        wnids = read_list(name.replace("-", "_"))
    numbers = tuple(str(place) for place in range(len(wnids)))  # the folders of -V2 are called 0 to 999
    files, labels = list_labelled_files(folder, numbers if name == "imagenet-v2" else wnids)
    classes = f"{len(wnids)} classes" + (" of ImageNet's 1000, no others are candidates" if len(wnids) < 1000 else "")
    protocol = {"images": f"{len(files)} of {COUNTS[name]} images", "candidates": classes}
    return ImageFileSet(name, folder, files, labels, [names[wnid] for wnid in wnids], protocol)


def list_labelled_files(folder: Path, names: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return the files relative to the folder, by class and name, and their labels. Raises LmrError."""
    place_of = {name: place for place, name in enumerate(names)}
    files = list_classes(folder, names)
    return files, [place_of[file.partition("/")[0]] for file in files]


def open_imagenet_c(name: str, root: Path) -> Dataset:
    """Open ImageNet-C, all of it or the 5,000 images of the usual list ("imagenet-c-5000").

    It comes from folders in the official layout, or from the validation set corrupted on the fly.
    """
    folder, clean = find_first(root, FOLDERS["imagenet-c"]), find_first(root, FOLDERS["imagenet"])
    if folder is not None:
        return ImageNetC(name, folder, partial(open_crops, name, clean) if clean else None)
    if clean is None:
        hint = "The clean validation set (`lmr fetch imagenet`) is sufficient: it is then corrupted on the fly."
        raise describe_missing(name, root, FOLDERS["imagenet-c"], hint)
    return corrupt_validation(name, clean)


def corrupt_validation(name: str, folder: Path) -> CorruptedOnTheFly:
    """Open the clean crops, corrupted when they are read and compressed like the official files."""
    crops = open_crops(name, folder)
    numbers = [number_image(file, place) for place, file in enumerate(crops.files)]
    corrupted = CorruptedOnTheFly(name, crops, "imagenet", numbers=numbers, finish=store_as_jpeg)
    corrupted.protocol["corruptions"] += ", stored as JPEG of quality 85"
    return corrupted


def open_crops(name: str, folder: Path) -> ImageFileSet:
    """Open the clean images ImageNet-C was made from, cropped to 224x224; for "imagenet-c-5000" those of the list."""
    wnids, small = tuple(read_imagenet()), name == SMALL
    if small:
        place_of = {wnid: place for place, wnid in enumerate(wnids)}
        listed = [line.partition("/")[::2] for line in read_list(_SMALL_LIST)]
        flat = not any((folder / wnid).is_dir() for wnid, _ in listed[:10])
        files = [file if flat else f"{wnid}/{file}" for wnid, file in listed]
        labels = [place_of[wnid] for wnid, _ in listed]
    else:
        files, labels = list_labelled_files(folder, wnids)
    protocol = {**_describe_list(small, len(files)), "prepared": PREPARED}
    return ImageFileSet(name, folder, files, labels, read_imagenet().values(), protocol, prepare=crop_image)


def _describe_list(small: bool, count: int) -> dict[str, str]:
    listed = "the 5,000-image list in its own order" if small else f"{count} of 50000 images, by class and name"
    return {"images": listed, "candidates": "1000 classes"}


class ImageNetC(CorruptedFiles):
    """Folders in the official layout, corruption/severity/class/file."""

    reads_files = True

    def __init__(self, name: str, folder: Path, open_clean: Callable[[], Dataset] | None = None) -> None:
        super().__init__(folder, open_clean)
        self.name, self._small = name, name == SMALL
        self.classes = tuple(read_imagenet().values())
        self._lists: dict[str, tuple[str, ...]] = {}
        self._place_of = {wnid: place for place, wnid in enumerate(read_imagenet())}
        self._advice = f"Run `lmr fetch {name}`, or check the folder with `lmr fetch {name} --check {folder}`."
        first = next((domain for domain in self.domains + EXTRA if self._has(domain)), None)
        if first is None:
            raise LmrError(
                f"Expected folders such as {self.domains[0]}/5/n01440764 in {str(folder)!r}, found none. {self._advice}"
            )
        protocol = _describe_list(self._small, self.count(first))
        origin = describe_files(None, "ImageNet-C")
        self.protocol = {**protocol, "corruptions": origin}

    def _has(self, domain: str) -> bool:
        return any((self.locate(domain) / str(severity)).is_dir() for severity in self.severities)

    def locate(self, domain: str) -> Path:
        """Return the folder of a corruption, possibly inside that of its archive."""
        grouped = self.folder / find_group(domain) / domain
        return grouped if grouped.is_dir() else self.folder / domain

    def list_files(self, domain: str) -> tuple[str, ...]:
        """Return every image of a corruption as "class/file", the same at all severities."""
        if self._small:
            return read_list(_SMALL_LIST)
        if domain not in self._lists:
            place = self.locate(domain)
            folder = next((place / str(s) for s in reversed(self.severities) if (place / str(s)).is_dir()), None)
            if folder is None:
                raise LmrError(f"There is no folder {str(place / '5')!r}. {self._advice}")
            self._lists[domain] = tuple(list_classes(folder, self._place_of))
        return self._lists[domain]

    def check_files(self, domain: str, severity: int) -> list[str]:
        """Return messages about missing files in the folder of a corruption and severity."""
        folder = self.locate(domain) / str(severity)
        if not folder.is_dir():
            return [f"There is no folder {str(folder)!r}."]
        names = set(list_classes(folder, self._place_of))
        if self._small:
            missing = [file for file in self.list_files(domain) if file not in names]
            if missing:
                return [f"{str(folder)!r} lacks {len(missing)} of the 5,000 images, for example {missing[0]}."]
        elif len(names) != COUNTS["imagenet"] or names != set(self.list_files(domain)):
            return [f"Expected the 50,000 validation images in {str(folder)!r}, found {len(names)}."]
        return []

    @property
    def _identity(self) -> str:
        return self.name

    def _sample(self, domain: str, severity: int) -> list[str | bytes]:
        files = self.list_files(domain)
        sizes = measure_some(self.locate(domain) / str(severity), files, _SAMPLED)
        return [make_digest("\n".join(files)), str(sizes)]

    def describe_part(self, domains: Sequence[str]) -> dict[str, str]:
        """Return the protocol; files are official if `lmr fetch` unpacked them, as they have no checksums."""
        archives = {find_group(domain) for domain in domains if domain != CLEAN}
        notes = [read_archive_note(self.folder.parent, f"{archive}.tar") for archive in archives]
        if not notes or not all(notes):
            return super().describe_part(domains)
        return super().describe_part(domains) | {"corruptions": describe_files(True, "ImageNet-C")}

    def count(self, domain: str) -> int:
        """Return the number of images of a corruption."""
        self.check(domain)
        return self._clean.count(CLEAN) if domain == CLEAN else len(self.list_files(domain))

    def _read_labels(self, domain: str) -> Labels:
        return np.array([self._place_of[file.partition("/")[0]] for file in self.list_files(domain)], np.int64)

    def _read_files(self, domain: str, severity: int, indices: list[int]) -> list[ImageArray]:
        folder, files = self.locate(domain) / str(severity), self.list_files(domain)
        return [np.array(open_image(folder / files[index], upright=False)) for index in indices]


def crop_image(image: Image.Image) -> Image.Image:
    """Resize the short side to 256 (bilinear, antialiased), then crop the centre 224x224, as the authors did."""
    width, height = image.size
    short = min(width, height)
    size = (256 if width == short else int(256 * width / short), 256 if height == short else int(256 * height / short))
    resized = image if size == image.size else image.resize(size, Image.Resampling.BILINEAR)
    left, top = round((size[0] - 224) / 2), round((size[1] - 224) / 2)
    return resized.crop((left, top, left + 224, top + 224))


def store_as_jpeg(image: ImageArray) -> ImageArray:
    """Compress and decompress an image: the official files are JPEG of quality 85, which softens noise."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=85, optimize=True)
    return np.array(Image.open(buffer).convert("RGB"))


def number_image(file: str, place: int) -> int:
    """Return the number in a validation file's name, so that noise is the same in every list; else the index."""
    number = re.search(r"ILSVRC2012_val_(\d+)", file)
    return int(number[1]) if number else place
