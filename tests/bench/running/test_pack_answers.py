"""Packed answers: nothing is lost, little is needed, and damage is noticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lmr
from lmr.bench.running.pack import (
    STREAM_KEYS,
    name_file,
    pack_runs,
    pack_samples,
    read_answers,
    read_streams,
    write_packed,
    write_streams,
)
from lmr.bench.running.row import read_samples
from pack_maker import write_runs
from row_maker import make_row

KEPT = ("index", "true", "predicted", "domain")


@pytest.mark.parametrize("classes", [2, 300, 70_000])
def test_images_may_come_again_and_in_several_domains(classes: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(classes)
    samples = {name: rng.integers(0, 5 if name != "predicted" else classes, 64) for name in KEPT}
    row = make_row("LMR", "lmr()", "mixed", 0.5, images=64)
    run, stream = pack_samples(samples)
    (tmp_path / "answers").mkdir()
    write_streams(tmp_path, {run.stream: stream})
    write_packed(tmp_path / "answers" / name_file(row), {row.run: run})
    found = read_answers(tmp_path, row)
    assert all(np.array_equal(found[name], samples[name]) for name in KEPT)


def test_runs_on_the_same_images_in_the_same_order_share_a_stream(tmp_path: Path) -> None:
    rows = write_runs(tmp_path / "runs", seeds=(1, 2, 3))
    outcome = pack_runs([tmp_path / "runs"], tmp_path / "pack")
    assert len(read_streams(tmp_path / "pack")) == 3  # of 18 runs: one for each seed
    assert sorted(path.name for path in (tmp_path / "pack" / "answers").iterdir()) == [
        "cifar10-c-contrast-5.npz.xz",
        "cifar10-c-fog-5.npz.xz",
    ]
    assert outcome.runs == len(rows) == 18


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "foreign"])
@pytest.mark.parametrize("name", ["streams.npz.xz", "answers/cifar10-c-fog-5.npz.xz"])
def test_damage_is_noticed(damage: str, name: str, tmp_path: Path) -> None:
    row, *_ = write_runs(tmp_path / "runs")
    pack_runs([tmp_path / "runs"], tmp_path / "pack")
    path = tmp_path / "pack" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    changed = {"flip": bytes(content), "cut": bytes(content[:-9]), "empty": b"", "foreign": b"version https://git-lfs"}
    path.write_bytes(changed[damage])
    with pytest.raises(lmr.LmrError, match=rf"{path.name}' is damaged .*delete the pack and make it again"):
        read_answers(tmp_path / "pack", row)


def test_missing_parts_are_named(tmp_path: Path) -> None:
    row, *_ = write_runs(tmp_path / "runs")
    pack_runs([tmp_path / "runs"], tmp_path / "pack")
    other = make_row("LMR", "lmr()", "fog", 0.5, seed=9)
    with pytest.raises(lmr.LmrError, match=f"no answers of the run {other.run} in the pack"):
        read_answers(tmp_path / "pack", other)
    streams = read_streams(tmp_path / "pack")
    digest = pack_samples(read_samples(tmp_path / "runs", row.run))[0].stream
    write_streams(tmp_path / "pack", {key: value for key, value in streams.items() if key != digest})
    with pytest.raises(lmr.LmrError, match=f"no stream {digest} of the run {row.run}"):
        read_answers(tmp_path / "pack", row)
    write_streams(tmp_path / "pack", {digest: {key: streams[digest][key] for key in STREAM_KEYS[:2]}})
    with pytest.raises(lmr.LmrError, match="a part of a stream is missing"):
        read_answers(tmp_path / "pack", row)
