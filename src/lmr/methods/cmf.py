"""CMF, continual momentum filtering (Lee and Chang 2024): ROID with a Kalman filter on the norms."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from lmr.core.card import Card
from lmr.core.errors import LmrError
from lmr.core.method import Ranges
from lmr.core.prediction import State
from lmr.core.registry import register
from lmr.methods.roid import WeightedMethod, list_presets

_SIZE = 38400  # trained numbers for which ``q`` is given
_LEAST, _WHOLE = 0.89, 0.9999  # smallest weight of the hidden norms, and the weight from which it counts as 1

_CARD = Card(
    source="Lee and Chang 2024",
    year=2024,
    presets=list_presets("mariodoebler/test-time-adaptation, a port of the authors' code"),
)


@register("cmf", _CARD)
class CMF(WeightedMethod):
    """Weighted self-training; after each step hidden norms are filtered, and the norms move a little towards them.

    Hidden norms h begin as the original ones, their variance v as 0. After a step to the norms n, with Q = ``q`` P /
    38400 for P norm parameters: h = alpha h + (1 - alpha) start, v = alpha^2 v + Q, beta = (1 - Q) / (v + 1 - Q), not
    below 0.89 and 1 from 0.9999 on; then v = beta v, h = beta h + (1 - beta) n, and n = gamma n + (1 - gamma) h. P is
    that of the image tower; the port also counts a norm of the text tower that is not trained. Its reset forgets v,
    which is reset here. With the published ``q`` the stream is close to that of ``roid``.

    Loss, weights, augmentation and prior correction are those of ``WeightedMethod``. The prior correction of the
    released code is on by default and ruinous for CLIP with few classes: take ``prior_correction=False``, or preset
    "auto" or "clip".
    """

    alpha: float = 0.99  # weight of the hidden norms against the original ones
    gamma: float = 0.99  # weight of the norms against the hidden ones
    q: float = 0.005  # variance that a step adds, for 38,400 parameters

    def prepare(self) -> None:
        super().prepare()
        self._require_between(0, 1, "alpha", "gamma")
        self._require_not_negative("q")
        self.added = self.q * self.bank.size / _SIZE
        if self.added >= 1:
            limit = _SIZE / self.bank.size
            raise LmrError(f"Expected 'q' of cmf below {limit:.6g} for {self.bank.size} parameters, got {self.q}.")

    def begin(self) -> Mapping[str, Tensor | int]:
        """Return also the hidden norms and their variance."""
        return {**super().begin(), "hidden": self.bank.start, "variance": self.bank.start.new_zeros(())}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        return super().ranges(state) | {"hidden": (-self.bank.limit, self.bank.limit), "variance": (0, None)}

    def merge(self, norms: Tensor, state: State) -> dict[str, Tensor]:
        hidden = self.alpha * state["hidden"] + (1 - self.alpha) * self.bank.start
        variance = self.alpha**2 * state["variance"] + self.added
        kept = ((1 - self.added) / (variance + 1 - self.added)).clamp(min=_LEAST)
        kept = kept.masked_fill(kept >= _WHOLE, 1)
        hidden = kept.unsqueeze(1) * hidden + (1 - kept).unsqueeze(1) * norms
        return {
            "norms": self.gamma * norms + (1 - self.gamma) * hidden,
            "hidden": hidden,
            "variance": kept * variance,
        }
