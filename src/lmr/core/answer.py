"""Answer: what a user gets for one image. HTTP, MQTT, JSON lines, tables and the client of the service use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the client of the service reads this module, and needs no torch
    from torch import Tensor

UNKNOWN = "unknown"  # the label of an image that belongs to none of the classes, where a text is needed
DIGITS = 6  # of a probability; more are not exact in float32
NOT_FINITE = "The model gave no finite answer to this image."
_ALWAYS = ("label", "probability", "known", "top")  # written even if they are empty

Ranking = tuple[tuple[str, float], ...]  # the best classes of an image with their probabilities


@dataclass(frozen=True)
class Answer:
    """The answer to one image: its ``label`` and the ``top`` classes, or the ``error`` why there is none.

    The label is None if the image belongs to none of the classes; the ``probability`` is that of the most probable
    class in any case. A further field is one line here: every output writes it, and the client reads it.

    Examples:
        >>> from lmr.core.answer import Answer
        >>> Answer("dog", 0.75, 0.9, (("dog", 0.75), ("cat", 0.25))).format()
        {'label': 'dog', 'probability': 0.75, 'known': 0.9, 'top': [('dog', 0.75), ('cat', 0.25)]}
        >>> Answer(error="The file is damaged.").format()
        {'error': 'The file is damaged.'}
    """

    label: str | None = None
    probability: float | None = None
    known: float | None = None  # a score in [0, 1] that the image belongs to one of the classes
    top: Ranking = ()
    frozen: str | None = None  # the label of the frozen model, where the image was compared
    frozen_top: Ranking = ()  # its best classes, where they were asked for
    trusted: bool | None = None  # False where the camera gives no picture to answer, or an old one
    reused: bool | None = None  # True for a repeated frame, which took the answer to the one before
    error: str | None = None

    @property
    def text(self) -> str | None:
        """The label where a text is needed: "unknown" for an image of none of the classes, None for an error."""
        return None if self.error is not None else UNKNOWN if self.label is None else self.label

    def format(self) -> dict[str, Any]:
        """Return the fields that have a value as values of JSON; of an answer that is an error, that alone."""
        if self.error is not None:
            return {"error": self.error}
        values = {item.name: _shorten(getattr(self, item.name)) for item in fields(self)}
        return {name: value for name, value in values.items() if name in _ALWAYS or value not in (None, [])}


def rank(logits: Tensor, names: Sequence[str], count: int) -> list[Ranking]:
    """Return the ``count`` best classes of each image of logits [n, C]; none if its logits are not finite."""
    kinds = logits.sort(dim=1, descending=True, stable=True).indices[:, : max(1, count)]
    shares = logits.softmax(1).gather(1, kinds).tolist()
    pairs = zip(logits.isfinite().all(1).tolist(), kinds.tolist(), shares, strict=True)
    return [tuple(zip([names[kind] for kind in own], share, strict=True)) if good else () for good, own, share in pairs]


def make_answers(
    rankings: Sequence[Ranking],
    known: Sequence[float],
    unknown: Sequence[bool],
    frozen: Mapping[int, str] | None = None,
    frozen_rankings: Sequence[Ranking] = (),
    reused: Sequence[bool] = (),
) -> list[Answer]:
    """Return the answers to images; ``frozen`` has the labels of the frozen model by position, where known."""
    answers = []
    for k, top in enumerate(rankings):
        answer = Answer(error=NOT_FINITE)
        if top:
            answer = Answer(None if unknown[k] else top[0][0], top[0][1], known[k], top)
        plain = frozen_rankings[k] if frozen_rankings else ()
        again = True if reused and reused[k] else None
        answers.append(replace(answer, frozen=(frozen or {}).get(k), frozen_top=plain, reused=again))
    return answers


def _shorten(value: Any) -> Any:
    match value:
        case float():
            return round(value, DIGITS)
        case tuple():
            return [(name, round(share, DIGITS)) for name, share in value]
        case _:
            return value
