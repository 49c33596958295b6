"""lmr predict --unknown: no label for images that belong to none of the classes."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch

import lmr
from lmr.core.known import score_known
from lmr.images.files import open_image
from predict_runs import LABELS, draw_pictures, predict_images


def find_scores(names: list[str]) -> torch.Tensor:
    backbone = lmr.load()
    with torch.no_grad():
        return score_known(
            backbone.classifier(LABELS)(torch.stack([backbone.preprocess(open_image(name)) for name in names]))
        )


def test_unknown_images_have_no_label_in_both_formats(here: Path) -> None:
    draw_pictures(here / "a", range(12))
    names = [f"a/img{k}.png" for k in range(12)]
    scores = find_scores(names)
    limit = round(scores.median().item(), 4)
    for out in ("o.jsonl", "o.csv"):
        summary = predict_images("a", LABELS, out=out, state=f"{out}.kept", unknown=limit, batch_size=5)
        below = int((scores < limit).sum())
        assert summary.answers["unknown"] == below
        assert f"{below} unknown" in str(summary)
        before = (here / out).read_bytes()
        again = predict_images("a", LABELS, out=out, state=f"{out}.kept", unknown=limit, batch_size=5, resume=True)
        assert again.answers == summary.answers
        assert (here / out).read_bytes() == before
        with pytest.raises(lmr.LmrError, match="had --unknown"):
            predict_images("a", LABELS, out=out, state=f"{out}.kept", batch_size=5, resume=True, unknown=0.1)
    lines = [json.loads(line) for line in (here / "o.jsonl").read_text().splitlines()]
    assert [line["label"] is None for line in lines] == (scores < limit).tolist()
    assert [line["known"] for line in lines] == pytest.approx(scores.tolist(), abs=1e-5)
    with open("o.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] == "unknown" for row in rows] == (scores < limit).tolist()
    assert [float(row["known"]) for row in rows] == pytest.approx(scores.tolist(), abs=1e-5)
