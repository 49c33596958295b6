"""``lmr predict --budget``: the switch of a method that keeps most of its gain at a given cost per image."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from lmr.apps.model_options import create_suited
from lmr.bench.flops import count_forwards
from lmr.core.card import Switch
from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.method import Method
from lmr.core.registry import find_method, list_methods, split_address
from lmr.core.spec import format_spec, parse_spec

NEAR = 0.02  # forwards by which a switch may exceed the budget: a backward is a few per cent more than a forward


@dataclass(frozen=True)
class ChosenSwitch:
    """A method with a switch, the cost of its step, and the share of the gain that it keeps."""

    method: Method
    values: dict[str, Any]
    forwards: float  # per image, if every image enters the loss
    kept: float

    def describe(self) -> str:
        """Return method, cost and kept gain in one line."""
        spec = format_spec(self.method.name, self.values) if self.values else self.method.name
        return (
            f"{spec}: {self.forwards:.2f} forwards per image; it kept {100 * self.kept:.0f} % of the gain when "
            "it was measured"
        )


def choose_switch(spec: str, classifier: ZeroShot, budget: float, batch_size: int) -> ChosenSwitch:
    """Return the measured switch that keeps most of the gain within the budget; of equal ones the cheapest."""
    if not isinstance(budget, int | float) or isinstance(budget, bool) or not 0 < budget < math.inf:
        raise LmrError(f"Expected a budget of a positive number of forwards, such as 1.5, got {budget!r}.")
    switches = create_suited(spec, classifier).card.switches
    if not switches:
        having = ", ".join(name for name in list_methods() if find_method(name).card.switches)
        raise LmrError(
            f"{parse_spec(split_address(spec)[1])[0]} has no measured switches; leave out the budget, or choose one of "
            f"these methods: {having}."
        )
    found = [chosen for switch in switches if (chosen := _try_switch(spec, classifier, switch, batch_size))]
    affordable = [chosen for chosen in found if chosen.forwards <= budget + NEAR]
    if not affordable:
        least = min((chosen.forwards for chosen in found), default=math.nan)
        raise LmrError(f"No measured switch costs {budget:g} forwards or less; the cheapest costs {least:.2f}.")
    return max(affordable, key=lambda chosen: (chosen.kept, -chosen.forwards))


def _try_switch(spec: str, classifier: ZeroShot, switch: Switch, batch_size: int) -> ChosenSwitch | None:
    """Return the method with a switch, or None if its cost is not known."""
    given = parse_spec(split_address(spec)[1])[1]
    if clash := [key for key in switch.values if key in given]:
        raise LmrError(f"A budget decides {clash[0]!r} itself; leave it out of {spec!r}, or leave out the budget.")
    method = create_suited(spec, classifier, **switch.values)
    forwards = count_forwards(method, batch_size)
    return None if forwards is None else ChosenSwitch(method, dict(switch.values), forwards, switch.kept)
