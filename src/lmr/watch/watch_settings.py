"""What a watch does and when it acts: numbers that are checked once, with a spec string that rows and states keep."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_type_hints

from lmr.core.errors import LmrError
from lmr.core.spec import convert, format_spec, parse_spec, suggest

Mode = Literal["on", "report"]
MODES = ("on", "report", "off")  # what the command line offers
EARLIER_NAMES = {"canary_spread": "spread"}  # of thresholds, in the rows of finished runs


@dataclass(frozen=True)
class Thresholds:
    """When a signal of a watch is an alarm, and how long each rung of its ladder lasts.

    The numbers were chosen on drawings, between what healthy streams and collapses reached there; docs/watch.md has
    both, the commands, and what other streams said.

    Examples:
        >>> import lmr
        >>> lmr.Thresholds(drift=0.1).drift
        0.1
    """

    not_finite: int = 3  # steps in a row whose answers are not finite
    concentration: float = 0.7  # effective number of predicted classes: adapted over frozen, below this ...
    top_share: float = 0.15  # ... while the adapted model's most predicted class has this much more than the frozen's
    spread: float = 0.9  # entropy and canaries count only while the concentration is below this
    entropy: float = 0.1  # nats at 1,000 classes, scaled with ln C: the adapted mean below this ...
    entropy_ratio: float = 3.0  # ... while the frozen mean is above this many times it
    canary_agreement: float = 0.8  # agreement with the frozen model on the canaries, below this, ...
    canary_fall: float = 0.02  # or the mean of the last five points this far below the mean of the five before
    drift: float = 0.25  # distance of the norms from their start, relative to its length, above this in 1,000 steps
    memory: int = 64  # compared images over which the averages forget
    least: int = 32  # compared images before averages are judged
    confirm: int = 256  # images compared under suspicion before anything is done: four times the memory
    quiet: int = 64  # steps without alarm that end a suspicion, and that a snapshot needs behind it
    rest: int = 64  # steps answered without adapting after a rollback
    rollbacks: int = 3  # in ``window`` steps; the next one is a quarantine
    window: int = 1000

    def __post_init__(self) -> None:
        _convert_fields(self)
        for item in dataclasses.fields(self):
            least = 1 if item.name in _COUNTS else 0
            if not least <= getattr(self, item.name) < math.inf:
                raise LmrError(
                    f"Expected the threshold {item.name!r} of a watch to be at least {least} and finite, got "
                    f"{getattr(self, item.name)!r}."
                )


_COUNTS = ("not_finite", "memory", "least", "confirm", "quiet", "rest", "rollbacks", "window")


@dataclass(frozen=True)
class WatchSettings:
    """The arguments of ``lmr.watch``; see there."""

    mode: Mode = "on"
    every: int | None = None
    signals: bool = True
    reset_every: int = 0
    canaries: int = 32
    canary_mb: float = 256.0
    snapshots: int = 4
    snapshot_mb: float = 256.0
    thresholds: Thresholds = field(default_factory=Thresholds)

    def __post_init__(self) -> None:
        if not isinstance(self.thresholds, Thresholds):
            raise LmrError(f"Expected lmr.watch.watch_settings.Thresholds, got {self.thresholds!r}.")
        _convert_fields(self)
        lowest = {"every": 1, "reset_every": 0, "canaries": 0, "canary_mb": 0, "snapshots": 0, "snapshot_mb": 0}
        for key, low in lowest.items():
            value = getattr(self, key)
            if value is not None and not low <= value < math.inf:
                raise LmrError(f"Expected {key!r} of a watch of at least {low}, got {getattr(self, key)!r}.")

    @property
    def spec(self) -> str:
        """The canonical string: every argument and every threshold with its value."""
        return format_spec("watch", self._list_values())

    @property
    def label(self) -> str:
        """What tables add to the name of a method: "watched", and what is not as usual."""
        usual = WatchSettings()._list_values()
        changes = [f"{key}={value}" for key, value in self._list_values().items() if value != usual[key]]
        return f"watched ({', '.join(changes)})" if changes else "watched"

    def _list_values(self) -> dict[str, Any]:
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return values | dataclasses.asdict(values.pop("thresholds"))


def read_watch(text: str) -> WatchSettings | None:
    """The settings that a word or a spec such as ``watch(every=8, drift=0.1)`` stands for; None for "off"."""
    if text == "off":
        return None
    if text in MODES:
        return WatchSettings(mode=convert(text, Mode, "the mode of a watch"))
    name, given = parse_spec(text)
    values = {EARLIER_NAMES.get(key, key): value for key, value in given.items()}
    own, limits = (
        {item.name for item in dataclasses.fields(kind)} - {"thresholds"} for kind in (WatchSettings, Thresholds)
    )
    if name != "watch":
        raise LmrError(f"Expected on, report, off or watch(key=value, ...) for the watch, got {text!r}.")
    for key in values:
        if key not in own | limits:
            raise LmrError(f"A watch has no argument {key!r}.{suggest(key, own | limits)}")
    thresholds = Thresholds(**{key: value for key, value in values.items() if key in limits})
    return WatchSettings(thresholds=thresholds, **{key: value for key, value in values.items() if key in own})


def _convert_fields(made: Any) -> None:
    """Give every field its declared type, or raise an LmrError."""
    for key, hint in get_type_hints(type(made)).items():
        if hint is not Thresholds:
            object.__setattr__(made, key, convert(getattr(made, key), hint, f"{key!r} of a watch"))
