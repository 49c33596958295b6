"""The settings of a watch: checked, and written as a spec that makes the same ones."""

from __future__ import annotations

import pytest

from lmr import LmrError, Thresholds
from lmr.watch.settings import WatchSettings, read_watch


def test_spec_makes_the_same_settings() -> None:
    settings = WatchSettings("report", 8, reset_every=5, thresholds=Thresholds(drift=0.1, memory=12))
    assert read_watch(settings.spec) == settings
    assert read_watch("on") == WatchSettings() == read_watch("watch()")
    assert read_watch("report") == WatchSettings("report")
    assert read_watch("off") is None
    assert read_watch(WatchSettings().spec) == WatchSettings()
    assert read_watch("watch(every=8, snapshots=2, spread=0.5)") == WatchSettings(
        every=8, snapshots=2, thresholds=Thresholds(spread=0.5)
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("maybe", "Expected on, report, off or watch"),
        ("watch(evry=3)", "no argument 'evry'. Did you mean 'every'"),
        ("watch(every=0)", "'every' of a watch of at least 1"),
        ("watch(every=1.5)", "Expected a whole number or None for 'every'"),
        ("watch(mode='off')", "'on' or 'report'"),
        ("watch(memory=0)", "'memory' of a watch to be at least 1"),
        ("watch(drift=-1)", "'drift' of a watch to be at least 0"),
        ("watch(snapshot_mb=-1.0)", "'snapshot_mb'"),
        ("watch(", "Cannot read"),
    ],
)
def test_what_cannot_be_used_gets_a_message(text: str, message: str) -> None:
    with pytest.raises(LmrError, match=message):
        read_watch(text)
