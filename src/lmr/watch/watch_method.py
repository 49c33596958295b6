"""watch: the function that makes a watched method from a method and a few words."""

from __future__ import annotations

from lmr.core.method import Method
from lmr.watch.watch_settings import Mode, Thresholds, WatchSettings
from lmr.watch.watched import Watched


def watch(
    method: Method,
    *,
    mode: Mode = "on",
    every: int | None = None,
    signals: bool = True,
    reset_every: int = 0,
    canaries: int = 32,
    canary_mb: float = 256.0,
    snapshots: int = 4,
    snapshot_mb: float = 256.0,
    thresholds: Thresholds | None = None,
) -> Watched:
    """Watch a method: notice without labels when a stream's adaptation goes wrong, and roll it back.

    ``every``: one image in so many is compared with the frozen model while nothing is suspected; if it is not given, 16
    or as many more as the cost of a step asks for. ``mode="report"`` reports and never acts, nor does ``reset_every``.
    ``reset_every=N`` forgets everything every N steps of a stream that is not paused, with ``signals=False`` as the
    only guard. Up to ``canaries`` images of each stream are kept to check it against, of all streams together at most
    ``canary_mb`` megabytes, and of each stream up to ``snapshots`` of its state, of at most ``snapshot_mb`` megabytes.

    Examples:
        >>> import lmr, torch
        >>> clip = lmr.load("pocket").classifier(["red ring", "blue star"])
        >>> watched = lmr.watch(lmr.create("lmr", clip), every=8)
        >>> watched.step(torch.randn(4, 3, 32, 32)).info["health"]
        {0: 'ok'}
    """
    settings = WatchSettings(
        mode, every, signals, reset_every, canaries, canary_mb, snapshots, snapshot_mb, thresholds or Thresholds()
    )
    return Watched(method, settings)
