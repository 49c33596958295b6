"""Sets of several natural domains, in the usual layout ``root/domain/class/*``: PACS, Office-Home and others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from lmr.core.errors import LmrError
from lmr.data.dataset import Dataset, ImageArray, Labels, MissingData, find_first, make_digest
from lmr.data.labelled import (
    ImageFileSet,
    find_name_file,
    list_folders,
    list_image_files,
    match_names,
    read_class_names,
)

DOMAIN_SETS = {
    "pacs": ("pacs", "PACS", "kfold"),
    "office-home": ("office-home", "OfficeHome", "OfficeHomeDataset_10072016"),
    "domainnet-126": ("domainnet-126", "domainnet126"),
    "visda-c": ("visda-c", "VISDA-C", "visda"),
    "imagenet-d": ("imagenet-d", "ImageNet-D"),
}  # the folders that a set is looked for in, under the root
LAYOUT = "DOMAIN/CLASS/*.jpg"


class DomainSet(Dataset):
    """Images in a folder for each domain, with the same class folders in each; a domain may lack some of them.

    Folders without a folder of images are no domains. Class names may be given in a file names.tsv, names.txt or
    names.json beside the domains.
    """

    reads_files = True

    def __init__(self, name: str, folder: Path) -> None:
        found = {domain: _list_files(folder / domain) for domain in list_folders(folder)}
        found = {domain: files for domain, files in found.items() if files}
        keys = sorted({file.partition("/")[0] for files in found.values() for file in files})
        if not found:
            raise LmrError(
                f"Expected a folder for each domain, with a folder of images for each class, in {str(folder)!r}, got "
                "none; give the folder that contains the domains."
            )
        own = find_name_file(folder)
        places, names = match_names(keys, read_class_names(own) if own else None)
        if len(names) < 2:
            raise LmrError(f"Expected images of at least two classes in {str(folder)!r}, got {names}.")
        self.name, self.domains = name, tuple(found)
        self.classes = tuple(text.replace("_", " ") for text in names)
        label = dict(zip(keys, places, strict=True))
        self._parts: dict[str, ImageFileSet] = {}
        for domain, files in found.items():
            labels = [label[file.partition("/")[0]] for file in files]
            self._parts[domain] = ImageFileSet(name, folder / domain, files, labels, self.classes, {}, upright=True)
        height, width = self._parts[self.domains[0]].read("clean", 0, [0])[0].shape[:2]
        count = sum(len(part.files) for part in self._parts.values())
        text = f"{count} images in {len(found)} domains and {len(keys)} classes, the first of {width}x{height} pixels"
        self.protocol = {"images": f"files in domain and class folders, not checked: {text}"}

    @cached_property
    def digest(self) -> str:
        """The digest of all domains."""
        return self.digest_part(self.domains, 0)

    def digest_part(self, domains: Sequence[str], severity: int) -> str:
        """Return the digest of some domains."""
        return make_digest(*(text for domain in domains for text in (domain, self._parts[domain].digest)))

    def labels(self, domain: str) -> Labels:
        """Return the class of every image of a domain."""
        self.check(domain)
        return self._parts[domain].labels("clean")

    def _read(self, domain: str, severity: int, indices: list[int]) -> list[ImageArray]:
        return self._parts[domain].read("clean", 0, indices)


def open_domains(name: str, root: Path) -> DomainSet:
    """Open one of ``DOMAIN_SETS`` from its folder under the root. Raises MissingData with where it belongs."""
    places = DOMAIN_SETS[name]
    folder = find_first(root, places)
    if folder is None:
        advice = f"Place it there as {places[0]}/{LAYOUT}; lmr does not fetch it."
        looked = f"The dataset {name!r} is not in {str(root)!r} (looked for: {', '.join(places)})."
        raise MissingData(f"{looked} {advice}", root, advice)
    return DomainSet(name, folder)


def _list_files(folder: Path) -> list[str]:
    return [f"{name}/{file}" for name in list_folders(folder) for file in list_image_files(folder / name)]
