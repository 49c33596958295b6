"""What 0.2.0 wrote is still read: states, rows, and the hashes by which a bench knows its finished runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import small_world
import torch

import lmr
from lmr.bench.plans.plan import read_plan
from lmr.bench.plans.task import list_tasks
from lmr.core.state import read_state
from lmr.report.report import make_report

OLD = Path(__file__).with_name("v0_2_0")
ANSWERS = json.loads((OLD / "answers.json").read_text(encoding="utf-8"))
RUNS = json.loads((OLD / "runs.json").read_text(encoding="utf-8"))


class ThenClassifier(lmr.ZeroShot):
    """A classifier with the digests of the machine that wrote the states.

    The prototypes are products of matrices, whose last digits differ between processors, and a classifier that was made
    from prototypes alone has their digest. What the digest is made of has a test of its own.
    """

    then: dict[str, str]

    @property
    def fingerprint(self) -> dict[str, str]:
        """The digests of then."""
        return self.then


@pytest.mark.parametrize("name", ANSWERS)
def test_state_still_loads_and_answers_as_it_did(name: str) -> None:
    facts, path = ANSWERS[name], OLD / f"{name}.state"
    streams = facts.get("streams", 1)
    classifier = small_world.make_classifier()
    written = read_state(path)[1]
    assert written["backbone"] == classifier.fingerprint["backbone"]
    classifier.__class__ = ThenClassifier
    classifier.then = {part: written[part] for part in ("backbone", "classes")}
    method = lmr.create(facts["spec"], classifier, streams=streams)
    notes = method.load(path)
    assert notes == ({"by": "0.2.0"} if streams == 1 else {})
    images = small_world.make_images(9)
    ids = None if streams == 1 else [k % streams for k in range(len(images))]
    expected = torch.tensor(facts["logits"], dtype=torch.float64)
    torch.testing.assert_close(method.predict(images, streams=ids).logits, expected, rtol=1e-9, atol=1e-9)


def test_digest_of_classes_is_what_it_was() -> None:
    encoder = torch.nn.Linear(4, 4, bias=False, dtype=torch.float64)
    classifier = lmr.ZeroShot(encoder, torch.eye(3, 4, dtype=torch.float64), 20.0)  # exact on every machine
    assert classifier.fingerprint["classes"] == "13dc106ae5d7395be76add448d70c22e4ec3d123ecf7aeec170faa4ae3df9227"


@pytest.mark.parametrize("name", ANSWERS)
def test_method_comes_to_the_state_it_came_to(name: str) -> None:
    """The same three batches: what is learnt now is what 0.2.0 learnt."""
    facts = ANSWERS[name]
    streams = facts.get("streams", 1)
    method = lmr.create(facts["spec"], small_world.make_classifier(), streams=streams)
    ids = None if streams == 1 else [k % streams for k in range(8)]
    for batch in range(3):
        method.step(small_world.make_images(batch), streams=ids)
    expected = torch.tensor(facts["logits"], dtype=torch.float64)
    answer = method.predict(small_world.make_images(9), streams=ids)
    torch.testing.assert_close(answer.logits, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("plan", ["pocket-efficiency", "pocket-margin-recovery", "pocket-failure-patterns"])
def test_finished_runs_are_recognised(plan: str) -> None:
    assert sorted(task.run for task in list_tasks([read_plan(plan)])) == sorted(RUNS[plan])


def test_rows_are_still_reported(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    shutil.copy(OLD / "rows.jsonl", tmp_path / "runs")
    make_report([tmp_path / "runs"], tmp_path / "report")
    table = (tmp_path / "report" / "tables" / "accuracy-pocket-c-pocket-s5.csv").read_text(encoding="utf-8")
    for label in ("zero-shot", "TDA", "ECALP", "TENT", "ETA", "BATCLIP", "MINT", "BITTA", "LMR"):
        assert label in table
    assert "58.33" in table  # MINT's mean, as 0.2.0 printed it
