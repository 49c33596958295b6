from __future__ import annotations

import io
from pathlib import Path

import pytest

from lmr.apps.predict.streams import ImageStream
from lmr.cluster.predicting.shard_pool import Shard, ShardEvent, ShardJob
from lmr.cluster.predicting.shard_view import ShardView

STREAMS = [ImageStream(number, f"cam{number}", (Path("x"),) * 4) for number in range(2)]
JOB = ShardJob(Shard(1, tuple(STREAMS)))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_line_per_finished_stream_says_where_and_what_is_left() -> None:
    screen = io.StringIO()
    view = ShardView(STREAMS, screen, lambda worker: f"node{worker}")
    view.show(ShardEvent("progress", 0, JOB, "cam0", 2))
    view.show(ShardEvent("stream", 0, JOB, "cam0"))
    view.show(ShardEvent("message", 0, JOB, "Something."))
    view.show(ShardEvent("failed", 0, JOB, "A reason."))
    view.show(ShardEvent("done", 0, JOB))
    assert screen.getvalue().splitlines() == [
        "[1/2] node0  shard 2  cam0: 4 images (1 stream with 4 images left)",
        "lmr: Something.",
        "lmr: shard 2 failed: A reason.",
    ]


def test_terminal_shows_what_each_node_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    screen = Terminal()
    view = ShardView(STREAMS, screen, lambda worker: f"node{worker}")
    view.show(ShardEvent("progress", 1, JOB, "cam1", 3))
    assert view.bars.texts == ["3 of 8 images, 2 streams left", "node1  shard 2  cam1: 3 of 4 images"]
    view.close()
    assert "node1  shard 2  cam1: 3 of 4 images" in screen.getvalue()


def test_bar_of_a_worker_that_died_is_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its images would be counted twice when another worker continues the stream."""
    monkeypatch.setenv("TERM", "xterm")
    view = ShardView(STREAMS, Terminal(), lambda worker: f"node{worker}")
    view.show(ShardEvent("progress", 0, JOB, "cam1", 3))
    view.show(ShardEvent("message", 0, JOB, "A run starts again from its checkpoint."))
    assert view.bars.texts == ["0 of 8 images, 2 streams left"]
    view.show(ShardEvent("progress", 1, JOB, "cam1", 2))
    view.show(ShardEvent("message", -1, ShardJob(Shard(2, ())), "About another shard."))
    assert view.bars.texts[0] == "2 of 8 images, 2 streams left"
    view.close()
