"""ViewMethod and EpisodicMethod: the bases of methods that use several views of each image."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmr.core.card import Emission
from lmr.core.errors import LmrError
from lmr.core.method import COUNTS, Method, Ranges
from lmr.core.prediction import State, Step
from lmr.core.streams import Streams
from lmr.core.views.view_maker import ViewMaker

MOST = 4096  # views of an image


@dataclass(kw_only=True, eq=False, repr=False)
class ViewMethod(Method):
    """A method that makes views of each image, or takes given ones: ``step(images)`` with images [B, V, ...].

    The first view is the image itself. The draws of an image depend on ``seed`` and on its number in its stream, which
    the state counts in ``seen``: a run repeats exactly, in batches of any size, alone or among other streams.

    Examples:
        >>> import lmr, torch
        >>> clip = lmr.load().classifier(["cat", "dog"])
        >>> method = lmr.create("zero(views=8)", clip)
        >>> isinstance(method, lmr.ViewMethod), method.state["seen"]
        (True, tensor([0]))
        >>> images = torch.randn(2, 3, 32, 32)
        >>> method.step(images).info["seen"]
        2
        >>> crops = torch.randn(2, 5, 3, 32, 32)  # of the same images, made elsewhere
        >>> method.step(torch.cat([images.unsqueeze(1), crops], 1)).logits.shape
        torch.Size([2, 2])
    """

    takes_views = True
    emission: ClassVar[Emission] = "after"
    export_reason = "its answer depends on several views of each image"
    mixes: ClassVar[bool] = False  # views are mixed by AugMix, for methods without an argument ``augmix``
    fill: ClassVar[tuple[float, ...]] = (0.0, 0.0, 0.0)  # colour of pixels that AugMix uncovers

    views: int = 64  # views of each image, the image itself included; given views may be more or fewer
    seed: int = 0  # seed of the random views

    export = Method.export  # refuses, also in a method that is a NormMethod as well

    def prepare(self) -> None:
        """Check the number of views."""
        super().prepare()
        self._require_count("views", most=MOST)
        mixed: bool = getattr(self, "augmix", self.mixes)
        self.maker = ViewMaker(self.seed, mixed, self.classifier.pixels, self.fill)

    def begin(self) -> Mapping[str, Tensor | int]:
        """Return the number of images that the stream has seen."""
        return {"seen": 0}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        """Return the range of counts."""
        return super().ranges(state) | {"seen": COUNTS}

    def _count_made(self) -> int:
        """Return the number of views that are made of an image, besides the image itself."""
        return self.views - 1

    def _iterate_views(self, images: Tensor, state: State, streams: Streams) -> Iterator[Tensor]:
        """Yield the views [V, ...] of each image, the image itself first; one image at a time, to save memory."""
        if self.classifier.holds_views(images):
            yield from images
            return
        shape, made = self.classifier.input_shape, self._count_made()
        if shape is not None and len(shape) != 3 and made:
            raise LmrError(
                f"{self.name} cannot crop the inputs of this model: their shape {list(shape)} is not that of an image "
                "[3, H, W]; give views of your own as [B, V, ...]."
            )
        if not made:
            yield from images.unsqueeze(1)
            return
        numbers = (streams.repeat(state["seen"]) + streams.rank()).tolist()
        for image, views in zip(images, self.maker.make_each(images, numbers, made), strict=True):
            yield torch.cat([image.unsqueeze(0), views])

    def _encode_views(self, images: Tensor, state: State, streams: Streams) -> Tensor:
        """Return unit features [B, V, D] of all views, without gradient."""
        with torch.no_grad():
            if self.views == 1 and not self.classifier.holds_views(images):
                return self.classifier.features(images).unsqueeze(1)
            views = self._iterate_views(images, state, streams)
            return torch.stack([self.classifier.features(some) for some in views])


@dataclass(kw_only=True, eq=False, repr=False)
class EpisodicMethod(ViewMethod):
    """A ViewMethod that starts anew with every image. Subclasses define ``solve``.

    As nothing of an image is kept for the next, each image of a batch gets the answer that it gets alone. ``predict``
    gives the answer that ``step`` would give now.

    Examples:
        >>> import lmr, torch
        >>> @lmr.register("averaged")
        ... class Averaged(lmr.EpisodicMethod):
        ...     'The mean of the logits of all views.'
        ...
        ...     def solve(self, images, state, streams):
        ...         features = self._encode_views(images, state, streams)
        ...         return self.classifier.logits(self.classifier.cosines(features)).mean(1), {}
        >>> clip = lmr.load().classifier(["cat", "dog"])
        >>> method = lmr.create("averaged(views=4)", clip, streams=2)
        >>> images = torch.randn(3, 3, 32, 32)
        >>> together = method.step(images, streams=[0, 1, 0]).logits
        >>> torch.allclose(together[2:], lmr.create("averaged(views=4)", clip).step(images[::2]).logits[1:])
        True
    """

    memory_span = "image"

    @abstractmethod
    def solve(self, images: Tensor, state: State, streams: Streams) -> tuple[Tensor, dict[str, Tensor]]:
        """Return logits [B, C] of images, or of given views, and facts [B]."""

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        """Solve each image and count it."""
        return count_images(state, streams, *self.solve(images, state, streams))

    def answer(self, images: Tensor, state: State, streams: Streams) -> Tensor:
        """Return the logits that ``adapt`` gives, without counting."""
        return self.solve(images, state, streams)[0]


def count_images(state: State, streams: Streams, logits: Tensor, facts: Mapping[str, Tensor]) -> Step:
    """Return the step of a method that only counts its images, with the means of facts [B] over each stream."""
    seen = state["seen"] + streams.sizes
    info = {key: streams.all(fact) if fact.dtype == torch.bool else streams.mean(fact) for key, fact in facts.items()}
    return Step(logits, {"seen": seen}, info | {"seen": seen})
