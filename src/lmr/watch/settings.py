"""The settings of a watch: checked once, with a spec string that rows keep."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from lmr.core.errors import LmrError
from lmr.core.spec import convert, find_hints, format_spec, parse_spec, suggest

Mode = Literal["on", "report"]
MODES = ("on", "report", "off")  # the choices of the command line


@dataclass(frozen=True)
class Thresholds:
    """The limits at which a signal of a watch is an alarm, and the duration of each health level.

    The numbers were chosen on drawings, between the values of healthy streams and those of collapses; docs/watch.md has
    both, the commands, and the results on other streams.

    Examples:
        >>> import lmr
        >>> lmr.Thresholds(drift=0.1).drift
        0.1
    """

    not_finite: int = 3  # steps in a row whose answers are not finite
    concentration: float = 0.7  # effective number of predicted classes: adapted over frozen, below this ...
    top_share: float = 0.15  # ... while the adapted model's most predicted class has this much more than the frozen's
    spread: float = 0.9  # entropy counts only while the concentration is below this
    entropy: float = 0.1  # nats at 1,000 classes, scaled with ln C: the adapted mean below this ...
    entropy_ratio: float = 3.0  # ... while the frozen mean is above this many times it
    doubt: float = 1.01  # mean entropy: adapted over frozen, above this ...
    doubt_sureness: float = 0.42  # ... while the mean sureness of the frozen model is above this, of few classes, ...
    doubt_agreement: float = 0.85  # ... and the share of its sure answers that the adapted model gives, above this
    doubt_least: int = 32  # compared images before doubt is judged: one in four of the first 128
    doubt_confirm: int = 192  # images compared under suspicion before doubt is acted on
    drift: float = 0.25  # distance of the norms from their start, relative to its length, above this in 1,000 steps
    memory: int = 64  # compared images over which the averages forget
    least: int = 28  # compared images before averages are judged: one in four of the first 112
    confirm: int = 256  # images compared under suspicion before an action: four times the memory
    quiet: int = 64  # steps without alarm that end a suspicion, and that precede a snapshot
    rest: int = 64  # steps answered without adapting after a rollback
    rollbacks: int = 3  # in ``window`` steps; the next one resets and pauses the stream
    window: int = 1000

    def __post_init__(self) -> None:
        _convert_fields(self)
        for item in dataclasses.fields(self):
            value, least = getattr(self, item.name), 1 if isinstance(item.default, int) else 0
            if not least <= value < math.inf:
                raise LmrError(
                    f"Expected the threshold {item.name!r} of a watch to be at least {least} and finite, got {value!r}."
                )


@dataclass(frozen=True)
class WatchSettings:
    """The settings of ``Watched``.

    In the mode "report" the watch reports and never changes a state, not even with ``reset_every``. ``reset_every``
    with ``signals=False`` is the simplest guard. Snapshots are states to return to.

    Examples:
        >>> import lmr
        >>> lmr.WatchSettings(mode="report", every=8).label
        'watched (mode=report, every=8)'
    """

    mode: Mode = "on"
    every: int | None = None  # one image in this many is compared while nothing is suspected; None: by the step's cost,
    # and four times as many of the first 512 images
    signals: bool = True  # False: nothing is compared
    reset_every: int = 0  # steps of a stream that is not paused after which it is reset; 0: never
    snapshots: int = 4  # of each stream, at most
    snapshot_mb: float = 256.0  # megabytes of the snapshots of each stream, at most
    thresholds: Thresholds = field(default_factory=Thresholds)

    def __post_init__(self) -> None:
        if not isinstance(self.thresholds, Thresholds):
            raise LmrError(f"Expected lmr.Thresholds(...) for the thresholds of a watch, got {self.thresholds!r}.")
        _convert_fields(self)
        for key in ("every", "reset_every", "snapshots", "snapshot_mb"):
            value, low = getattr(self, key), 1 if key == "every" else 0
            if value is not None and not low <= value < math.inf:
                raise LmrError(f"Expected {key!r} of a watch of at least {low}, got {value!r}.")

    @property
    def spec(self) -> str:
        """The canonical string: every setting and every threshold with its value."""
        return format_spec("watch", self._list_values())

    @property
    def label(self) -> str:
        """The suffix of a method's name in tables: "watched", with the settings that are not the defaults."""
        usual = WatchSettings()._list_values()
        changes = [f"{key}={value}" for key, value in self._list_values().items() if value != usual[key]]
        return f"watched ({', '.join(changes)})" if changes else "watched"

    def _list_values(self) -> dict[str, Any]:
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return values | dataclasses.asdict(values.pop("thresholds"))


def read_watch(text: str) -> WatchSettings | None:
    """Return the settings of "on", "report", or a spec such as ``watch(every=8, drift=0.1)``; None for "off"."""
    if text == "off":
        return None
    if text in MODES:
        return WatchSettings(mode=convert(text, Mode, "the mode of a watch"))
    name, values = parse_spec(text)
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


def _convert_fields(settings: Any) -> None:
    for key, hint in find_hints(type(settings)).items():
        if hint is not Thresholds:
            object.__setattr__(settings, key, convert(getattr(settings, key), hint, f"{key!r} of a watch"))
