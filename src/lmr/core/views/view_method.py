"""ViewMethod and EpisodicMethod: the bases of methods that look at several views of each image."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.core.functional.by_stream import rank_by_stream
from lmr.core.method import COUNTS, Method, Mix, Prediction, Ranges
from lmr.core.traits import Emission
from lmr.core.views.view_maker import ViewMaker

MOST = 4096  # views of an image


@dataclass(kw_only=True, eq=False, repr=False)
class ViewMethod(Method):
    """A method that makes views of each image, or takes given ones: ``step(images)`` with images [B, V, ...].

    The first view is the image itself. The draws of an image depend on ``seed`` and on its number in its stream, which
    the state counts in ``seen``: a run repeats exactly, in batches of any size, alone or among other streams.

    Examples:
        >>> import lmr, torch
        >>> clip = lmr.load("pocket").classifier(["red ring", "blue star"])
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
    many_streams = True
    emission: ClassVar[Emission] = "after"
    not_frozen_because = "its answer depends on several views of each image"

    views: int = 64  # of each image, the image itself included; given views may be more or fewer
    seed: int = 0

    settle = Method.settle  # refuses, also in a method that is a NormMethod as well

    mixes: ClassVar[bool] = False  # whether views are mixed by AugMix, for methods without an argument ``augmix``
    fill: ClassVar[tuple[float, ...]] = (0.0, 0.0, 0.0)  # the colour of places that AugMix uncovers

    def prepare(self) -> None:
        """Check the number of views."""
        super().prepare()
        if not 1 <= self.views <= MOST:
            raise LmrError(f"Expected 'views' of {self.name} from 1 to {MOST}, got {self.views}.")
        mixed: bool = getattr(self, "augmix", self.mixes)
        self.maker = ViewMaker(self.seed, mixed, self.classifier.pixels, self.fill)

    def begin(self, streams: int) -> dict[str, Tensor]:
        """How many images each stream has seen."""
        return {"seen": torch.zeros(streams, dtype=torch.int64, device=self.classifier.device)}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        """Counts."""
        return super().ranges(state) | {"seen": COUNTS}

    def number_images(self, mix: Mix) -> Tensor:
        """The number of each image in its stream, from 0: [B]."""
        return self.take(mix, "seen")["seen"][mix.index] + rank_by_stream(mix.index, mix.count)

    def count_made(self) -> int:
        """How many views are made of an image, besides the image itself."""
        return self.views - 1

    def iterate_views(self, images: Tensor, mix: Mix) -> Iterator[Tensor]:
        """The views [V, ...] of each image, the image itself first; one image at a time, as views take memory."""
        if self.classifier.holds_views(images):
            yield from images
            return
        shape, made = self.classifier.input_shape, self.count_made()
        if shape is not None and len(shape) != 3 and made:
            raise LmrError(
                f"{self.name} cannot crop the inputs of this model, which have the shape {list(shape)} and are no "
                "pictures [3, H, W]; give views of your own as [B, V, ...]."
            )
        for image, number in zip(images, self.number_images(mix).tolist(), strict=True):
            own = image.unsqueeze(0)
            yield torch.cat([own, self.maker.make(image, number, made)]) if made else own

    def encode_views(self, images: Tensor, mix: Mix) -> Tensor:
        """Unit features [B, V, D] of all views, without gradient."""
        with torch.no_grad():
            if self.views == 1 and not self.classifier.holds_views(images):
                return self.classifier.features(images).unsqueeze(1)
            return torch.stack([self.classifier.features(views) for views in self.iterate_views(images, mix)])


@dataclass(kw_only=True, eq=False, repr=False)
class EpisodicMethod(ViewMethod):
    """A ViewMethod that starts from nothing with every image. Subclasses write ``solve``.

    As nothing of an image stays for the next, a batch is a group of images and no more: each gets the answer that it
    gets alone. ``predict`` gives the answer that ``step`` would give now.

    Examples:
        >>> import lmr, torch
        >>> @lmr.register("averaged")
        ... class Averaged(lmr.EpisodicMethod):
        ...     'The mean of the logits of all views.'
        ...
        ...     def solve(self, images, mix):
        ...         features = self.encode_views(images, mix)
        ...         return self.classifier.logits(self.classifier.cosines(features)).mean(1), {}
        >>> clip = lmr.load("pocket").classifier(["red ring", "blue star"])
        >>> method = lmr.create("averaged(views=4)", clip, streams=2)
        >>> images = torch.randn(3, 3, 32, 32)
        >>> together = method.step(images, streams=[0, 1, 0]).logits
        >>> torch.allclose(together[2:], lmr.create("averaged(views=4)", clip).step(images[::2]).logits[1:])
        True
    """

    episodic = True

    @abstractmethod
    def solve(self, images: Tensor, mix: Mix) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits [B, C] of images, or of given views, and facts [B] for the report."""

    def adapt(self, images: Tensor, mix: Mix) -> Prediction:
        """Solve each image and count it."""
        logits, facts = self.solve(images, mix)
        seen = self.take(mix, "seen")["seen"] + mix.sizes
        self.put({"seen": seen}, mix)
        report = {key: mix.all(fact) if fact.dtype == torch.bool else mix.mean(fact) for key, fact in facts.items()}
        return Prediction(logits, self.summarise(report | {"seen": seen}, mix))

    def answer(self, images: Tensor, mix: Mix) -> Tensor:
        """The same without counting."""
        return self.solve(images, mix)[0]
