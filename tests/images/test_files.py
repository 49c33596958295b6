"""Every way an image can be stored, made on the fly: what is listed, in which order, and what comes out."""

from __future__ import annotations

import io
import math
import os
import time
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hostile_images import make_bomb, make_jpeg
from lmr.images.files import (
    TooManyPixels,
    UnreadableImage,
    decode_image,
    estimate_work,
    list_images,
    muted_pillow,
    open_any,
    open_image,
)

BLOCKS = np.array([[[200, 30, 40], [20, 180, 60]], [[30, 40, 190], [220, 210, 50]]], dtype=np.uint8)


def make_image(height: int = 24, width: int = 40) -> Image.Image:
    """Four blocks of different colours, wider than high: any turn or mirroring shows."""
    half = BLOCKS.repeat(height // 2, axis=0).repeat(width // 2, axis=1)
    return Image.fromarray(half)


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def read(path: Path) -> np.ndarray:
    """Open, and check what must hold for every image."""
    image = open_image(path)
    assert image.mode == "RGB"
    assert type(image) is Image.Image
    values = np.asarray(image)
    assert values.dtype == np.uint8
    assert values.shape == (image.height, image.width, 3)
    return values.astype(int)


# ---------------------------------------------------------------------------------------------------------- list_images


def test_numbers_are_sorted_by_value(tmp_path: Path) -> None:
    names = ["img.png", "img1.png", "img2.png", "img02b.png", "img10.png", "IMG11.png", "img100.png", "zoo.png"]
    touch(*(tmp_path / name for name in reversed(names)))
    assert [path.name for path in list_images([tmp_path])] == names


def test_folders_are_sorted_too_and_searched_to_the_bottom(tmp_path: Path) -> None:
    names = ["c2/9.png", "c2/10.png", "c2/deep/er/1.png", "c10/1.png", "top.png"]
    touch(*(tmp_path / name for name in reversed(names)))
    assert list_images([tmp_path]) == [tmp_path / name for name in names]


def test_only_images_are_listed_whatever_the_case(tmp_path: Path) -> None:
    wanted = ["a.jpg", "b.JPEG", "c.Png", "d.webp", "e.BMP"]
    touch(*(tmp_path / name for name in [*wanted, "f.txt", "g.gif", "jpg", "h.jpg.part"]))
    (tmp_path / "folder.png").mkdir()
    assert [path.name for path in list_images([tmp_path])] == wanted


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    touch(tmp_path / "a.png")
    with pytest.raises(ValueError, match="spelling"):
        list_images([tmp_path, tmp_path / "nowhere"])
    with pytest.raises(ValueError, match="There is no file or folder"):
        list_images(["x" * 5000])


# ----------------------------------------------------------------------------------------------------------- open_image


@pytest.mark.parametrize("extension", ["png", "bmp", "webp", "jpg", "tiff"])
def test_every_format(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"image.{extension}"
    exact = {"lossless": True} if extension == "webp" else {"quality": 95, "subsampling": 0}
    make_image().save(path, **exact)
    np.testing.assert_allclose(read(path), np.asarray(make_image()), atol=8 if extension.startswith("jp") else 0)


def make_palette_image() -> Image.Image:
    image = Image.fromarray(np.array([[0, 1], [2, 2]], np.uint8))
    image.putpalette([200, 0, 0, 0, 100, 0, 0, 0, 50])
    return image


def test_palette_with_one_transparent_colour(tmp_path: Path) -> None:
    make_palette_image().save(tmp_path / "a.png", transparency=1)
    make_palette_image().save(tmp_path / "a.gif", transparency=1)
    for name in ("a.png", "a.gif"):
        assert read(tmp_path / name).tolist() == [[[200, 0, 0], [255, 255, 255]], [[0, 0, 50], [0, 0, 50]]]


@pytest.mark.parametrize("extension", ["png", "webp", "tiff"])
def test_transparency_is_laid_on_white(tmp_path: Path, extension: str) -> None:
    alpha = np.linspace(0, 255, 24 * 40).reshape(24, 40, 1).astype(np.uint8)
    colours = np.asarray(make_image())
    image = Image.fromarray(np.concatenate([colours, alpha], axis=-1))
    image.save(tmp_path / f"a.{extension}", lossless=True, exact=True)
    expected = colours * (alpha / 255) + 255 * (1 - alpha / 255)
    np.testing.assert_allclose(read(tmp_path / f"a.{extension}"), expected, atol=1)


@pytest.mark.parametrize("extension", ["png", "tiff", "pgm"])
def test_16_bit_greyscale_is_scaled_and_not_cut(tmp_path: Path, extension: str) -> None:
    values = np.array([[0, 128, 129, 257], [300, 32768, 65000, 65535]], np.uint16)
    Image.fromarray(values).save(tmp_path / f"a.{extension}")
    expected = np.rint(values / 65535 * 255)[..., None].repeat(3, axis=-1)
    np.testing.assert_array_equal(read(tmp_path / f"a.{extension}"), expected)


def test_values_of_unknown_range_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0.5, 2.0]], np.float32)).save(tmp_path / "float.tiff")
    Image.fromarray(np.array([[-5, 70000]], np.int32)).save(tmp_path / "long.tiff")
    with pytest.raises(UnreadableImage, match="unknown"):
        open_image(tmp_path / "float.tiff")
    with pytest.raises(UnreadableImage, match="do not fit in 16 bits"):
        open_image(tmp_path / "long.tiff")


def test_16_bit_greyscale_takes_little_memory() -> None:
    """A small file may have as many pixels as a service allows: 25 million."""
    file = io.BytesIO()
    Image.fromarray(np.zeros((1000, 1000), np.uint16)).save(file, "PNG")
    tracemalloc.start()
    try:
        decode_image(file.getvalue())
        assert tracemalloc.get_traced_memory()[1] < 14 * 1000 * 1000  # bytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("extension", ["gif", "png", "webp"])
def test_the_first_frame_of_an_animation(tmp_path: Path, extension: str) -> None:
    frames = [Image.new("RGB", (8, 6), colour) for colour in ((250, 10, 10), (10, 250, 10), (10, 10, 250))]
    frames[0].save(tmp_path / f"a.{extension}", save_all=True, append_images=frames[1:], duration=50, lossless=True)
    with Image.open(tmp_path / f"a.{extension}") as stored:
        assert getattr(stored, "n_frames", 1) == 3
    assert (read(tmp_path / f"a.{extension}") == [250, 10, 10]).all()


UPRIGHT = {
    1: lambda stored: stored,
    2: lambda stored: stored[:, ::-1],
    3: lambda stored: stored[::-1, ::-1],
    4: lambda stored: stored[::-1],
    5: lambda stored: stored.swapaxes(0, 1),
    6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: stored[::-1, ::-1].swapaxes(0, 1),
    8: lambda stored: np.rot90(stored, 1),
}


@pytest.mark.parametrize("extension", ["jpg", "png", "webp"])
@pytest.mark.parametrize("orientation", UPRIGHT)
def test_the_exif_rotation_is_applied_once(tmp_path: Path, orientation: int, extension: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    exact = {"lossless": True} if extension == "webp" else {"quality": 95, "subsampling": 0}
    make_image().save(tmp_path / f"a.{extension}", exif=exif, **exact)
    expected = UPRIGHT[orientation](np.asarray(make_image()))
    np.testing.assert_allclose(read(tmp_path / f"a.{extension}"), expected, atol=8)
    assert 0x0112 not in open_image(tmp_path / f"a.{extension}").getexif()


@pytest.mark.parametrize("extension", ["jpg", "png", "webp", "bmp", "gif"])
@pytest.mark.parametrize("share", [0.02, 0.9])
def test_a_truncated_file_is_unreadable(tmp_path: Path, extension: str, share: float) -> None:
    path = tmp_path / f"a.{extension}"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)
    Image.fromarray(noise).save(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(UnreadableImage, match=f"a.{extension}"):
        open_image(path)


def make_noise(kind: str, **options: object) -> bytes:
    """An image that ends in noise, so that blocks without data show."""
    noise = np.random.default_rng(0).integers(0, 256, (120, 200, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).convert(kind).save(file, "JPEG", **options)
    return file.getvalue()


JPEGS: list[tuple[str, dict[str, object]]] = [
    ("RGB", {}),
    ("RGB", {"subsampling": 0, "quality": 95, "optimize": True}),
    ("RGB", {"progressive": True}),
    ("RGB", {"restart_marker_rows": 1}),
    ("L", {}),
    ("L", {"progressive": True}),
    ("CMYK", {}),
]


@pytest.mark.parametrize(("kind", "options"), JPEGS)
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_cut_jpeg_with_an_end_marker_is_unreadable(kind: str, options: dict[str, object], share: float) -> None:
    content = make_noise(kind, **options)
    assert decode_image(content).size == (200, 120)
    head = content.index(b"\xff\xda") + 20
    cut = content[: head + int((len(content) - head) * share)]
    with pytest.raises(UnreadableImage, match="is incomplete"):
        decode_image(cut + b"\xff\xd9")


@pytest.mark.parametrize(("kind", "options"), JPEGS)
def test_a_jpeg_may_end_in_grey(kind: str, options: dict[str, object]) -> None:
    values = np.full((120, 200, 3), 128, np.uint8)
    values[:40] = np.random.default_rng(0).integers(0, 256, (40, 200, 3))
    file = io.BytesIO()
    Image.fromarray(values).convert(kind).save(file, "JPEG", **options)
    assert decode_image(file.getvalue()).size == (200, 120)
    assert decode_image(file.getvalue() + b"a film behind the photograph").size == (200, 120)


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"


def test_no_decoder_but_those_of_the_list_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostScript goes to Ghostscript, a program; other decoders have had faults."""
    (tmp_path / "photo.jpg").write_bytes(POSTSCRIPT)
    started: list[object] = []
    monkeypatch.setattr("subprocess.Popen", lambda *words, **options: started.append(words))
    with pytest.raises(UnreadableImage, match="format"):
        open_image(tmp_path / "photo.jpg")
    with pytest.raises(UnreadableImage, match="format"):
        open_any(POSTSCRIPT)
    make_image().save(tmp_path / "a.sgi")
    with pytest.raises(UnreadableImage, match="format"):
        open_image(tmp_path / "a.sgi")
    assert started == []


def test_a_file_that_is_no_file_gets_a_true_reason(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    for path in (tmp_path / "pipe.jpg", "/dev/zero"):
        with pytest.raises(UnreadableImage, match="socket") as caught:
            open_image(path)
        assert not isinstance(caught.value, FileNotFoundError)


def test_damaged_data_are_unreadable_or_read_but_nothing_else(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for extension in ("jpg", "png", "webp", "bmp", "gif", "tiff"):
        path = tmp_path / f"a.{extension}"
        make_image().save(path)
        data = path.read_bytes()
        for _ in range(40):
            damaged = bytearray(data)
            for place in rng.integers(0, len(damaged), 5):
                damaged[place] = rng.integers(256)
            path.write_bytes(damaged)
            try:
                read(path)
            except UnreadableImage as error:
                assert str(error).endswith(".")  # noqa: PT017 (most damage is survived)


def test_error_for_a_file_that_is_not_an_image_gives_the_reason(tmp_path: Path) -> None:
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.png").write_text("Dear diary, today I was renamed to an image.")
    reasons = {"missing.png": "no such file", "empty.png": "is empty", "text.png": "not an image", "": "is a folder"}
    for name, reason in reasons.items():
        with pytest.raises(UnreadableImage, match=reason):
            open_image(tmp_path / name)
    with pytest.raises(UnreadableImage, match="no such file"):
        open_image("a\0b")


def test_a_decompression_bomb_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    """10000 x 10000 is where Pillow would only warn, 60000 x 60000 where it refuses by itself."""
    for side in (10_000, 60_000):
        (tmp_path / "bomb.png").write_bytes(make_bomb(side))
        with pytest.raises(UnreadableImage, match="smaller"):
            open_image(tmp_path / "bomb.png")


def test_overlapping_readers_stay_muted_and_leave_the_filters_as_they_were() -> None:
    """Two threads in the order that breaks a plain save and restore: the first to enter is the first to leave."""
    before = list(warnings.filters)
    one, other = muted_pillow(), muted_pillow()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    warnings.warn_explicit("still muted", UserWarning, "Image.py", 1, module="PIL.Image")
    other.__exit__(None, None, None)
    assert list(warnings.filters) == before
    with pytest.warns(UserWarning, match="audible"):
        warnings.warn_explicit("audible", UserWarning, "Image.py", 1, module="PIL.Image")


def test_content_from_others_is_limited_in_format_and_size() -> None:
    def encode(kind: str) -> bytes:
        file = io.BytesIO()
        Image.new("RGB", (30, 20), "red").save(file, kind)
        return file.getvalue()

    assert decode_image(encode("PNG"), formats=("PNG",), max_pixels=600).size == (30, 20)
    with pytest.raises(UnreadableImage, match="damaged"):
        decode_image(encode("PNG"), formats=("JPEG", "WEBP"))
    with pytest.raises(TooManyPixels, match="smaller"):
        decode_image(encode("PNG"), max_pixels=599)


def test_jpeg_of_very_many_scans_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    started = time.process_time()
    with pytest.raises(UnreadableImage, match="more than 64 scans"):
        decode_image(make_jpeg((1600, 1200), 1500))
    (tmp_path / "many.jpg").write_bytes(make_jpeg((1600, 1200), 1500))
    with pytest.raises(UnreadableImage, match="more than 64 scans"):
        open_image(tmp_path / "many.jpg")
    assert time.process_time() - started < 1  # decoding one takes about two seconds
    assert decode_image(make_jpeg((40, 30), 64)).size == (40, 30)


def test_the_work_of_an_image_is_told_by_its_headers() -> None:
    def estimate(content: bytes, max_pixels: int = 1000) -> float:
        return estimate_work(content, formats=("JPEG", "PNG", "WEBP"), max_pixels=max_pixels)

    plain = encode_image("JPEG")
    for content in (encode_image("PNG"), encode_image("WEBP"), plain, make_jpeg((40, 24), 10)):
        assert estimate(content) == 40 * 24
    assert estimate(make_jpeg((40, 24), 20)) == 2 * 40 * 24
    assert estimate(plain[:2] + b"\xff\xfe\x00\x02" * 10_000 + plain[2:]) == math.inf
    for refused in (b"", b"no image", encode_image("BMP"), make_jpeg((40, 24), 65), make_jpeg((40, 26), 1)):
        assert estimate(refused) == 0


def encode_image(kind: str) -> bytes:
    file = io.BytesIO()
    make_image().save(file, kind)
    return file.getvalue()
