"""A method in a file outside the package, which also adapts the text tower: found, run, reported and measured."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lmr
from lmr.bench.plans.plan import Plan, parse_plan
from lmr.bench.plans.task import list_tasks
from lmr.bench.running.bench import run_bench
from lmr.bench.running.row import read_rows
from lmr.bench.running.run import run_task

LABEL = "Two towers"
CODE = """
import torch
from torch import nn
from torch.nn import functional as F

from lmr import Card, Method, NormBank, Preset, Step, Tower, register

CARD = Card(
    label="Two towers",
    source="a temporary file",
    year=2031,
    presets={"default": Preset({}, "its own"), "tiny": Preset({"lr": 1e-5}, "for tests", batch_size=4)},
)


@register("mine", CARD)
class Mine(Method):
    '''Less entropy by the norms of both towers; answers after the step.'''

    towers = (Tower.IMAGE, Tower.TEXT)
    emission = "after"

    lr: float = 1e-3

    def prepare(self):
        self.bank = NormBank(nn.ModuleList([self.classifier.encoder, self.classifier.text.tower]))

    @property
    def trainable(self):
        return self.bank.size

    def begin(self):
        return {"norms": self.bank.start}

    def adapt(self, images, state, streams):
        rows = state["norms"].clone().requires_grad_()
        with torch.enable_grad():
            logits = self.compare(images, rows)
            entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
            (gradient,) = torch.autograd.grad(entropy, rows)
        new = {"norms": (rows - self.lr * gradient).detach()}
        with torch.no_grad():
            return Step(self.answer(images, new, streams), new, {"entropy": entropy.detach().view(1)})

    def answer(self, images, state, streams):
        return self.compare(images, state["norms"])

    def compare(self, images, rows):
        with self.bank.serve(rows):
            features = F.normalize(self.classifier.encode(images), dim=-1)
            prototypes = self.classifier.text.prototypes(slice(0, self.classifier.classes))
            return self.classifier.logits(features @ prototypes.T)
"""
SMALL = {"datasets": "photo-c", "backbones": "photo", "corruptions": ["fog", "frost"], "images": 24, "batch_sizes": 8}
WORDS = [
    "--datasets", "photo-c", "--backbones", "photo", "--corruptions", "fog", "--images", "16", "--batch-sizes", "8",
    "--workers", "1",
]  # fmt: skip


@pytest.fixture
def mine(tmp_path: Path, own_methods: None) -> Path:
    """The file."""
    file = tmp_path / "own code" / "mine.py"
    file.parent.mkdir()
    file.write_text(CODE)
    return file


def make_plan(*methods: str, **changes: Any) -> Plan:
    return parse_plan("test", "", Path(), SMALL | {"methods": list(methods)} | changes)


def call(*words: str, folder: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """``lmr`` in another process, which knows nothing of the file but its name."""
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(path), *filter(None, [environment.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "lmr", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)


def count_norms() -> int:
    """Parameters of all norms of both towers of the photo model."""
    backbone = lmr.load()
    classifier = backbone.classifier(["cat", "ship"])
    assert classifier.text is not None
    towers = (classifier.encoder, classifier.text.tower)
    norms = [module for tower in towers for module in tower.modules() if "LayerNorm" in str(type(module).__mro__)]
    return sum(parameter.numel() for norm in norms for parameter in norm.parameters(recurse=False))


def test_bench_runs_it_in_its_workers(mine: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    plan = make_plan(f"{mine}:mine", "zeroshot", corruptions="fog")
    outcome = run_bench(plan, folder, workers=1, screen=io.StringIO())
    assert outcome.failures == []
    (row,) = (row for row in outcome.rows if row.method == "mine")
    assert (row.label, row.emit, row.spec) == (LABEL, "after", "mine(lr=0.001)")
    assert row.metrics["trainable"] == count_norms()
    assert row.method_file["path"] == str(mine)
    assert len(row.method_file["digest"]) == 64
    kept, words = read_rows(folder)
    assert words == []
    assert {row.run: row for row in kept} == {row.run: row for row in outcome.rows}
    assert all(row.method_file == {} for row in kept if row.method == "zeroshot")
    assert run_bench(plan, folder, screen=io.StringIO()).skipped == 2


def test_arguments_presets_and_labels(mine: Path) -> None:
    (part,) = make_plan(f"{mine}:mine(lr=1e-2)", f"{mine}:mine", "lmr", preset=["tiny"], batch_sizes="preset").parts
    found = [(entry.label, entry.spec, entry.batch_size, entry.file) for entry in part.methods]
    assert found[0] == (f"{LABEL} (lr=0.01)", "mine(lr=0.01)", 4, str(mine))
    assert found[1] == (LABEL, "mine(lr=1e-05)", 4, str(mine))
    assert found[2][0::3] == ("LMR", None)
    with pytest.raises(lmr.LmrError, match="mine has no argument 'rate'"):
        make_plan(f"{mine}:mine(rate=1)")
    with pytest.raises(lmr.LmrError, match="define"):
        make_plan(f"{mine}:lmr")
    with pytest.raises(lmr.LmrError, match=r"Cannot read the method file .*gone.py"):
        make_plan(f"{mine.parent}/gone.py:mine")


def test_file_that_changes_under_way_is_refused(mine: Path, tmp_path: Path) -> None:
    task, *_ = list_tasks([make_plan(f"{mine}:mine")])
    mine.write_text(CODE.replace("1e-3", "1e-2"))
    with pytest.raises(lmr.LmrError, match="changed"):
        run_task(task, tmp_path / "runs")


@pytest.mark.slow
def test_installed_package_brings_a_method(mine: Path, tmp_path: Path) -> None:
    """A distribution with an entry point in the group ``lmr.methods``, found by ``all``, and in the workers too."""
    site = tmp_path / "site"
    (site / "others-1.0.dist-info").mkdir(parents=True)
    (site / "others-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (site / "others-1.0.dist-info" / "entry_points.txt").write_text("[lmr.methods]\nothers = others.adaptation\n")
    (site / "others").mkdir()
    (site / "others" / "__init__.py").write_text("")
    (site / "others" / "adaptation.py").write_text(CODE.replace('"mine"', '"theirs"'))
    listed = call("bench", "--methods", "all", *WORDS, "--dry-run", folder=tmp_path, path=site)
    assert listed.returncode == 0, listed.stderr
    assert all(f"--methods '{name}(" in listed.stdout for name in ("theirs", *lmr.list_methods()))
    done = call("bench", "--methods", "zeroshot", "theirs", *WORDS, folder=tmp_path, path=site)
    assert done.returncode == 0, done.stderr
    rows = {row.method: row for row in read_rows(tmp_path / "lmr-runs")[0]}
    assert set(rows) == {"zeroshot", "theirs"}
    assert (rows["theirs"].label, rows["theirs"].method_file) == (LABEL, {})
    reported = call("report", folder=tmp_path, path=site)
    assert reported.returncode == 0, reported.stderr
    assert LABEL in reported.stdout
