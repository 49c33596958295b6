"""OrderedMethod: the base of methods that serve the images of a stream in order, one at a time."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from lmr.core.bases.views import ViewMethod
from lmr.core.method import Method
from lmr.core.prediction import State, Step
from lmr.core.streams import Streams


class OrderedMethod(Method):
    """A method that serves images in order, one at a time; a batch only encodes them together.

    Subclasses define ``look``, which answers an image, and ``learn``, which lets it change the state of its stream. The
    images are counted where the state has "seen". Both compute with tensors alone where they can: whoever reads a value
    makes the program wait for the device at every image.
    """

    @abstractmethod
    def look(self, features: Tensor, row: State) -> tuple[Tensor, Any]:
        """Return the logits [C] of an image by the state of its stream, and what ``learn`` needs to know of it.

        ``features`` are [D], or [V, D] in a ViewMethod.
        """

    @abstractmethod
    def learn(self, found: Any, row: State) -> Tensor:
        """Change the state of a stream in place after an image; return counts, of which ``_count`` gets the sums."""

    def _count(self, sums: Tensor, streams: Streams) -> dict[str, Tensor]:
        """Return facts [A] for ``info`` by the sums [A, ...] of what ``learn`` has returned."""
        return {}

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        """Answer each image and learn from it before the next one."""
        new, answers, counts = {key: value.clone() for key, value in state.items()}, [], []
        with torch.no_grad():
            for features, k in self._pair(images, state, streams):
                row = {key: value[k] for key, value in new.items()}
                logits, found = self.look(features, row)
                answers.append(logits)
                counts.append(self.learn(found, row))
                if "seen" in row:
                    row["seen"] += 1
        sums = streams.sum(torch.stack(counts).long())
        info = {"stepped": sums.flatten(1).any(1) if sums.ndim > 1 else sums > 0}
        return Step(torch.stack(answers), new, info | self._count(sums, streams))

    def answer(self, images: Tensor, state: State, streams: Streams) -> Tensor:
        """Return logits as if each image arrived now, alone."""
        pairs = self._pair(images, state, streams)
        return torch.stack([self.look(one, {key: value[k] for key, value in state.items()})[0] for one, k in pairs])

    def _pair(self, images: Tensor, state: State, streams: Streams) -> list[tuple[Tensor, int]]:
        """Return the features of each image, or of its views, with the position of its stream."""
        if isinstance(self, ViewMethod):
            features = self._encode_views(images, state, streams)
        else:
            features = self.classifier.features(images)
        return list(zip(features, streams.places(), strict=True))
