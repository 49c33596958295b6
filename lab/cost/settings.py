"""The defaults of ``lmr cost`` and the aims, as cost.toml states them. This module imports no torch."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class Aim:
    """The ratio of one quantity of two entries, or the bytes of one of them, and its limit."""

    what: str
    top: str  # keys of entries
    bottom: str | None = None
    quantity: Literal["time", "memory"] = "time"
    limit: float = 1.0
    batch_size: int | None = None  # where the aim holds for one size only
    streams: int | None = None
    classes: int | None = None


_READ: dict[str, Any] = tomllib.loads(Path(__file__).with_name("cost.toml").read_text(encoding="utf-8"))

METHODS: tuple[str, ...] = tuple(_READ["methods"])
SWITCHES: tuple[str, ...] = tuple(_READ["switches"])
STREAMS_METHOD: str = _READ["streams"]
AIMED_MODEL: str = _READ["aims"]["model"]
AIMED_SETTING: str = _READ["aims"]["setting"]
AIMS = tuple(Aim(**ratio) for ratio in _READ["aims"]["ratios"])
PREDICT_IMAGES: int = _READ["predict"]["images"]
PREDICT_AIM = Aim(**_READ["predict"]["aim"])
