"""The work folder: answers from elsewhere are taken over in order, and merged whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmr.apps.predict.stream_parts import StreamParts
from lmr.core.errors import LmrError


@pytest.fixture
def parts(tmp_path: Path) -> StreamParts:
    made = StreamParts(tmp_path / "o.jsonl")
    made.begin({"--top": "5"})
    return made


def test_answers_from_elsewhere_continue_those_that_are_there(parts: StreamParts) -> None:
    assert parts.read(0) is None
    assert parts.extend(0, 0, b"one\n", b"s1")
    assert parts.extend(0, 4, b"two\n", b"s2")
    assert parts.extend(0, 4, b"2\n", b"s2")  # told again
    assert parts.read(0) == (b"one\n2\n", b"s2")
    assert not parts.extend(0, 7, b"four\n", b"s4")
    assert parts.read(0) == (b"one\n2\n", b"s2")


@pytest.mark.parametrize("keep", [True, False])
def test_finished_stream_has_its_answers_and_its_state_only_if_asked_for(parts: StreamParts, keep: bool) -> None:
    parts.extend(3, 0, b'{"path": "a", "label": "x"}\n', b"s")
    assert not parts.is_finished(3)
    parts.finish(3, keep)
    assert parts.is_finished(3)
    assert parts.read(3) is None
    assert parts.progress(3).exists() == keep
    assert [line.label for line in parts.read_lines(3)] == ["x"]


def test_merge_that_fails_changes_nothing(parts: StreamParts, monkeypatch: pytest.MonkeyPatch) -> None:
    parts.out.write_text("old\n")
    parts.extend(0, 0, b"new\n", b"s")
    parts.finish(0, False)

    def refuse(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", refuse)
    with pytest.raises(LmrError, match=r"No space left on device\. Nothing is lost: when there is room"):
        parts.merge([0])
    assert parts.out.read_text() == "old\n"
    monkeypatch.undo()
    parts.merge([0])
    assert parts.out.read_text() == "new\n"
    parts.remove()
    assert not parts.folder.exists()


def test_another_run_is_not_continued(parts: StreamParts) -> None:
    parts.check({"--top": "5"})
    with pytest.raises(LmrError, match=r"not finished and had --top 5, not 3; give the same command to continue it"):
        parts.check({"--top": "3"})
