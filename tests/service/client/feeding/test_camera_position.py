from __future__ import annotations

from pathlib import Path

import pytest

from lmr.core.errors import LmrError
from lmr.service.client.feeding.camera_position import CameraPosition, read_position, write_position


def test_a_position_survives_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "position.json"
    start = read_position(path, "video", "cam")
    assert (start.last, start.pending, start.frames) == (None, (), 0)
    sent = start.announce(["0", "1"])
    write_position(path, sent)
    assert read_position(path, "video", "cam") == sent
    done = sent.finish(2)
    write_position(path, done)
    assert read_position(path, "video", "cam") == done
    assert (done.last, done.pending, done.frames) == ("1", (), 2)


def test_keys_follow_from_run_stream_and_places() -> None:
    start = CameraPosition("video", "cam")
    first = start.announce(["0", "1"])
    assert first.key == start.announce(["0", "1"]).key
    others = [start.announce(["0"]), start.announce(["1", "2"]), CameraPosition("video", "cam").announce(["0", "1"])]
    others.append(CameraPosition("video", "other", start.run).announce(["0", "1"]))
    assert len({first.key, *(one.key for one in others)}) == 5


def test_positions_of_others_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "position.json"
    write_position(path, CameraPosition("video", "cam"))
    with pytest.raises(LmrError, match="is that of 'video' as stream 'cam', not of 'other' as 'cam'"):
        read_position(path, "other", "cam")
    for content in ("", "[]", "{}", '{"pending": 3}', "\x00"):
        path.write_text(content)
        with pytest.raises(LmrError, match="Cannot read the position"):
            read_position(path, "video", "cam")
