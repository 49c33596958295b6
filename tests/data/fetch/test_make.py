"""Corrupted sets on disk: the images that on the fly would give, never mistaken for the official ones, resumable."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lmr.data.cifar
import set_maker as maker
from lmr.data.cifar import CifarC, open_cifar_c
from lmr.data.fetch.check import check_set
from lmr.data.fetch.fetch import fetch_set
from lmr.data.fetch.make import make_set
from lmr.data.imagenet import ImageNetC, open_imagenet_c
from lmr.data.provenance import MADE_NOTE, read_made_note

FILES = [f"n01440764/ILSVRC2012_val_0000029{k}.JPEG" for k in range(3)] + ["n15075141/ILSVRC2012_val_00049999.JPEG"]


COUNT = 600  # images of a small CIFAR


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lmr.data.cifar, "COUNT", COUNT)
    images, labels = maker.make_cifar(COUNT, 10)
    np.savez(tmp_path / "cifar10_test.npz", images=images, labels=labels)
    return tmp_path


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    for seed, file in enumerate(FILES):
        path = tmp_path / "imagenet" / "val" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        small = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(small).resize((300, 256), Image.Resampling.BICUBIC).save(buffer, "PNG")
        path.write_bytes(buffer.getvalue())
    return tmp_path


def test_cifar_on_disk_is_cifar_on_the_fly(cifar: Path) -> None:
    flying = open_cifar_c(10, cifar)
    places = [0, 255, 256, COUNT - 1]
    expected = {severity: flying.read("contrast", severity, places) for severity in (1, 5)}
    folder = make_set("cifar10-c", cifar, domains=("contrast",), workers=2)
    assert folder == cifar / "CIFAR-10-C"
    assert sorted(os.listdir(folder)) == ["contrast.npy", "labels.npy", MADE_NOTE]
    assert np.load(folder / "contrast.npy", mmap_mode="r").shape == (5 * COUNT, 32, 32, 3)
    stored = open_cifar_c(10, cifar)
    assert isinstance(stored, CifarC)
    for severity, images in expected.items():
        np.testing.assert_array_equal(stored.read("contrast", severity, places), images)
    np.testing.assert_array_equal(stored.labels("contrast"), flying.labels("contrast"))
    assert stored.protocol["corruptions"] == "made by lmr with the cifar constants, seed 0"
    assert check_set("cifar10-c", cifar) == [
        f"The images in '{folder}' are not the official ones: made by lmr with the cifar constants, seed 0."
    ]
    with pytest.raises(ValueError, match="holds images that lmr made; move it away"):
        fetch_set("cifar10-c", cifar)
    made = os.stat(folder / "contrast.npy").st_mtime_ns
    make_set("cifar10-c", cifar, domains=("contrast",))
    assert os.stat(folder / "contrast.npy").st_mtime_ns == made  # what is there is not made again


def test_imagenet_on_disk_is_imagenet_on_the_fly(imagenet: Path) -> None:
    flying = open_imagenet_c("imagenet-c", imagenet)
    expected = {
        (domain, severity): flying.read(domain, severity, range(4))
        for domain in ("gaussian_noise", "contrast")
        for severity in (2, 5)
    }
    folder = make_set("imagenet-c", imagenet, domains=("gaussian_noise", "contrast"), severities=(2, 5))
    stored = open_imagenet_c("imagenet-c", imagenet)
    assert isinstance(stored, ImageNetC)
    for (domain, severity), images in expected.items():
        np.testing.assert_array_equal(stored.read(domain, severity, range(4)), images)
    np.testing.assert_array_equal(stored.labels("contrast"), [0, 0, 0, 999])
    assert "made by lmr with the imagenet constants" in stored.protocol["corruptions"]
    assert not list(folder.rglob("*.part"))
    whole = (folder / "contrast" / "5" / FILES[1]).read_bytes()
    kept = (folder / "contrast" / "5" / FILES[2]).stat().st_mtime_ns
    (folder / "contrast" / "5" / FILES[1]).unlink()
    make_set("imagenet-c", imagenet, domains=("gaussian_noise", "contrast"), severities=(2, 5))
    assert (folder / "contrast" / "5" / FILES[1]).read_bytes() == whole
    assert (folder / "contrast" / "5" / FILES[2]).stat().st_mtime_ns == kept
    assert "are not the official ones" in check_set("imagenet-c", imagenet)[0]
    for name in ("imagenet-c", "imagenet-c-extra"):  # official files would be taken for made ones
        with pytest.raises(ValueError, match="holds images that lmr made; move it away"):
            fetch_set(name, imagenet)


MAKE = """
import sys, time
from pathlib import Path
import lmr.data.cifar, lmr.data.dataset
from lmr.data.fetch.make import make_set

def corrupt_slowly(*values, corrupt=lmr.data.dataset.corrupt_batch, **how):
    time.sleep(0.3)
    return corrupt(*values, **how)

lmr.data.cifar.COUNT, lmr.data.dataset.corrupt_batch = 600, corrupt_slowly
make_set("cifar10-c", Path(sys.argv[1]), domains=("contrast",))
"""


def test_kill_in_the_middle(cifar: Path) -> None:
    folder = cifar / "CIFAR-10-C"
    process = subprocess.Popen([sys.executable, "-c", MAKE, str(cifar)])
    while process.poll() is None and not (folder / "contrast.npy.part").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    assert not (folder / "contrast.npy").exists()
    with pytest.raises(ValueError, match="There is no file"):
        open_cifar_c(10, cifar).read("contrast", 5, [0])
    make_set("cifar10-c", cifar, domains=("contrast",))
    assert sorted(os.listdir(folder)) == ["contrast.npy", "labels.npy", MADE_NOTE]


def test_other_folders_are_left_alone(cifar: Path) -> None:
    folder = cifar / "CIFAR-10-C"
    folder.mkdir()
    (folder / "fog.npy").write_text("official")
    with pytest.raises(ValueError, match="files that lmr did not make; move it away"):
        make_set("cifar10-c", cifar)
    (folder / MADE_NOTE).write_text(json.dumps({"clean": "0123456789abcdef", "corruptions": "made of something else"}))
    with pytest.raises(ValueError, match="made differently; move it away"):
        make_set("cifar10-c", cifar)
    assert sorted(os.listdir(folder)) == ["fog.npy", MADE_NOTE]
    for damaged in ("", "[]", "{}"):
        (folder / MADE_NOTE).write_text(damaged)
        with pytest.raises(ValueError, match="Cannot read the note"):
            read_made_note(folder)
