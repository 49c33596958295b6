from __future__ import annotations

import json

from lab.load.bench import LoadResult, format_load_table, judge


def test_everything_must_hold() -> None:
    assert judge(True, True) == "met"
    assert judge(True, False) == "missed"


def test_rows_are_shown_with_their_verdict_and_kept_whole() -> None:
    result = LoadResult("overload", "pocket", "goodput ≥ 0.9", "0.5", "missed", {"share": 0.5})
    assert format_load_table([result]).splitlines()[2] == "| overload | pocket | goodput ≥ 0.9 | 0.5 | missed |"
    assert json.loads(result.to_json())["figures"] == {"share": 0.5}
