"""ImageNet's validation set and the sets made after it: -C, -A, -R, -Sketch and -V2, from their usual folders.

Labels are places among the 1,000 classes, except for -A and -R, which have 200: there a model chooses among these only.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from PIL import Image

from lmr.core.errors import LmrError
from lmr.data.corruptions import CORRUPTIONS, EXTRA
from lmr.data.fetch.fetched import read_fetched
from lmr.data.fetch.made import read_note
from lmr.data.fetch.sources import GROUPS
from lmr.data.names import read_imagenet, read_list
from lmr.data.provenance import DataOrigin, Provenance, describe_files
from lmr.data.sets.dataset import (
    CLEAN,
    SEVERITIES,
    CorruptedOnTheFly,
    Dataset,
    Labels,
    Picture,
    describe_missing,
    find_first,
    make_digest,
)
from lmr.data.sets.image_file_set import PictureFiles, list_classes, measure_some, open_file
from lmr.data.sets.imagenet_truth import list_validation

# Where a set is looked for under the root, first choice first.
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
SMALL = "imagenet-c-5000"  # the set that has the pictures of the list alone
_SMALL_LIST = "imagenet_c_5000"
_PREPARED = "short side to 256 (bilinear), centre 224x224, as the authors of ImageNet-C"
_SAMPLED = 16  # files per corruption and severity whose sizes go into a digest


def open_imagenet(name: str, root: Path) -> PictureFiles:
    """The validation set, -A, -R, -Sketch or -V2 from a folder under the root."""
    folder = find_first(root, FOLDERS[name])
    if folder is None:
        raise describe_missing(name, root, FOLDERS[name])
    return open_folder(name, folder)


def open_folder(name: str, folder: Path) -> PictureFiles:
    """The same from its own folder."""
    names, wnids = read_imagenet(), tuple(read_imagenet())
    advice = f"Check the folder with `lmr fetch {name} --check {folder}`."
    if name == "imagenet":
        files, labels = list_validation(folder, wnids)
    else:
        keys = wnids
        if name in ("imagenet-a", "imagenet-r"):
            keys = wnids = read_list(name.replace("-", "_"))
        elif name == "imagenet-v2":
            keys = tuple(str(place) for place in range(len(wnids)))  # its folders are called 0 to 999
        place_of = {key: place for place, key in enumerate(keys)}
        files = list_classes(folder, keys)
        labels = [place_of[file.partition("/")[0]] for file in files]
    classes = f"{len(wnids)} classes" + (" of ImageNet's 1000, no others are candidates" if len(wnids) < 1000 else "")
    protocol = {"pictures": f"{len(files)} of {COUNTS[name]} pictures", "candidates": classes}
    return PictureFiles(name, folder, files, labels, [names[wnid] for wnid in wnids], protocol, advice=advice)


def open_imagenet_c(name: str, root: Path, workers: int = 1) -> Dataset:
    """ImageNet-C, all of it or the 5,000 pictures of the usual list ("imagenet-c-5000").

    From folders in the official layout, or from the validation set corrupted on the fly.
    """
    folder, clean = find_first(root, FOLDERS["imagenet-c"]), find_first(root, FOLDERS["imagenet"])
    if folder is not None:
        return ImageNetC(name, folder, partial(open_crops, name, clean) if clean else None)
    if clean is None:
        hint = "The clean validation set (`lmr fetch imagenet`) will do too: it is then corrupted on the fly."
        raise describe_missing(name, root, FOLDERS["imagenet-c"], hint)
    return corrupt_validation(name, clean, workers)


def corrupt_validation(name: str, folder: Path, workers: int = 1, *, stored: bool = True) -> CorruptedOnTheFly:
    """The clean crops, corrupted when they are read, and then as if they had been ``stored`` like the official ones."""
    crops = open_crops(name, folder)
    numbers = [number_picture(file, place) for place, file in enumerate(crops.files)]
    finish = store_as_jpeg if stored else None
    corrupted = CorruptedOnTheFly(name, crops, "imagenet", workers=workers, numbers=numbers, finish=finish)
    corrupted.protocol["corruptions"] += ", stored as JPEG of quality 85"
    return corrupted


def open_crops(name: str, folder: Path) -> PictureFiles:
    """The clean pictures ImageNet-C was made from, cropped to 224x224; for "imagenet-c-5000" those of the list."""
    wnids, small = tuple(read_imagenet()), name == SMALL
    if small:
        place_of = {wnid: place for place, wnid in enumerate(wnids)}
        listed = [line.partition("/")[::2] for line in read_list(_SMALL_LIST)]
        flat = not any((folder / wnid).is_dir() for wnid, _ in listed[:10])
        files = [file if flat else f"{wnid}/{file}" for wnid, file in listed]
        labels = [place_of[wnid] for wnid, _ in listed]
    else:
        files, labels = list_validation(folder, wnids)
    advice = f"Check the folder with `lmr fetch imagenet --check {folder}`."
    protocol = {**_describe_list(small, len(files)), "prepared": _PREPARED}
    return PictureFiles(
        name, folder, files, labels, read_imagenet().values(), protocol, prepare=crop_picture, advice=advice
    )


def _describe_list(small: bool, count: int) -> dict[str, str]:
    listed = "the 5,000-picture list in its own order" if small else f"{count} of 50000 pictures, by class and name"
    return {"pictures": listed, "candidates": "1000 classes"}


class ImageNetC(Dataset):
    """Folders in the official layout, corruption/severity/class/file.

    ``open_clean`` opens the clean crops when the domain "clean" is first asked for; without it there is none.
    """

    domains = CORRUPTIONS
    severities = SEVERITIES

    def __init__(self, name: str, folder: Path, open_clean: Callable[[], Dataset] | None = None) -> None:
        self.name, self.folder, self._small, self._open_clean = name, folder, name == SMALL, open_clean
        self.classes = tuple(read_imagenet().values())
        self.others = (*EXTRA, CLEAN) if open_clean else EXTRA
        self._lists: dict[str, tuple[str, ...]] = {}
        self._place_of = {wnid: place for place, wnid in enumerate(read_imagenet())}
        self._advice = f"Run `lmr fetch {name}`, or check the folder with `lmr fetch {name} --check {folder}`."
        first = next((domain for domain in self.domains + EXTRA if self._has(domain)), None)
        if first is None:
            raise LmrError(
                f"Expected folders such as {self.domains[0]}/5/n01440764 in {str(folder)!r}, found none. {self._advice}"
            )
        protocol = _describe_list(self._small, self.count(first))
        words = read_note(folder) or describe_files(Provenance.UNCHECKED, "ImageNet-C")
        self.protocol = {**protocol, "corruptions": words}

    def _has(self, domain: str) -> bool:
        return any((self.locate(domain) / str(severity)).is_dir() for severity in self.severities)

    def locate(self, domain: str) -> Path:
        """The folder of a corruption, by itself or inside that of its archive."""
        grouped = self.folder / find_group(domain) / domain
        return grouped if grouped.is_dir() else self.folder / domain

    def list_files(self, domain: str) -> tuple[str, ...]:
        """Every picture of a corruption as "class/file"; the same at all severities."""
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
        """What is missing in the folder of a corruption and severity, in sentences."""
        folder = self.locate(domain) / str(severity)
        if not folder.is_dir():
            return [f"There is no folder {str(folder)!r}."]
        names = set(list_classes(folder, self._place_of))
        if self._small:
            missing = [file for file in self.list_files(domain) if file not in names]
            if missing:
                return [f"{str(folder)!r} lacks {len(missing)} of the 5,000 pictures, {missing[0]} for one."]
        elif len(names) != COUNTS["imagenet"] or names != set(self.list_files(domain)):
            return [f"Expected the 50,000 validation pictures in {str(folder)!r}, found {len(names)}."]
        return []

    @cached_property
    def _clean(self) -> Dataset:
        assert self._open_clean is not None  # check() has refused the domain otherwise
        return self._open_clean()

    @cached_property
    def digest(self) -> str:
        """Of every benchmark corruption that is there, at all severities."""
        there = list(filter(self._has, self.domains))
        return make_digest(*(self.digest_part(there, severity) for severity in self.severities))

    def digest_part(self, domains: Sequence[str], severity: int) -> str:
        """Of the list, and of the sizes of a few files of each corruption."""
        parts = []
        for domain in domains:
            if domain == CLEAN:
                parts += [domain, self._clean.digest]
            else:
                files = self.list_files(domain)
                sizes = measure_some(self.locate(domain) / str(severity), files, _SAMPLED)
                parts += [domain, str(severity), make_digest("\n".join(files)), str(sizes)]
        return make_digest(self.name, *parts)

    def describe_part(self, domains: Sequence[str]) -> dict[str, str]:
        """Official are files that `lmr fetch` took out of the published archives; single ones have no checksum."""
        if self.find_origin(domains).corruptions is not Provenance.OFFICIAL:
            return super().describe_part(domains)
        return super().describe_part(domains) | {"corruptions": describe_files(Provenance.OFFICIAL, "ImageNet-C")}

    def find_origin(self, domains: Sequence[str]) -> DataOrigin:
        """The same as a type."""
        if read_note(self.folder):
            return DataOrigin(corruptions=Provenance.MADE)
        archives = {find_group(domain) for domain in domains if domain != CLEAN}
        notes = [read_fetched(self.folder.parent, f"{archive}.tar") for archive in archives]
        official = bool(notes) and all(note and note.get("names") for note in notes)
        return DataOrigin(corruptions=Provenance.OFFICIAL if official else Provenance.UNCHECKED)

    def count(self, domain: str) -> int:
        """How many pictures a corruption has."""
        self.check(domain)
        return self._clean.count(CLEAN) if domain == CLEAN else len(self.list_files(domain))

    def labels(self, domain: str) -> Labels:
        """The place of every picture's class among the 1,000."""
        self.check(domain)
        if domain == CLEAN:
            return self._clean.labels(CLEAN)
        return np.array([self._place_of[file.partition("/")[0]] for file in self.list_files(domain)], np.int64)

    def read(self, domain: str, severity: int, indices: Iterable[int]) -> list[Picture]:
        """Open the files, which are 224x224 already."""
        indices = [int(index) for index in indices]
        self.check(domain, severity, indices)
        if domain == CLEAN:
            return self._clean.read(CLEAN, 0, indices)
        folder, files = self.locate(domain) / str(severity), self.list_files(domain)
        return [np.array(open_file(folder / files[index], False, self._advice)) for index in indices]


def find_group(domain: str) -> str:
    """The archive a corruption is published in."""
    return next(group for group, members in GROUPS.items() if domain in members)


def crop_picture(picture: Image.Image) -> Image.Image:
    """Short side to 256 (bilinear, antialiased), then the centre 224x224: what the corruptions were applied to."""
    width, height = picture.size
    short = min(width, height)
    size = (256 if width == short else int(256 * width / short), 256 if height == short else int(256 * height / short))
    resized = picture if size == picture.size else picture.resize(size, Image.Resampling.BILINEAR)
    left, top = round((size[0] - 224) / 2), round((size[1] - 224) / 2)
    return resized.crop((left, top, left + 224, top + 224))


def encode_jpeg(picture: Picture) -> bytes:
    """A picture as the authors stored it."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "JPEG", quality=85, optimize=True)
    return buffer.getvalue()


def store_as_jpeg(picture: Picture) -> Picture:
    """The official files are JPEG of quality 85, which softens noise: a picture made on the fly goes through it too."""
    return np.array(Image.open(io.BytesIO(encode_jpeg(picture))).convert("RGB"))


def number_picture(file: str, place: int) -> int:
    """The number in a validation file's name, so that a picture meets the same noise in every list; else its place."""
    number = re.search(r"ILSVRC2012_val_(\d+)", file)
    return int(number[1]) if number else place
