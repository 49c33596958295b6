"""``lmr predict`` on files in two passes: answers, what needs one pass only, and runs that are killed in either."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import lmr
from lmr.apps.predict import run as run_module
from lmr.apps.predict.options import PredictOptions
from lmr.apps.predict.results import PredictSummary
from lmr.apps.predict.twice import predict_twice
from lmr.images.files import list_images, open_image
from predict_runs import LABELS, draw_pictures, read_lines, turn_grey

pytestmark = pytest.mark.usefixtures("tiny_models")
COUNT = 20


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return draw_pictures(tmp_path / "pictures", range(COUNT))


def predict(pictures: Path, out: Path | None, **options: Any) -> PredictSummary:
    usual = {"labels": LABELS, "batch_size": 8, "method": "lmr"}
    return predict_twice(pictures, PredictOptions(out=out, **usual | options))


def test_second_pass_answers_with_what_the_first_learnt(pictures: Path, tmp_path: Path) -> None:
    summary = predict(pictures, tmp_path / "out.jsonl", watch="off")
    backbone = lmr.load()
    method = lmr.create("lmr", backbone.classifier(LABELS), preset="auto")
    images = torch.stack([backbone.preprocess(open_image(pictures / f"img{k}.png")) for k in range(COUNT)])
    for batch in images.split(8):
        method.step(batch)
    expected = [p for batch in images.split(8) for p in method.step(batch).probabilities.max(1).values.tolist()]
    found = [line["probability"] for line in read_lines(tmp_path / "out.jsonl")]
    assert found == pytest.approx(expected, abs=1e-5)
    assert (summary.images, summary.passes, summary.adapted) == (COUNT, 2, COUNT)
    assert "in two passes" in str(summary)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "pictures"]


@pytest.mark.usefixtures("real_models")
def test_second_pass_of_the_default_adapts_from_where_the_images_turned_bad(tmp_path: Path) -> None:
    good = draw_pictures(tmp_path / "a", range(64))
    turn_grey(draw_pictures(tmp_path / "b", range(64, 160)))
    backbone = lmr.load()
    method = lmr.create("steady", backbone.classifier(LABELS), preset="auto")
    images = torch.stack([backbone.preprocess(open_image(path)) for path in list_images([good, tmp_path / "b"])])
    first = torch.cat([method.step(batch).logits for batch in images.split(64)])
    begun = int(method.state["onset"])
    assert 32 <= begun <= 72
    method.rewind()
    expected = torch.cat([method.step(batch).probabilities.max(1).values for batch in images.split(64)])
    assert not torch.equal(expected[begun:], first[begun:].softmax(1).max(1).values)
    out = tmp_path / "out.jsonl"
    summary = predict_twice([good, tmp_path / "b"], PredictOptions(labels=LABELS, out=out))
    assert (summary.passes, summary.adapted) == (2, 160 - begun)
    assert [line["probability"] for line in read_lines(out)] == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize("changes", [{"method": "steady"}, {"method": "zeroshot"}, {"passes": 1}])
def test_one_pass_where_a_second_changes_nothing(pictures: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    summary = predict(pictures, tmp_path / "out.csv", **changes)
    run_module.predict_images(
        pictures, PredictOptions(labels=LABELS, out=tmp_path / "one.csv", batch_size=8, **{"method": "lmr"} | changes)
    )
    assert (summary.passes, summary.out) == (1, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.csv", "out.csv", "pictures"]


@pytest.mark.parametrize("killed", [2, 3, 5])  # in the first pass, between them, in the second; they have three batches
def test_runs_that_are_killed_resume_in_either_pass(
    pictures: Path, tmp_path: Path, killed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict(pictures, tmp_path / "whole.jsonl")
    answer, count = run_module.PredictRun.answer, 0

    def die(self: Any, batch: Any) -> Any:
        nonlocal count
        count += 1
        if count > killed:
            raise RuntimeError("killed")
        return answer(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(run_module.PredictRun, "answer", die)
        with pytest.raises(RuntimeError, match="killed"):
            predict(pictures, tmp_path / "out.jsonl")
    predict(pictures, tmp_path / "out.jsonl", resume=True)
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "pictures", "whole.jsonl"]


def test_both_passes_and_the_comparison_encode_an_image_once(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that resumes in the second pass has no features, and gives the same bytes."""
    encoded, encode = list[int](), lmr.ZeroShot.encode

    def count(self: lmr.ZeroShot, images: torch.Tensor) -> torch.Tensor:
        encoded.append(len(images))
        return encode(self, images)

    monkeypatch.setattr(lmr.ZeroShot, "encode", count)
    summary = predict(pictures, tmp_path / "whole.jsonl", method="tda")
    assert (summary.passes, summary.tally.compared, sum(encoded)) == (2, 3, COUNT)
    answer, batches = run_module.PredictRun.answer, list[int]()

    def die(self: Any, batch: Any) -> Any:
        batches.append(len(batch))
        if len(batches) > 4:
            raise RuntimeError("killed")
        return answer(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(run_module.PredictRun, "answer", die)
        with pytest.raises(RuntimeError, match="killed"):
            predict(pictures, tmp_path / "out.jsonl", method="tda")
    encoded.clear()
    predict(pictures, tmp_path / "out.jsonl", method="tda", resume=True)
    assert encoded
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
