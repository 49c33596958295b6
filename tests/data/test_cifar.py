"""CIFAR out of every container, the official corrupted files as sparse memory maps, and files not to be trusted."""

from __future__ import annotations

import hashlib
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import set_maker as maker
from lmr.data.cifar import OFFICIAL, CifarC, open_cifar, open_cifar_c, read_archive, read_checksums
from lmr.data.corruptions.apply import corrupt
from real_data import FOLDER, needs

KINDS = ("python 2", "python 3", "tar", "npz")
NAMES = {10: "cifar-10-batches-py/test_batch", 100: "cifar-100-python/test"}


def write(folder: Path, kind: str, classes: int, images: np.ndarray, labels: np.ndarray) -> Path:
    """One container of the given kind -> its path."""
    if kind == "npz":
        np.savez(folder / f"cifar{classes}_test.npz", images=images, labels=labels)
        return folder / f"cifar{classes}_test.npz"
    key = "labels" if classes == 10 else "fine_labels"
    inner = folder / NAMES[classes]
    inner.parent.mkdir(parents=True, exist_ok=True)
    if kind == "python 3":
        rows = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
        inner.write_bytes(pickle.dumps({"data": rows, key: labels.tolist(), "filenames": ["a.png"]}, protocol=2))
    else:
        inner.write_bytes(maker.pickle_like_python_2(images, labels, key.encode()))
    if kind != "tar":
        return inner
    path = folder / f"cifar-{classes}-python.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(inner, inner.relative_to(folder).as_posix())
    inner.unlink()
    return path


@pytest.mark.parametrize("classes", [10, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_every_container_gives_the_same_images(kind: str, classes: int, tmp_path: Path) -> None:
    images, labels = maker.make_cifar(12, classes)
    found, truth = read_archive(write(tmp_path, kind, classes, images, labels), classes)
    np.testing.assert_array_equal(found, images)
    np.testing.assert_array_equal(truth, labels)
    assert found.dtype == np.uint8
    assert truth.dtype == np.int64


class Trap:
    """Writes a file when it is unpickled by an unpickler that trusts its input."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_pickle_that_runs_code_is_refused(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    pickle.loads(pickle.dumps(Trap(victim)))
    assert victim.exists()  # the trap works
    victim.unlink()
    path = tmp_path / "test_batch"
    path.write_bytes(pickle.dumps({"data": Trap(victim), "labels": []}, protocol=2))
    with pytest.raises(ValueError, match="do not trust the file"):
        read_archive(path, 10)
    assert not victim.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_file_is_a_sentence(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path, kind, 10, *maker.make_cifar(5, 10))
    whole = path.read_bytes()
    for size in (0, len(whole) // 2):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"Cannot read CIFAR-10 from .*\.$"):
            read_archive(path, 10)


def test_wrong_contents_are_sentences(tmp_path: Path) -> None:
    images, labels = maker.make_cifar(4, 10)
    path = tmp_path / "cifar10_test.npz"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"images": images}, "arrays images and labels"),
        ({"images": images[:, :16], "labels": labels}, "Expected uint8 images"),
        ({"images": images, "labels": labels[:3]}, "Expected 4 whole numbers"),
        ({"images": images, "labels": labels + 10}, "Expected 4 whole numbers from 0 to 9"),
        ({"images": images, "labels": np.array([None] * 4)}, "Cannot read CIFAR-10"),  # an object array is a pickle
    ]
    for arrays, sentence in cases:
        np.savez(path, **arrays)
        with pytest.raises(ValueError, match=sentence):
            read_archive(path, 10)
    other = tmp_path / "test_batch"
    for content in ([1, 2], {"data": 3}, {"data": images[:, 0, 0], "labels": [1]}):
        other.write_bytes(pickle.dumps(content, protocol=2))
        with pytest.raises(ValueError, match="Cannot read CIFAR-10"):
            read_archive(other, 10)


def test_clean_set(tmp_path: Path) -> None:
    images, labels = maker.make_cifar(10_000, 100)
    (tmp_path / "cifar100").mkdir()
    write(tmp_path / "cifar100", "npz", 100, images, labels)  # a folder of its own is searched too
    found = open_cifar(100, tmp_path)
    assert (found.name, found.domains, found.severities, len(found.classes)) == ("cifar100", ("clean",), (0,), 100)
    assert found.classes[1] == "aquarium fish"
    assert found.count("clean") == 10_000
    np.testing.assert_array_equal(found.labels("clean"), labels)
    np.testing.assert_array_equal(found.read("clean", 0, [7, 3, 7]), images[[7, 3, 7]])
    assert "not the official test set" in found.protocol["images"]
    whole = hashlib.sha256()
    for data in (images.tobytes(), labels.astype("<i8").tobytes()):
        whole.update(len(data).to_bytes(8, "little") + data)
    assert found.digest == whole.hexdigest()[:16]
    for bad in (-1, 10_000):
        with pytest.raises(ValueError, match="has the images 0 to 9999"):
            found.read("clean", 0, [bad])
    with pytest.raises(ValueError, match="has no domain 'fog'"):
        found.labels("fog")


@needs("cifar100_test.npz")
@pytest.mark.parametrize(
    ("classes", "md5"), [(10, "803d5f7f4d78ea53de84dbe85f74fb6d"), (100, "4499cfba6c016c1be1438163640a0898")]
)
def test_official_digests(classes: int, md5: str) -> None:
    """The real test set has the published checksum in its binary form, and the digest we call official."""
    with np.load(FOLDER / f"cifar{classes}_test.npz") as file:
        parts = [file["coarse"]] if classes == 100 else []
        planes = file["images"].transpose(0, 3, 1, 2).reshape(10_000, -1)
        records = np.concatenate([*(part[:, None].astype(np.uint8) for part in (*parts, file["labels"])), planes], 1)
    assert hashlib.md5(records.tobytes()).hexdigest() == md5
    found = open_cifar(classes, FOLDER)
    assert found.digest == OFFICIAL[classes]
    assert found.protocol == {"images": "the official test set, 10000 images"}


@pytest.fixture
def official(tmp_path: Path) -> Path:
    """CIFAR-10-C with two corruptions: sparse files of 50,000 rows, a few of them written."""
    return write_official(tmp_path / "CIFAR-10-C", 10_000)


def write_official(folder: Path, count: int) -> Path:
    folder.mkdir()
    labels = np.tile(np.arange(count) % 10, 5).astype(np.uint8)
    np.save(folder / "labels.npy", labels)
    for value, name in enumerate(("fog", "spatter"), 1):
        rows = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.uint8, (5 * count, 32, 32, 3))
        for severity in range(1, 6):
            for index in (0, 1, count - 1):
                rows[(severity - 1) * count + index] = 40 * value + 8 * severity + index % 5
        rows.flush()
    return folder


def test_official_files(official: Path) -> None:
    found = open_cifar_c(10, official.parent)
    assert isinstance(found, CifarC)
    assert (found.name, found.severities, len(found.domains)) == ("cifar10-c", (1, 2, 3, 4, 5), 15)
    assert "clean" not in found.domains + found.others
    assert found.count("fog") == 10_000
    np.testing.assert_array_equal(found.labels("fog"), np.arange(10_000) % 10)
    for value, name in enumerate(("fog", "spatter"), 1):
        for severity in range(1, 6):
            images = found.read(name, severity, [9_999, 0, 1, 5])
            assert [int(p[0, 0, 0]) for p in images] == [40 * value + 8 * severity + k for k in (4, 0, 1)] + [0]
            assert all(p.shape == (32, 32, 3) and p.dtype == np.uint8 and not np.ptp(p) for p in images)
    assert found.protocol["corruptions"] == "files in the layout of CIFAR-10-C, not checked"
    with pytest.raises(ValueError, match=r"snow\.npy.*lmr fetch cifar10-c"):
        found.read("snow", 5, [0])
    for severity in (0, 6):
        with pytest.raises(ValueError, match="severity from 1"):
            found.read("fog", severity, [0])


def test_digest_of_a_part_follows_its_own_files(official: Path) -> None:
    def digest(domain: str, severity: int) -> str:
        return CifarC(official, 10).digest_part((domain,), severity)

    first, other = digest("fog", 5), digest("fog", 4)
    assert len({first, other, digest("spatter", 5)}) == 3
    os.link(official / "spatter.npy", official / "snow.npy")
    assert digest("fog", 5) == first
    rows = np.load(official / "fog.npy", mmap_mode="r+")
    rows[40_000, 3, 3] = 77
    rows.flush()
    assert digest("fog", 5) != first
    assert digest("fog", 4) == other


def test_files_are_official_by_their_checksums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmr.data.cifar.COUNT", 100)
    official = write_official(tmp_path / "CIFAR-10-C", 100)
    for name in ("labels", "fog"):
        checksum = hashlib.md5((official / f"{name}.npy").read_bytes()).hexdigest()
        monkeypatch.setitem(read_checksums(10), name, checksum)
    found = CifarC(official, 10)
    assert found.describe_part(["fog"])["corruptions"] == "the official files of CIFAR-10-C"
    others = found.describe_part(["fog", "spatter"])
    assert others["corruptions"] == "not the official files of CIFAR-10-C: spatter.npy not of the published checksum"
    assert others["images"] == found.protocol["images"]


def test_damaged_official_files_are_sentences(official: Path) -> None:
    fog = official / "fog.npy"
    with open(fog, "r+b") as file:
        file.truncate(1_000_000)
    with pytest.raises(ValueError, match="incomplete"):
        CifarC(official, 10).read("fog", 1, [0])
    fog.write_bytes(b"not an array")
    with pytest.raises(ValueError, match="damaged or incomplete"):
        CifarC(official, 10).read("fog", 1, [0])
    for array in (np.zeros((10, 32, 32, 3), np.uint8), np.zeros((50_000, 2), np.uint8), np.zeros(3)):
        np.save(fog, array)
        with pytest.raises(ValueError, match=r"Expected uint8 \[50000, 32, 32, 3\]"):
            CifarC(official, 10).read("fog", 1, [0])
    with open(fog, "wb") as file:
        np.savez(file, a=np.zeros(3))
    with pytest.raises(ValueError, match="archive of arrays"):
        CifarC(official, 10).read("fog", 1, [0])


@pytest.mark.parametrize("place", [3, 30_003])
def test_wrong_labels_are_sentences(official: Path, place: int) -> None:
    """A label that no class has, and one that differs between severities."""
    labels = np.load(official / "labels.npy")
    labels[place] = 9 if place > 10_000 else 10
    if place < 10_000:
        labels[place::10_000] = 10
    np.save(official / "labels.npy", labels)
    with pytest.raises(ValueError, match="five times the same 10000 labels"):
        CifarC(official, 10)
    (official / "labels.npy").unlink()
    with pytest.raises(ValueError, match=r"labels\.npy"):
        CifarC(official, 10)


def test_clean_images_are_corrupted_on_the_fly(tmp_path: Path) -> None:
    images, labels = maker.make_cifar(10_000, 10)
    write(tmp_path, "npz", 10, images, labels)
    found = open_cifar_c(10, tmp_path)
    assert found.name == "cifar10-c"
    assert found.protocol["corruptions"] == "made by lmr with the cifar constants, seed 0"
    np.testing.assert_array_equal(found.labels("fog"), labels)
    assert found.digest != open_cifar(10, tmp_path).digest
    for domain, severity in (("gaussian_noise", 5), ("contrast", 2)):
        for index, image in zip([8, 3, 9_000], found.read(domain, severity, [8, 3, 9_000]), strict=True):
            expected = corrupt(images[index], domain, severity, seed=0, index=index, constants="cifar")
            np.testing.assert_array_equal(image, expected)
    np.testing.assert_array_equal(found.read("clean", 0, [5]), images[[5]])
    assert found.read("fog", 5, []) == []
