from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmr.bench.running.row import Row
from lmr.report.groups import RunGroup, gather, note_batches, share_seeds, tell_apart
from lmr.report.runs import read_runs
from lmr.report.table import pivot
from lmr.report.traits import find_changes
from lmr.watch.settings import WatchSettings
from row_maker import complete, make_row, make_samples, write_runs

LMR = complete("lmr", "cifar10-c")


def gather_one(rows: list[Row]) -> list[str]:
    return [one.label for one in tell_apart(gather_series(rows))]


def gather_series(rows: list[Row]) -> list[RunGroup]:
    (series,) = gather(rows).values()
    return series


def average(one: RunGroup, domains: list[str], metric: str = "accuracy") -> float | None:
    cells = pivot({(0, metric): one.enter(domains, metric)})
    return cells[0, metric].value if cells else None


def test_folders_join_and_a_run_in_both_counts_once(tmp_path: Path) -> None:
    one, two = make_row("LMR", LMR, "frost", 0.5), make_row("LMR", LMR, "fog", 0.6)
    write_runs(tmp_path / "a", [one])
    write_runs(tmp_path / "b", [one, two])
    runs = read_runs([tmp_path / "a", tmp_path / "b"])
    assert {row.domain for row in runs.rows} == {"frost", "fog"}
    samples = runs.samples(two)
    assert samples is not None
    np.testing.assert_array_equal(samples["predicted"], make_samples(two)["predicted"])


def test_a_run_of_a_method_that_cannot_be_read_is_left_out_with_a_word(tmp_path: Path) -> None:
    odd = dataclasses.replace(make_row("LMR", LMR, "fog", 0.5), run="f" * 16, spec="lmr(1 +")
    write_runs(tmp_path, [make_row("LMR", LMR, "frost", 0.5), odd])
    runs = read_runs([tmp_path])
    assert [row.domain for row in runs.rows] == ["frost"]
    assert "ffffffffffffffff" in runs.notes[0]


def test_missing_and_damaged_samples_are_said_once(tmp_path: Path) -> None:
    rows = [make_row("LMR", LMR, domain, 0.5) for domain in ("frost", "fog")]
    write_runs(tmp_path, rows)
    (tmp_path / "samples" / f"{rows[0].run}.npz").unlink()
    (tmp_path / "samples" / f"{rows[1].run}.npz").write_bytes(b"not a zip")
    runs = read_runs([tmp_path])
    read = [runs.samples(row) for row in rows + rows]
    assert read == [None] * 4
    assert len(runs.notes) == 2


def test_seeds_share_a_series_and_nothing_else_does() -> None:
    base = make_row("LMR", LMR, "frost", 0.5)
    ((first,),) = gather([base, make_row("LMR", LMR, "frost", 0.7, seed=2)]).values()
    assert first.seeds == [1, 2]
    assert first.enter(["frost"])["value"].tolist() == [50.0, 70.0]
    changes: list[dict[str, object]] = [
        {"images": 10}, {"data_digest": "other"}, {"severity": 3}, {"dataset": "cifar100-c"},
        {"order": {"kind": "sorted"}}, {"reset": "never"}, {"prompts": {**base.prompts, "digest": "other"}},
        {"backbone": {**base.backbone, "weights": "other"}}, {"backbone": {**base.backbone, "dtype": "bfloat16"}},
    ]  # fmt: skip
    for change in changes:
        assert len(gather([base, make_row("LMR", LMR, "frost", 0.6, **change)])) == 2
    for change in ({"batch_size": 1}, {"emit": "before"}):
        assert len(gather_one([base, make_row("LMR", LMR, "frost", 0.6, **change)])) == 2
    streams = [("mixed", ("frost", "fog")), ("continual", ("frost", "fog")), ("continual", ("fog", "frost"))]
    rows = [make_row("LMR", LMR, kind, 0.5, reset="never", domains=dict.fromkeys(o, 0.5)) for kind, o in streams]
    assert len(gather([base, *rows])) == 4


def test_domains_with_digests_of_their_own_are_one_series() -> None:
    """A digest is of the files that a run reads; only two of the same domain say that the pictures are others."""
    rows = [make_row("LMR", LMR, domain, 0.5, data_digest=domain) for domain in ("frost", "fog")]
    assert gather_one(rows) == ["LMR"]
    official, made = {"corruptions": "official", "classes": "10"}, {"corruptions": "made by lmr", "classes": "10"}
    rows = [make_row("LMR", LMR, domain, 0.5, data_digest=domain, protocol=official) for domain in ("frost", "fog")]
    rows += [make_row("LMR", LMR, "fog", 0.5, data_digest="other", protocol=made)]
    assert [one.domains for (one,) in gather(rows).values()] == [["frost", "fog"], ["fog"]]


def test_labels_are_those_of_the_plans() -> None:
    rows = [make_row(label, LMR, domain, 0.5) for label, domain in (("Full", "frost"), ("LMR", "fog"))]
    assert gather_one(rows) == ["LMR"]
    assert gather_one([make_row("mine", LMR, "frost", 0.5), make_row("x", LMR, "fog", 0.5)]) == ["mine"]
    watch: dict[str, Any] = {"watch": {"spec": WatchSettings(every=8).spec}}
    rows += [make_row(f"{label}, watched (every=8)", LMR, "frost", 0.5, **watch) for label in ("Full", "LMR")]
    assert gather_one(rows) == ["LMR", "LMR, watched (every=8)"]


def test_a_stream_through_all_domains_has_a_number_for_each() -> None:
    domains = {"frost": 0.5, "fog": 0.6}
    row = make_row("LMR", LMR, "continual", 0.55, reset="never", domains=domains, nll=1.5)
    ((setting, (series,)),) = gather([row]).items()
    assert "continual" in setting.describe()
    assert average(series, ["frost", "fog"], "nll") == 1.5
    assert series.domains == ["frost", "fog"]
    assert average(series, ["frost", "fog"]) == pytest.approx(55.0)
    assert series.find("fog") is row


def test_changes_are_counted_from_the_nearest_preset() -> None:
    assert find_changes(LMR) == {}
    assert find_changes(complete("lmr(am=False)", "cifar10-c")) == {"am": False}
    assert find_changes(complete("tent(lr=0.5)", "imagenet")) == {"lr": 0.5}
    assert find_changes("somebody_elses(x=1)") == {}


def test_lines_are_compared_on_the_seeds_they_share() -> None:
    """Another seed is another order: three seeds of one method beside one of another would compare the orders."""
    rows = [make_row("LMR", LMR, d, 0.5, seed=s) for d in ("frost", "fog") for s in (1, 2, 3)]
    rows += [make_row("TENT", complete("tent"), d, 0.5, seed=s) for d, s in (("frost", 1), ("fog", 1), ("frost", 2))]
    (series,) = gather(rows).values()
    shared, notes = share_seeds(series)
    assert [one.seeds for one in shared] == [[1], [1]]
    assert "seeds 2, 3" in notes[0]
    assert [one.seeds for one in share_seeds(series, ["frost"])[0]] == [[1, 2], [1, 2]]
    assert share_seeds(series[:1]) == (series[:1], [])
    assert share_seeds([]) == ([], [])


def test_lines_with_one_label_say_what_tells_them_apart() -> None:
    def row(spec: str, **changes: object) -> Row:
        return make_row("LMR", complete(spec, "cifar10-c"), "frost", 0.5, **changes)

    assert gather_one([row("lmr"), row("lmr", batch_size=1)]) == ["LMR (batch=64)", "LMR (batch=1)"]
    assert gather_one([row("lmr(lr=0.5)"), row("lmr(lr=0.1)")]) == ["LMR (lr=0.5)", "LMR (lr=0.1)"]


def test_batch_sizes_are_noted_if_they_differ() -> None:
    rows = [make_row(name, complete(name), "frost", 0.5, batch_size=size) for name, size in (("lmr", 64), ("tent", 1))]
    assert note_batches(gather_series(rows)) == ["Batch sizes: 1 (tent); 64 (lmr)."]
    assert note_batches(gather_series(rows[:1])) == []


def test_settings_that_a_watch_no_longer_has_do_not_hide_a_run(tmp_path: Path) -> None:
    specs = ("watch(sharp=1, every=8)", "watch(every=fast)")
    rows = [make_row("LMR, watched", LMR, "frost", 0.5, watch={"spec": spec}) for spec in specs]
    runs = read_runs([write_runs(tmp_path, rows, samples=False)])
    assert [row.watch_text for row in runs.rows] == [", watched (every=8)"]
    assert len(runs.notes) == 1
