"""The bytes of a commit are those of the state, twice, in whole pages."""

from __future__ import annotations

import pytest

from lab.scale.commit_bytes import measure_commit_bytes


@pytest.mark.parametrize("size", [20_000, 400_000])
def test_a_state_is_written_to_the_log_and_to_its_place(size: int) -> None:
    written = measure_commit_bytes(size)
    assert 2 * size < written < 2 * 1.03 * size + 20_000
    assert measure_commit_bytes(size) == written
