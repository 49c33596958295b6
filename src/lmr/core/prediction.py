"""The results of a method: a Prediction for users, a Step from ``adapt``, and parameters for export."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lmr.core.answer import Answer, Ranking, make_answers, rank
from lmr.core.card import Tower
from lmr.core.errors import LmrError
from lmr.core.known import score_known

State = dict[str, Tensor]  # tensors [A, ...], one row for each stream of a batch; of one new stream without that axis
_SHOWN = 4  # images in the repr of a prediction


@dataclass(frozen=True, repr=False)
class Prediction:
    """The answer to a batch: logits [B, C], ``info`` about the step in plain Python values, and the class names.

    Examples:
        >>> import lmr, torch
        >>> answer = lmr.Prediction(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), classes=("cat", "dog"))
        >>> answer.labels
        tensor([0, 1])
        >>> answer.names
        ['cat', 'dog']
        >>> answer.probabilities[0]
        tensor([0.8808, 0.1192])
        >>> answer
        Prediction of 2 images: cat 0.88, dog 0.73
        >>> answer[1].label, [one.label for one in answer], len(answer)
        ('dog', ['cat', 'dog'], 2)
        >>> answer.top(1)
        [(('cat', 0.8807970285415649),), (('dog', 0.7310585975646973),)]
        >>> answer.known  # scores that the images belong to one of the classes
        tensor([0.2212, 0.1175])
    """

    logits: Tensor
    info: dict[str, Any] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    scores: Tensor | None = None  # of a method with a threshold: the scores [B] that it compared with it
    unknown: Tensor | None = None  # bool [B]: the images below the threshold; None without one
    reused: Tensor | None = None  # bool [B]: repeated frames that took the last answer; None without lmr.Reused

    @cached_property
    def probabilities(self) -> Tensor:
        """Softmax of the logits: [B, C]."""
        return self.logits.softmax(1)

    @cached_property
    def labels(self) -> Tensor:
        """Index of the most probable class of each image: int64 [B]."""
        return self.logits.argmax(1)

    @cached_property
    def known(self) -> Tensor:
        """A score [B] in [0, 1] that each image belongs to one of the classes.

        With a threshold it is that of the frozen model, without one that of these logits; see ``score_known``.
        """
        return score_known(self.logits) if self.scores is None else self.scores

    @property
    def names(self) -> list[str | None]:
        """Name of the most probable class of each image, None for unknown images; an index as text without names."""
        names = [self.classes[label] if self.classes else str(label) for label in self.labels.tolist()]
        unknown = [False] * len(names) if self.unknown is None else self.unknown.tolist()
        return [None if none else name for name, none in zip(names, unknown, strict=True)]

    @cached_property
    def _answers(self) -> list[Answer]:
        unknown = [False] * len(self.logits) if self.unknown is None else self.unknown.tolist()
        reused = () if self.reused is None else self.reused.tolist()
        return make_answers(self.top(), self.known.tolist(), unknown, reused=reused)

    def __len__(self) -> int:
        return len(self.logits)

    def __getitem__(self, place: int) -> Answer:
        return self._answers[place]

    def __iter__(self) -> Iterator[Answer]:
        return iter(self._answers)

    def top(self, k: int = 5) -> list[Ranking]:
        """Return the ``k`` most probable classes of each image with their probabilities."""
        if not isinstance(k, int) or k < 1:
            raise LmrError(f"Expected a number of classes of at least 1, got {k!r}.")
        return rank(self.logits, self.classes or tuple(map(str, range(self.logits.shape[1]))), k)

    def join(self, other: Prediction, order: Tensor) -> Prediction:
        """Return the answers of both in another order [B] of all; the info is that of this one."""
        pairs = ((self.scores, other.scores), (self.unknown, other.unknown), (self.reused, other.reused))
        both = (None if one is None or two is None else torch.cat([one, two])[order] for one, two in pairs)
        return Prediction(torch.cat([self.logits, other.logits])[order], self.info, self.classes, *both)

    def __repr__(self) -> str:
        confidence = self.probabilities[:_SHOWN].amax(1).tolist()
        shown = [f"{name or 'unknown'} {share:.2f}" for name, share in zip(self.names, confidence, strict=False)]
        more = ", ..." if len(self.logits) > _SHOWN else ""
        return f"Prediction of {len(self.logits)} image{'s' * (len(self.logits) != 1)}: {', '.join(shown)}{more}"


@dataclass(frozen=True)
class Step:
    """The result of ``Method.adapt``: logits [B, C], the new state, and facts about the step.

    ``state`` holds the tensors [A, ...] that changed; the others stay as they are. Tensors that are not part of the
    state are checked against their ranges and dropped. ``info`` holds tensors [A], one
    value for each stream of the batch.
    """

    logits: Tensor
    state: Mapping[str, Tensor] = field(default_factory=dict)
    info: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class AdaptedParameters:
    """The present model of one stream as constants: a classifier that no longer adapts.

    Its logits are ``logit_scale * cosines + logit_bias + offset``, with the cosines between the unit features of the
    image tower and ``prototypes`` [C, D]. ``norms`` holds, for each adapted tower, the parameters that replace the
    tower's own, under their names in its ``state_dict()``. ``offset`` [C] is None where there is none.
    ``from_prompts`` is true if the text tower with its ``norms`` gives these prototypes for the prompts of the classes.

    Examples:
        >>> import lmr, torch
        >>> backbone = lmr.load()
        >>> method = lmr.create("tent", backbone.classifier(["cat", "dog"]))
        >>> _ = method.step(torch.randn(4, 3, 32, 32))
        >>> parameters = method.export_parameters()
        >>> sorted(parameters.norms[lmr.Tower.IMAGE])[:2]
        ['blocks.0.ln_1.bias', 'blocks.0.ln_1.weight']
        >>> parameters.prototypes.shape, parameters.offset, parameters.from_prompts
        (torch.Size([2, 128]), None, True)
    """

    prototypes: Tensor
    offset: Tensor | None = None
    norms: Mapping[Tower, Mapping[str, Tensor]] = field(default_factory=dict)
    from_prompts: bool = True
