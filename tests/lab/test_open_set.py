"""The comparison of scores: its measures by their definitions, and a small run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lab import open_set


def test_measures_are_those_of_their_definitions() -> None:
    generator = np.random.default_rng(0)
    known, unknown = generator.integers(3, 12, 60) / 10, generator.integers(0, 9, 40) / 10
    pairs = [(k > u) + 0.5 * (k == u) for k in known for u in unknown]
    assert open_set.measure_auroc(known, unknown) == pytest.approx(np.mean(pairs))
    best = max(limit for limit in known if (known >= limit).mean() >= 0.95)
    assert open_set.measure_fpr95(known, unknown) == pytest.approx((unknown >= best).mean())


def test_a_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (40, 32, 32, 3), np.uint8)
    np.savez(tmp_path / "cifar10_test.npz", images=images)
    np.savez(tmp_path / "cifar100_test.npz", images=images, coarse=np.arange(40) % 20)
    assert open_set.main(["--data", str(tmp_path), "--images", "16", "--domains", "clean", "fog"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split(" | ")[:2] for row in rows[2:]] == [
        [f"| {domain}", kind] for domain in ("clean", "fog") for kind in open_set.KINDS
    ]
    assert all(row.count("|") == rows[0].count("|") for row in rows)


def test_missing_data_is_an_error(tmp_path: Path) -> None:
    assert open_set.main(["--data", str(tmp_path)]) == 2
