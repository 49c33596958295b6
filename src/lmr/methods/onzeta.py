"""OnZeta (Qian and Hu 2024): online zero-shot transfer with balanced labels and vision proxies of the classes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.card import Card, Preset, Scores
from lmr.core.functional.ordered import adapt_in_order, answer_in_order
from lmr.core.method import COUNTS, UNIT, Method, Ranges
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams

_SOURCE = "idstcv/OnZeta: ImageNet, with seven templates"
_PORT = "the port tta-vlm"
_LENGTH = 10_000  # of a stream whose length is not known

_CARD = Card(
    label="OnZeta",
    source="Qian and Hu 2024",
    year=2024,
    presets={
        "default": Preset({}, _SOURCE, batch_size=1),
        "imagenet": Preset({}, _SOURCE, batch_size=1),
        "fine-grained": Preset({"beta": 0.4}, _PORT + ": fine-grained sets", batch_size=1),
        "caltech101": Preset({"beta": 0.4, "alpha": 0.0}, _PORT + ": Caltech101", batch_size=1),
    },
)


@register("onzeta", _CARD)
class OnZeta(Method):
    """Labels of the text, balanced over the stream, and proxies of the classes among image features that learn them.

    Image number i of a stream has q, the softmax of z t / ``tau_text`` + r, and v, the softmax of z w / ``tau_image``.
    Its answer is b v + (1 - b) q, with b = ``beta`` sqrt(i / N), by the r and w from before it. Then, with e = 1 /
    sqrt(i), the multipliers move to max(0, r - ``cr`` e (q - ``alpha`` / C)), which asks for a share of ``alpha`` / C
    of the answers for each class, and the proxies w, at first the text, to w - ``cw`` e / ``tau_image`` (v - q) z,
    normalised. Images are served in order, one at a time; a batch only encodes them together. Temperatures are the
    method's own, whatever the scale of the model.

    N is the ``length`` of the whole stream. Where it is not known, N is 10,000, and i once the stream is longer; that
    is a choice of this package, as the released code always knows it. Early in a stream the published steps are so
    large that rounding grows: two computers agree on the first 50 images or so. On streams of hundreds of images they
    cost accuracy (twelve classes: 75.5 % falls to 48.8 %), where ``cw=0.05, cr=2.0`` gains (80.8 %).
    """

    scores = Scores.LABELS
    export_reason = "its answer mixes two distributions, which prototypes and a bias alone cannot"

    tau_text: float = 0.01  # temperature of the text's labels
    tau_image: float = 0.04  # temperature of the proxies' labels
    cw: float = 0.5  # step of the proxies
    cr: float = 20.0  # step of the multipliers
    alpha: float = 1.0  # share of the answers, times C, that each class is to have at least; 0: no balance
    beta: float = 0.8  # weight of the proxies' labels at the end of the stream
    length: int | None = None  # images of the whole stream; None: 10,000, or as many as there were

    def prepare(self) -> None:
        self._require_not_negative("cw", "cr", "alpha")
        self._require_between(0, 1, "beta")
        self._require_between(1e-6, 1e9, "tau_text", "tau_image")
        if self.length is not None:
            self._require_count("length", most=10**15)

    def begin(self) -> Mapping[str, Tensor | int]:
        """Return the text as proxies, multipliers of zero, and the number of images seen."""
        text = self.classifier.prototypes
        return {"proxies": text, "multipliers": text.new_zeros(len(text)), "seen": 0}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        return super().ranges(state) | {"proxies": UNIT, "multipliers": (0, None), "seen": COUNTS}

    def describe(self, state: State) -> Mapping[str, Tensor]:
        return {"multiplier": state["multipliers"].mean(1), "seen": state["seen"]}

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        return adapt_in_order(self.classifier.features(images), state, streams, self.look, self.learn)

    def answer(self, images: Tensor, state: State, streams: Streams) -> Tensor:
        return answer_in_order(self.classifier.features(images), state, streams, self.look)

    def look(self, z: Tensor, row: State) -> tuple[Tensor, tuple[Tensor, ...]]:
        text = (self.classifier.prototypes @ z / self.tau_text + row["multipliers"]).log_softmax(0)
        image = (row["proxies"] @ z / self.tau_image).log_softmax(0)
        number = (row["seen"] + 1).double()
        share = self.beta * (number / number.clamp(min=self.length or _LENGTH)).sqrt()
        weights = share.log().to(z.dtype), (1 - share).log().to(z.dtype)
        return torch.logaddexp(image + weights[0], text + weights[1]), (z, text.exp(), image.exp())

    def learn(self, found: tuple[Tensor, ...], row: State) -> Tensor:
        z, text, image = found
        rate = (1 / (row["seen"] + 1).double().sqrt()).to(z.dtype)
        row["multipliers"].sub_(self.cr * rate * (text - self.alpha / len(text))).clamp_(min=0)
        moved = row["proxies"] - torch.outer(self.cw * rate / self.tau_image * (image - text), z)
        row["proxies"].copy_(F.normalize(moved, dim=1))
        return torch.ones_like(row["seen"])
