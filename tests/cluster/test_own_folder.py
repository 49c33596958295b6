from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lmr.cluster.own_folder import PREFIX, OwnFolder
from predict_runs import posix

pytestmark = posix  # locks
KILLED = """
import os, sys, tempfile
tempfile.tempdir = sys.argv[1]
from lmr.cluster.own_folder import OwnFolder
(OwnFolder().path / "checkpoint").write_bytes(bytes(100))
os._exit(9)
"""


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_folder_of_a_killed_process_is_removed_by_the_next(tmp_path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False).returncode == 9
    (left,) = (path for path in tmp_path.glob(f"{PREFIX}*") if path.is_dir())
    assert (left / "checkpoint").exists()
    own = OwnFolder()
    assert {path.name for path in tmp_path.iterdir()} == {own.path.name, f"{own.path.name}.lock"}
    own.remove()
    assert list(tmp_path.iterdir()) == []


def test_folders_of_live_processes_and_of_others_stay(tmp_path: Path) -> None:
    one = OwnFolder()
    (tmp_path / f"{PREFIX}fresh").mkdir()  # of something else: it has no lock
    (tmp_path / "other").mkdir()
    two = OwnFolder()
    assert one.path.exists()
    own = {name for path in (one.path, two.path) for name in (path.name, f"{path.name}.lock")}
    assert {path.name for path in tmp_path.iterdir()} == own | {f"{PREFIX}fresh", "other"}
    one.remove()
    two.remove()
