"""O-TPT (Sharifdeen et al. 2025): test-time prompt tuning that makes the class prototypes orthogonal."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from lmr.core.functional.prompt_losses import measure_overlap, measure_overlap_squared
from lmr.core.functional.views import marginal_entropy
from lmr.core.method import Preset
from lmr.core.prompts.prompt_method import PromptMethod
from lmr.core.registry import register

_SOURCE = "the authors' scripts"


@register("otpt")
class OTPT(PromptMethod):
    """TPT's entropy and a penalty on the cosines between prototypes.

    Code and paper differ. The code (``penalty="rows"``) averages the lengths of the rows of the matrix of cosines, less
    one; the paper (``penalty="frobenius"``) has the squared Frobenius norm of that matrix less the identity. The
    published weights belong to the code.
    """

    label = "O-TPT"
    source = "Sharifdeen et al. 2025"
    year = 2025
    presets: ClassVar[dict[str, Preset]] = {
        "default": Preset({}, _SOURCE + ": weight of fine-grained sets, views without AugMix", batch_size=1),
        "fine-grained": Preset({"augmix": True}, _SOURCE + ": fine-grained sets, views with AugMix", batch_size=1),
        "natural-shifts": Preset({"orthogonality": 2.0}, _SOURCE + ": natural shifts", batch_size=1),
    }

    orthogonality: float = 18.0  # the weight of the penalty
    penalty: Literal["rows", "frobenius"] = "rows"

    def prepare(self) -> None:
        self._require_not_negative("orthogonality")
        super().prepare()

    def judge(self, logits: Tensor, prototypes: Tensor) -> Tensor:
        measure = measure_overlap if self.penalty == "rows" else measure_overlap_squared
        return marginal_entropy(logits) + self.orthogonality * measure(prototypes)
