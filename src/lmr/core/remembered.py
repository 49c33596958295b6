"""A classifier that encodes no image twice: for several methods, or several passes, over the same images."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from lmr.core.classifier import ZeroShot

MOST = 256 * 2**20  # bytes of features that are kept


class Remembered(ZeroShot):
    """A frozen classifier that keeps the features of the images that it has encoded.

    Images are recognised by their pixels, so that a view of an image is another one. Features with adapted norms do
    not come from here: ``AdaptedTower`` calls ``encode_part``. What is kept is bounded; further images are encoded as
    often as they come.

    Examples:
        >>> import lmr, torch
        >>> from lmr.core.remembered import Remembered
        >>> clip = lmr.load().classifier(["cat", "dog"])
        >>> once, images = Remembered(clip), torch.randn(4, 3, 32, 32)
        >>> torch.equal(once(images), clip(images)), torch.equal(once(images), clip(images))
        (True, True)
    """

    def __init__(self, classifier: ZeroShot) -> None:
        self.__dict__ |= classifier.__dict__
        self._kept: dict[bytes, Tensor] = {}

    def encode(self, images: Tensor) -> Tensor:
        """Return features [B, D]: kept ones, and those of images that are new."""
        keys = [hashlib.sha256(image.numpy(force=True).tobytes()).digest() for image in images.float()]
        new = [place for place, key in enumerate(keys) if key not in self._kept]
        found = dict(zip([keys[place] for place in new], super().encode(images[new]), strict=True)) if new else {}
        features = torch.stack([found[key] if key in found else self._kept[key] for key in keys])
        room = MOST // max(1, features[0].nbytes) - len(self._kept)
        self._kept |= {key: found[key].detach().clone() for key in [*found][: max(0, room)]}
        return features
