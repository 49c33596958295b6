"""``python -m lab.cost --engines``: every engine has the same model, and its answers are beside its time."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from lab.cost.__main__ import main
from lab.cost.engines import Half, compare_engines
from lab.cost.measure import CostRequest
from lab.cost.model import ModelSource, find_measured_model

pytest.importorskip("onnxruntime")


def test_rounding_for_the_comparison_leaves_the_model_alone() -> None:
    model = find_measured_model(ModelSource(random="small"))
    clip, images = model.make_classifier(4, 20), model.draw_images(4)
    before = clip(images)
    assert 0 < (Half(clip)(images) - before).abs().max() < 1
    assert (clip(images) == before).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler of torch
def test_table_has_every_engine_with_its_answers() -> None:
    table = compare_engines(CostRequest(ModelSource(random="small"), ("lmr",), 4, classes=20, rounds=1))
    engines = ["lmr", "torch.compile", "onnxruntime", *(["openvino"] if find_spec("openvino") else [])]
    for engine in [*engines, "transformers"]:
        line = next(line for line in table.splitlines() if line.startswith(f"{engine} float32"))
        share, apart = line.split()[-3:-1]
        assert share == "100.0%"
        assert float(apart) < 1e-3
    assert "step of LMR, bfloat16" in table
    assert main(["--random", "nothing", "--engines"]) == 2
