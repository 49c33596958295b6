"""How images look beside ordinary photographs: noisy, blurred, dark, washed out or empty. No model is needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

SIDES = (32, 224)  # to which images are reduced; smaller ones than the first have no look
_LIGHT, _DARKEST, _NOISE, _GRADIENT, _SHARPNESS, _SPREAD = range(6)  # the numbers
WORDS = ("noisy", "blurred", "dark", "washed out", "empty")
EMPTY = 1 << WORDS.index("empty")  # the bit of what is no picture
FLAT = 2 / 255  # the spread below which an image is no picture, but one colour
FEWEST = 8  # images from which something is said
USUAL = 0.15  # the share of ordinary photographs that may have a word
MOST = 2 / 3  # the share of images from which a word is said of all of them
# The 5 % and 95 % quantiles of the first five numbers of ordinary photographs, for each side.
RANGES = {
    32: ((0.288, 0.689), (0.014, 0.303), (0.008, 0.036), (0.073, 0.192), (-0.397, -0.039)),
    224: ((0.265, 0.672), (0.005, 0.239), (0.004, 0.039), (0.046, 0.163), (-0.399, 0.060)),
}


def measure_look(pixels: Tensor) -> Tensor:
    """Return six numbers [B, 6] on images [B, 3, H, W] with values from 0 to 1; NaN for images that are too small.

    Of grey, reduced to a side of 32 or 224 pixels: the mean; the darkest 2 %; the noise (Immerkaer 1996); its gradient;
    the logarithm of the gradient over that in squares of 2 x 2 pixels; and the standard deviation.
    """
    grey = pixels.float().mean(1)
    side = _choose_side(min(grey.shape[1:]))
    if not side:
        return grey.new_full((len(grey), 6), math.nan)
    if min(grey.shape[1:]) != side or grey.shape[1] != grey.shape[2]:
        grey = F.interpolate(grey.unsqueeze(1), (side, side), mode="bilinear", antialias=True).squeeze(1)
    flat = grey.flatten(1)
    dark = flat.kthvalue(max(1, round(0.02 * flat.shape[1])), dim=1).values
    kernel = grey.new_tensor([[1, -2, 1], [-2, 4, -2], [1, -2, 1]]).expand(1, 1, 3, 3)
    noise = F.conv2d(grey.unsqueeze(1), kernel).abs().mean((1, 2, 3)) * math.sqrt(math.pi / 2) / 6
    fine, coarse = _measure_gradient(grey), _measure_gradient(F.avg_pool2d(grey.unsqueeze(1), 2).squeeze(1))
    sharpness = ((fine + 1e-4) / (coarse + 1e-4)).log()
    return torch.stack([flat.mean(1), dark, noise, fine, sharpness, flat.std(1)], 1)


def judge_look(numbers: Tensor, size: int) -> list[int]:
    """Return which ``WORDS`` fit each image of ``size`` pixels a side, as bits, from their numbers [n, 6].

    Each number is compared with the range of ordinary photographs. No other word fits what is no picture.
    """
    side = _choose_side(size)
    if not side:
        return [0] * len(numbers)
    low, high = zip(*RANGES[side], strict=True)
    own = numbers.unbind(1)
    empty, dark, blurred = own[_SPREAD] < FLAT, own[_LIGHT] < low[_LIGHT], own[_SHARPNESS] < low[_SHARPNESS]
    pale = (own[_DARKEST] > high[_DARKEST]) | ((own[_GRADIENT] < low[_GRADIENT]) & ~blurred)
    fits = torch.stack([own[_NOISE] > high[_NOISE], blurred, dark, pale & ~dark]) & ~empty
    bits = torch.cat([fits, empty.unsqueeze(0)]).int() << torch.arange(len(WORDS), device=own[0].device).unsqueeze(1)
    return [int(one) for one in bits.sum(0).tolist()]


class Look(NamedTuple):
    """A word for images, and which of them it fits: a share of those between two places, all or none of the others."""

    word: str
    share: float
    begin: int
    end: int
    total: int

    @property
    def all(self) -> bool:
        """Whether the word is said of all images."""
        return self.begin == 0 and self.end == self.total and self.share > MOST

    def __str__(self) -> str:
        first, last = self.begin > 0, self.end < self.total
        if first and last:
            return f"{self.word} from about image {self.begin + 1} to {self.end}"
        if first:
            return f"{self.word} from about image {self.begin + 1} on"
        if last:
            return f"{self.word} up to about image {self.end}"
        return self.word if self.all else f"in part {self.word} ({100 * self.share:.0f} %)"


def describe_look(looks: Sequence[int], *, ordered: bool = True) -> list[Look]:
    """Return what the bits of ``judge_look`` say about images; nothing if they look ordinary.

    A word has a place if most images of one part have it, and few others do; only where images are ``ordered``.
    Otherwise it has the share of the images that have it, if this is clearly larger than among ordinary photographs.

    Examples:
        >>> from lmr.core.functional.look import describe_look
        >>> [str(describe_look(looks)[0]) for looks in ([0] * 96 + [1] * 96, [0, 0, 1] * 32, [1] * 96)]
        ['noisy from about image 97 on', 'in part noisy (33 %)', 'noisy']
    """
    places = [place for place, bits in enumerate(looks) if bits != EMPTY]
    if len(places) < FEWEST:
        return []
    bits, found = torch.tensor([looks[place] for place in places]), list[Look]()
    for k, word in enumerate(WORDS[:-1]):
        marks = (bits >> k) % 2
        share, part = float(marks.float().mean()), _find_part(marks) if ordered else None
        if part is not None:
            begin, end = part
            first, last = places[begin] if begin else 0, places[end - 1] + 1 if end < len(places) else len(looks)
            found.append(Look(word, float(marks[begin:end].float().mean()), first, last, len(looks)))
        elif share - 2 * math.sqrt(share * (1 - share) / len(places)) > USUAL:
            found.append(Look(word, share, 0, len(looks), len(looks)))
    return found


def _find_part(marks: Tensor) -> tuple[int, int] | None:
    """Return the part that most ``marks`` of 1 are in, and few of 0; None if there is none."""
    total, margin = len(marks), max(1, len(marks) // 20)
    sums = F.pad(marks - 0.5, (1, 0)).cumsum(0)
    rises = sums - sums.cummin(0).values  # of a part: the marks beyond half of its length
    end = int(rises.argmax())
    begin = int(sums[: end + 1].argmin())
    others = float(marks.sum() - marks[begin:end].sum()) / max(1, total - end + begin)
    if rises.max() < FEWEST / 2 or others > USUAL:
        return None
    return begin if begin > margin else 0, end if end < total - margin else total


def _choose_side(size: int) -> int:
    """Return the largest side to which images of ``size`` pixels a side are reduced, 0 if they are too small."""
    return max((side for side in SIDES if side <= size), default=0)


def _measure_gradient(grey: Tensor) -> Tensor:
    """Return the root of the mean square difference of neighbours in rows and columns [B]."""
    rows, columns = grey.diff(dim=2).square().mean((1, 2)), grey.diff(dim=1).square().mean((1, 2))
    return (rows + columns).sqrt()
