"""The model `pocket`, for tests, and the pocket world that it knows: images drawn by code from (seed, index).

An image shows one of ten shapes in one of ten finishes (five colours, plain or striped) at a random position, size and
rotation, on a shaded background with random clutter and lighting. Some classes are similar: the same shape in the next
colour, plain and striped, pentagon and circle. Image ``index`` of world ``seed`` is a pure function of these two
numbers, whatever batch it is drawn in, so that a world is endless and needs no file. The model was trained on other
worlds than POCKET_SEED; it is of the form of "photo", with patches in place of a stem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lmr.core.classifier import leave_inference_mode
from lmr.core.errors import LmrError
from lmr.data.dataset import CleanSet, ImageArray, make_digest
from lmr.models import Backbone
from lmr.models.embedded import Embedded

POCKET = Path(__file__).with_name("pocket.safetensors")

SIZE = 32
SHAPES = ("circle", "ring", "crescent", "square", "diamond", "cross", "triangle", "pentagon", "star", "heart")
COLOURS = ("red", "orange", "green", "blue", "purple")
CLASSES = tuple(f"{finish}{colour} {shape}" for shape in SHAPES for finish in ("", "striped ") for colour in COLOURS)

_RGB = np.array(
    [(0.86, 0.12, 0.14), (0.95, 0.52, 0.08), (0.12, 0.66, 0.22), (0.12, 0.32, 0.88), (0.56, 0.18, 0.76)], np.float32
)
_CHUNK = 128  # images drawn at once: the working set stays in the processor's cache
_CLUTTER = 6  # small discs and bars behind the shape
_NOISE = 0.015  # the grain of a camera, in units of the full range
POCKET_SEED = 7
POCKET_COUNT = 10_000

Floats = NDArray[np.float32]


def load_pocket(device: str | torch.device = "cpu", dtype: torch.dtype | None = None) -> Backbone:
    """Return the model; every call reads it anew."""
    with leave_inference_mode():
        backbone = Embedded(POCKET)
    backbone.name = "pocket"
    return backbone.to(device, dtype)


@dataclass(frozen=True)
class Scene:
    """The ground truth of a batch of images: int64 arrays of length N."""

    label: NDArray[np.int64]  # of CLASSES
    size: NDArray[np.int64]  # 0 small, 1 large, -1 between
    place: NDArray[np.int64]  # 0 left, 1 right, 2 top, 3 bottom, -1 about the centre


class PocketWorld(CleanSet):
    """The first images of a world, drawn when they are read."""

    def __init__(self, seed: int = POCKET_SEED, count: int = POCKET_COUNT) -> None:
        self.name, self.classes, self.seed = "pocket", CLASSES, seed
        self._labels = list_labels(count, seed)
        self.protocol = {"images": f"the first {count} of the pocket world {seed}"}

    @cached_property
    def digest(self) -> str:
        """The digest of the seed and of some images, so that a change of the code changes it."""
        images, _ = draw(range(0, len(self._labels), max(1, len(self._labels) // 16)), self.seed)
        return make_digest("pocket", str(self.seed), str(len(self._labels)), images.tobytes())

    def _read(self, domain: str, severity: int, indices: list[int]) -> list[ImageArray]:
        return list(draw(indices, self.seed)[0]) if indices else []


def draw(indices: Iterable[int], seed: int = 0) -> tuple[NDArray[np.uint8], Scene]:
    """Draw the images ``indices`` of world ``seed``: uint8 [N, 32, 32, 3] and their ground truth."""
    message = "The pocket world draws a non-empty list of whole numbers from 0; pass for example range(64)."
    try:
        index = np.asarray(indices if isinstance(indices, np.ndarray) else list(indices))
    except (TypeError, ValueError) as error:
        raise LmrError(message) from error
    if index.ndim != 1 or index.size == 0 or index.dtype.kind not in "iu" or bool((index < 0).any()):
        raise LmrError(message)
    if not isinstance(seed, int | np.integer):
        raise LmrError(f"Expected a whole number as the seed of a world, got {seed!r}.")
    parts = [_render(index[k : k + _CHUNK].astype(np.uint64), seed) for k in range(0, len(index), _CHUNK)]
    scenes = [scene for _, scene in parts]
    whole = (np.concatenate([getattr(scene, name) for scene in scenes]) for name in ("label", "size", "place"))
    return np.concatenate([image for image, _ in parts]), Scene(*whole)


def list_labels(count: int, seed: int = 0) -> NDArray[np.int64]:
    """Return the labels of the first ``count`` images of world ``seed``, without drawing them: int64 [count]."""
    return _choose_labels(_uniform(np.arange(count, dtype=np.uint64), seed, 0, 1))


def _choose_labels(u: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.minimum((u[:, 0] * len(CLASSES)).astype(np.int64), len(CLASSES) - 1)


def _render(index: NDArray[np.uint64], seed: int) -> tuple[NDArray[np.uint8], Scene]:
    count = len(index)
    u = _uniform(index, seed, 0, 32)
    label = _choose_labels(u)
    shape, finish = np.divmod(label, 2 * len(COLOURS))
    striped, colour = np.divmod(finish, len(COLOURS))

    radius = 7.0 + 5.0 * u[:, 1]
    reach = SIZE / 2 - radius
    cx, cy = SIZE / 2 + (2 * u[:, 2] - 1) * reach, SIZE / 2 + (2 * u[:, 3] - 1) * reach
    angle = 2 * np.pi * u[:, 4]
    size = np.where(radius < 8.5, 0, np.where(radius > 10.5, 1, -1))
    dx, dy = cx - SIZE / 2, cy - SIZE / 2
    sideways = np.abs(dx) >= np.abs(dy)
    side = np.where(sideways, np.where(dx < 0, 0, 1), np.where(dy < 0, 2, 3))
    place = np.where(np.maximum(np.abs(dx), np.abs(dy)) > 3.0, side, -1)

    grid = np.arange(SIZE, dtype=np.float32) + 0.5
    image = _background(u[:, 5:14], grid)
    _scatter_clutter(image, _uniform(index, seed, 1, 8 * _CLUTTER).reshape(count, _CLUTTER, 8), grid)

    # The shape's own frame: x and y in units of its radius, turned by its angle.
    px = (grid[None, None, :] - _column(cx)) / _column(radius)
    py = (grid[None, :, None] - _column(cy)) / _column(radius)
    cos, sin = _column(np.cos(angle)), _column(np.sin(angle))
    x, y = px * cos + py * sin, py * cos - px * sin
    inside = np.clip(0.5 - _distances(shape, x, y) * _column(radius), 0, 1)

    paint = _RGB[colour] * (0.85 + 0.3 * u[:, 14:15]) + 0.08 * (u[:, 15:18] - 0.5)
    turn = 2 * np.pi * u[:, 18]
    along = px * _column(np.cos(turn)) + py * _column(np.sin(turn))
    period = (4.0 + 1.5 * u[:, 19]) / radius  # pixels
    wave = np.sin(2 * np.pi * (along / period[:, None, None] + u[:, 20][:, None, None])).astype(np.float32)
    bright = 1 - 0.65 * np.clip(0.5 + 1.5 * wave, 0, 1) * _column(striped)
    surface = paint[:, None, None, :].astype(np.float32) * bright[..., None]
    image += inside[..., None].astype(np.float32) * (surface - image)

    image *= _lighting(u[:, 21:27], grid)
    image += _grain(index, seed)
    return (np.clip(image, 0, 1) * 255 + 0.5).astype(np.uint8), Scene(label, size, place)


def _column(values: NDArray[Any]) -> Floats:
    """Shape one number per image for broadcasting over its pixels: float32 [N, 1, 1]."""
    return np.asarray(values[:, None, None], np.float32)


def _uniform(index: NDArray[np.uint64], seed: int, page: int, slots: int) -> NDArray[np.float64]:
    """Return numbers in [0, 1) that depend on (seed, page, index, slot) alone: float64 [N, slots]."""
    return (_hash(index, seed, page, slots) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _hash(index: NDArray[np.uint64], seed: int, page: int, slots: int) -> NDArray[np.uint64]:
    """Hash counters (SplitMix64's finaliser), so that any image can be drawn without the ones before it."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        world = _mix(np.array([(int(seed) * 1009 + page) % 2**64], np.uint64) * golden)
        key = _mix(world + index * golden)
        return _mix(key[:, None] + np.arange(1, slots + 1, dtype=np.uint64)[None] * golden)


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _background(u: NDArray[np.float64], grid: Floats) -> Floats:
    """Return a muted two-colour gradient in a random direction: [N, 32, 32, 3]."""
    v = u.astype(np.float32)
    grey = 0.2 + 0.6 * v[:, 0:1]
    first = grey + 0.2 * (v[:, 1:4] - 0.5)
    second = first + 0.35 * (v[:, 4:7] - 0.5)
    t = _ramp(v[:, 7], grid)[..., None]
    return np.asarray(first[:, None, None, :] * (1 - t) + second[:, None, None, :] * t, np.float32)


def _ramp(turn: Floats, grid: Floats) -> Floats:
    """Return a ramp from about 0 to about 1 in direction ``turn`` (of a full circle): [N, 32, 32]."""
    g = grid / SIZE - 0.5
    angle = 2 * np.pi * turn
    cos, sin = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
    return np.asarray(0.5 + 0.7 * (cos * g[None, None, :] + sin * g[None, :, None]), np.float32)


def _scatter_clutter(image: Floats, u: NDArray[np.float64], grid: Floats) -> None:
    """Blend small discs (short) and bars (long) of random colours into the background, in place. u: [N, items, 8]."""
    v = u.astype(np.float32)
    for item in range(v.shape[1]):
        w = v[:, item, :, None, None]
        x, y = grid[None, None, :] - SIZE * w[:, 0], grid[None, :, None] - SIZE * w[:, 1]
        cos, sin = np.cos(np.pi * w[:, 2]), np.sin(np.pi * w[:, 2])
        length, width = 6.0 * np.maximum(w[:, 3] - 0.4, 0), 0.8 + 1.4 * w[:, 4]
        along, across = x * cos + y * sin, y * cos - x * sin
        beyond = np.maximum(np.abs(along) - length, 0)
        alpha = 0.7 * np.clip(0.5 + width - np.sqrt(beyond * beyond + across * across), 0, 1)[..., None]
        colour = v[:, item, None, None, 5:8]
        image += alpha * (0.1 + 0.8 * colour - image)


def _lighting(u: NDArray[np.float64], grid: Floats) -> Floats:
    """Return exposure, a warm or cold cast and a shadow as one factor: [N, 32, 32, 3]."""
    v = u.astype(np.float32)
    gain = 0.75 + 0.45 * v[:, 0:1]
    cast = 1 + np.stack([0.12 * (v[:, 1] - 0.5), 0.04 * (v[:, 2] - 0.5), -0.12 * (v[:, 1] - 0.5)], 1)
    shade = 1 - 0.4 * v[:, 3][:, None, None] * np.clip(_ramp(v[:, 4], grid), 0, 1)
    return np.asarray((gain * cast)[:, None, None, :] * shade[..., None], np.float32)


def _grain(index: NDArray[np.uint64], seed: int) -> Floats:
    """Return triangular noise with standard deviation ``_NOISE``: four 16-bit numbers from every hash."""
    bits = _hash(index, seed, 2, SIZE * SIZE * 3 // 2).view(np.uint16)
    pairs = bits.reshape(len(index), SIZE, SIZE, 3, 2).astype(np.float32)
    return np.asarray((pairs.sum(-1) / 65535.0 - 1.0) * (_NOISE * 6**0.5), np.float32)


def _distances(shape: NDArray[np.int64], x: Floats, y: Floats) -> Floats:
    """Return the signed distance to the outline of each shape in units of its radius, negative inside: [N, 32, 32]."""
    distance = np.empty_like(x)
    for number, name in enumerate(SHAPES):
        mine = np.flatnonzero(shape == number)
        if len(mine):
            distance[mine] = _OUTLINES[name](x[mine], y[mine])
    return distance


def _length(x: Floats, y: Floats) -> Floats:
    return np.sqrt(x * x + y * y)


def _polygon(x: Floats, y: Floats, corners: int, apothem: float) -> Floats:
    wedge = np.float32(2 * np.pi / corners)
    angle = np.mod(np.arctan2(y, x), wedge) - wedge / 2
    return _length(x, y) * np.cos(angle) - np.float32(apothem)


def _star(x: Floats, y: Floats) -> Floats:
    """Draw five points: in each wedge, the edge is straight from a tip at radius 1 to a notch at radius 0.42."""
    wedge = np.float32(2 * np.pi / 5)
    angle = np.abs(np.mod(np.arctan2(y, x), wedge) - wedge / 2)
    r = _length(x, y)
    px, py = r * np.cos(angle), r * np.sin(angle)  # the tip lies at angle pi/5, the notch at angle 0
    tip = np.array([np.cos(np.pi / 5), np.sin(np.pi / 5)], np.float32)
    edge = tip - np.array([0.42, 0], np.float32)
    normal = np.array([edge[1], -edge[0]], np.float32) / np.float32(np.hypot(*edge))
    return np.asarray((px - np.float32(0.42)) * normal[0] + py * normal[1], np.float32)


def _heart(x: Floats, y: Floats) -> Floats:
    """Draw two lobes and a corner below: the union of two discs and a turned square."""
    a = np.abs(x)
    lobe = np.sqrt((a - np.float32(0.42)) ** 2 + (y + np.float32(0.3)) ** 2) - np.float32(0.5)
    corner = (a + np.abs(y - np.float32(0.05)) - np.float32(0.85)) * np.float32(0.707)
    return np.asarray(np.minimum(lobe, corner), np.float32)


_OUTLINES: dict[str, Callable[[Floats, Floats], Floats]] = {
    "circle": lambda x, y: _length(x, y) - np.float32(0.9),
    "ring": lambda x, y: np.abs(_length(x, y) - np.float32(0.72)) - np.float32(0.2),
    "crescent": lambda x, y: np.maximum(
        _length(x, y) - np.float32(0.95), np.float32(0.72) - np.sqrt((x - np.float32(0.5)) ** 2 + y * y)
    ),
    "square": lambda x, y: np.maximum(np.abs(x), np.abs(y)) - np.float32(0.72),
    "diamond": lambda x, y: np.asarray((np.abs(x) / np.float32(0.52) + np.abs(y) - 1) * np.float32(0.46), np.float32),
    "cross": lambda x, y: np.maximum(
        np.maximum(np.abs(x), np.abs(y)) - np.float32(0.92), np.minimum(np.abs(x), np.abs(y)) - np.float32(0.3)
    ),
    "triangle": partial(_polygon, corners=3, apothem=0.5),
    "pentagon": partial(_polygon, corners=5, apothem=0.78),
    "star": _star,
    "heart": _heart,
}
