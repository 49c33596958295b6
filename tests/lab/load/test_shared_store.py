"""The small form of the experiment with PostgreSQL and nginx, and what the larger ones count."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from lab.load.bench import LoadBench
from lab.load.shared_store import MISSING, measure_shared_store, read_cpu_seconds


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_a_replica_and_the_database_are_killed_and_nothing_is_lost_or_applied_twice(tmp_path: Path) -> None:
    result = measure_shared_store(LoadBench(tmp_path, short=True))
    figures = result.figures
    logs = "\n".join(path.read_text()[-2000:] for path in tmp_path.glob("*.log"))
    assert result.verdict == "met", (result.found, figures["wrong"], logs)
    assert (figures["kills"], figures["database_kills"], figures["listed_by_one"]) == (1, 1, figures["cameras"])
    assert figures["acknowledged"] > 0


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_processor_time_is_that_of_the_system() -> None:
    used = time.process_time()
    assert read_cpu_seconds(os.getpid()) >= used - 0.05
    assert read_cpu_seconds(2**22 + 1) == 0.0
