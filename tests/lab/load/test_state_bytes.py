from __future__ import annotations

from pathlib import Path

import pytest

from lab.load.bench import LoadBench
from lab.load.postgres_server import MISSING
from lab.load.state_bytes import VIT, measure_state_bytes


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_log_has_the_state_and_the_stored_form_changes_nothing(tmp_path: Path) -> None:
    result = measure_state_bytes(LoadBench(tmp_path, short=True))
    assert result.verdict == "met"
    for name in ("photo", VIT):
        assert result.figures["log_bytes"][name] > result.figures["state_bytes"][name]
    for tried in result.figures["forms"].values():
        assert tried["as stored"]["bytes"] <= tried["float32"]["bytes"]
        assert tried["moments in bfloat16"]["bytes"] < tried["float32"]["bytes"]
