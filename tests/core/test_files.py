"""Files and folders appear whole or not at all; texts are read within limits."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lmr.core.errors import LmrError, MissingFile
from lmr.core.files import make_folder, read_json, read_text, write_atomically


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_appears_when_it_is_finished(tmp_path: Path) -> None:
    with make_folder(tmp_path / "out") as aside:
        (aside / "a").write_text("1")
        assert not (tmp_path / "out").exists()
    assert list_names(tmp_path) == ["out"]
    assert (tmp_path / "out" / "a").read_text() == "1"


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with make_folder(tmp_path / "out") as aside:
            (aside / "a").write_text("1")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list_names(tmp_path) == []


def test_a_file_that_is_a_link_is_written_behind_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "state")
    for content in (b"one", b"two"):
        write_atomically(tmp_path / "link", content)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "real" / "state").read_bytes() == content
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["state"]


def test_text_comes_from_files_and_pipes(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_bytes(b"\xef\xbb\xbfcat\r\ndog\rship")
    assert read_text(tmp_path / "names.txt") == "cat\ndog\nship"
    os.mkfifo(tmp_path / "pipe")
    script = f"sleep 0.2; exec > {tmp_path / 'pipe'}; sleep 0.2; echo cat; sleep 0.2; echo dog"
    with subprocess.Popen(["sh", "-c", script]):
        assert read_text(tmp_path / "pipe") == "cat\ndog\n"


def test_what_is_no_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmr.core.files._WRITER_SECONDS", 0.1)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LmrError, match="nothing came from this pipe"):
        read_text(tmp_path / "pipe")
    with pytest.raises(LmrError, match="more than"):
        read_text("/dev/zero")
    with pytest.raises(LmrError, match="directory"):
        read_text(tmp_path)
    with pytest.raises(MissingFile):
        read_text("missing")


@pytest.mark.parametrize(
    ("text", "reason"),
    [("[", "Expecting value"), ("1" * 10_001, "too many digits"), ("[" * 100_000, "nested too deeply")],
)
def test_json_that_cannot_be_read_has_a_sentence_of_its_own(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "names.json").write_text(text)
    with pytest.raises(LmrError, match=reason):
        read_json(tmp_path / "names.json", "the names in")
