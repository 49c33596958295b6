from __future__ import annotations

from lmr.bench.running.row import Row
from lmr.report.groups import RunGroup, gather
from lmr.report.selection import note_differences, note_left_out, tell_apart
from lmr.watch.settings import WatchSettings
from row_maker import CORRUPTIONS, complete, make_row

LMR = complete("lmr", "cifar10-c")
WATCH = {"spec": WatchSettings().spec}
HALF = {"backbone": {"name": "openai/clip-vit-base-patch16", "weights": "v" * 16, "dtype": "float16"}}


def gather_series(rows: list[Row]) -> list[RunGroup]:
    (series,) = gather(rows).values()
    return series


def gather_one(rows: list[Row]) -> list[str]:
    return [one.label for one in tell_apart(gather_series(rows))]


def test_labels_say_what_tells_series_apart() -> None:
    def row(spec: str, **changes: object) -> Row:
        return make_row("LMR", complete(spec, "cifar10-c"), "frost", 0.5, **changes)

    assert gather_one([row("lmr")]) == ["LMR"]
    assert gather_one([row("lmr"), row("lmr", batch_size=1)]) == ["LMR (batch 64)", "LMR (batch 1)"]
    assert gather_one([row("lmr(lr=0.5)"), row("lmr(lr=0.1)")]) == ["LMR (lr=0.5)", "LMR (lr=0.1)"]
    assert gather_one([row("lmr", images=5), row("lmr", images=7)]) == ["LMR (5 images)", "LMR (7 images)"]


def test_another_precision_is_named_and_not_its_digest() -> None:
    rows = [make_row("LMR", LMR, "frost", 0.5), make_row("LMR", LMR, "frost", 0.5, **HALF)]
    assert gather_one(rows) == ["LMR (float32)", "LMR (float16)"]
    other = {"backbone": HALF["backbone"] | {"weights": "u" * 16}}
    rows.append(make_row("LMR", LMR, "frost", 0.5, **other))
    assert gather_one(rows)[1:] == ["LMR (weights vvvvvvvv, float16)", "LMR (weights uuuuuuuu, float16)"]


def test_long_streams_have_short_names_that_differ() -> None:
    swapped = (CORRUPTIONS[0], CORRUPTIONS[2], CORRUPTIONS[1], *CORRUPTIONS[3:])
    rows = [
        make_row("LMR", LMR, "continual", 0.5, reset="never", domains=dict.fromkeys(order, 0.5))
        for order in (CORRUPTIONS, swapped)
    ]
    one, two = gather_one(rows)
    assert one != two
    assert one.startswith("LMR (gaussian_noise → … → jpeg_compression ")
    assert len(one) < 60


def test_lines_under_one_protocol_need_no_note() -> None:
    """Answering before or after the update is a trait of the method."""
    rows = [make_row("LMR", LMR, "frost", 0.5), make_row("TENT", complete("tent"), "frost", 0.5, emit="before")]
    assert note_differences(gather_series(rows)) == []
    assert note_differences([]) == []


def test_what_lines_differ_in_is_noted_unless_their_labels_say_it() -> None:
    rows = [make_row("LMR", LMR, "frost", 0.5), make_row("TENT", complete("tent"), "frost", 0.5, **HALF)]
    assert note_differences(gather_series(rows)) == ["The lines differ in dtype: float32 (LMR), float16 (TENT)."]
    same = [make_row("LMR", LMR, "frost", 0.5, batch_size=size) for size in (1, 2)]
    assert note_differences(tell_apart(gather_series(same))) == []


def test_what_is_not_shown_is_named_with_what_it_differs_in() -> None:
    rows = [make_row("LMR", LMR, "frost", 0.5, batch_size=size, images=size) for size in (1, 2, 3)]
    series = gather_series([*rows, make_row("TENT", complete("tent"), "frost", 0.5)])
    assert note_left_out(tell_apart(series[:1]), series) == [
        "Also run, not shown here: LMR (batch 2, 2 images; batch 3, 3 images), TENT."
    ]
    assert note_left_out(series, series) == []


def test_watched_runs_are_not_compared_with_plain_ones() -> None:
    rows = [make_row("LMR", LMR, "frost", 0.5), make_row("LMR, watched", LMR, "frost", 0.5, batch_size=1, watch=WATCH)]
    series = gather_series(rows)
    assert note_left_out(series[:1], series) == ["Also run, not shown here: LMR, watched."]
