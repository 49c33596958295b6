"""FrozenAnswer: what one stream has learnt, as the constants of a plain classifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from lmr.core.traits import Tower


@dataclass(frozen=True)
class FrozenAnswer:
    """The present answer of one stream of a method, as a classifier that does not adapt.

    Its logits are ``logit_scale * cosines + logit_bias + offset``, with the cosines between the unit features of the
    image tower and ``prototypes`` [C, D]. ``norms`` gives, for each tower that adapts, the parameters that replace the
    tower's own, under their names in its ``state_dict()``. ``offset`` [C] is None where there is none. ``from_prompts``
    says whether the text tower, with its ``norms``, gives these prototypes for the prompts of the classes.

    Examples:
        >>> import lmr, torch
        >>> backbone = lmr.load("pocket")
        >>> method = lmr.create("tent", backbone.classifier(["red ring", "blue star"]))
        >>> _ = method.step(torch.randn(4, 3, 32, 32))
        >>> frozen = method.freeze()
        >>> sorted(frozen.norms[lmr.Tower.IMAGE])[:2]
        ['blocks.0.ln_1.bias', 'blocks.0.ln_1.weight']
        >>> frozen.prototypes.shape, frozen.offset, frozen.from_prompts
        (torch.Size([2, 128]), None, True)
    """

    prototypes: Tensor
    offset: Tensor | None = None
    norms: Mapping[Tower, Mapping[str, Tensor]] = field(default_factory=dict)
    from_prompts: bool = True
