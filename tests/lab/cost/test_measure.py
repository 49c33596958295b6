"""``python -m lab.cost``: what the table says is what was measured, and what does not fit gets an error message."""

from __future__ import annotations

import ast
import dataclasses
import json
import math
import multiprocessing
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import lab.cost
import lmr
from lab.cost import measure
from lab.cost.__main__ import main, make_parser
from lab.cost.entries import SHARES, Entry, EntryKinds, list_entries
from lab.cost.measure import CostRequest, find_doubts, measure_cost
from lab.cost.settings import AIMS
from lab.cost.steps import CostStep, StepFactory, StepResult
from lab.cost.table import FILES, CostReport, Measurement, judge_aims
from lab.cost.timing import MatrixRate, measure_here, measure_step_memory, warm_up
from lmr.bench.cost.model import ModelSource, find_measured_model
from lmr.bench.flops import count_comparison, count_image, count_text
from lmr.core.errors import LmrError
from lmr.core.progress import ProgressBar
from lmr.core.registry import list_methods
from lmr.models.towers.image import VisionConfig

SMALL: dict[str, Any] = {"source": ModelSource(random="small"), "batch_sizes": (4,), "classes": 16, "threads": 1}
ALL = ["forward", "transformers forward", "zeroshot", "lmr, all past", "lmr, half past", "lmr, none past", "tent"]
ALL += [
    "batclip",
    "lmr, all past, lean",
    "tent, lean",
    "batclip, lean",
    "batclip, full context",
    "plain LMR",
    "plain TENT",
]
ALL += ["4 streams x 1", "4 single steps"]
linux = pytest.mark.skipif(sys.platform != "linux", reason="copies a process that has imported torch")


@pytest.fixture(autouse=True)
def keep_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[CostReport, Path]:
    out = tmp_path_factory.mktemp("cost") / "new"
    return run_cost(out=out, **SMALL, rounds=3, memory=False, lean=True, full_context=True), out


def run_cost(out: Path | None = None, **given: Any) -> CostReport:
    return measure_cost(CostRequest(**given), out)


def make_row(entry: Entry, seconds: tuple[float, ...], **others: object) -> Measurement:
    given = {"spec": "", "batch_size": 64, "classes": 1000, "images": 64, "peak_bytes": None, "trainable": 0}
    given |= {"flops": None, "gate_share": None, "rate": None, "forward_ms": 1.0}
    return Measurement(entry=entry, seconds=seconds, **(given | others))


def test_table_has_every_contender_with_its_own_numbers(measured: tuple[CostReport, Path]) -> None:
    (table,) = measured[0].tables
    rows = {row.entry.name: row for row in table.rows}
    assert list(rows) == ALL
    assert all(len(row.seconds) == 3 and min(row.seconds) > 0 for row in table.rows)
    shares = {name: row.gate_share for name, row in rows.items() if row.gate_share is not None}
    assert shares == {name: {"half": 0.5, "none": 0.0}.get(name.split()[1], 1.0) for name in shares}
    assert len(shares) == 7
    norms = 2 * 64 * (2 * 3 + 2)
    assert rows["lmr, all past"].trainable == rows["plain LMR"].trainable == rows["plain TENT"].trainable == norms
    assert rows["4 streams x 1"].trainable == 4 * norms
    assert rows["batclip"].trainable == norms + 2 * 32 * (2 * 2 + 1)
    assert rows["forward"].trainable == rows["zeroshot"].trainable == rows["transformers forward"].trainable == 0
    assert rows["forward"].forwards == 1.0
    assert all(row.forward_ms == rows["forward"].median_ms and row.rate == table.rate for row in table.rows)


def test_contenders_that_should_agree_do(measured: tuple[CostReport, Path]) -> None:
    notes = [note for note in measured[0].tables[0].notes if "differ" in note]
    assert len(notes) == 4  # forward, LMR and TENT on transformers; streams and single steps
    assert all(float(note.split()[-1].rstrip(".")) < 1e-4 for note in notes)


def test_counted_operations_follow_from_each_other(measured: tuple[CostReport, Path]) -> None:
    flops = {row.entry.name: row.flops for row in measured[0].tables[0].rows}
    forward, both = flops["forward"], flops["tent"]
    assert flops["transformers forward"] == flops["zeroshot"] == flops["lmr, none past"] == forward
    assert flops["lmr, all past"] == flops["plain LMR"] == forward + both
    assert 2 * flops["lmr, half past"] == 4 * forward + (both - forward)
    assert both < flops["batclip"] < flops["batclip, full context"]


def test_files_hold_what_was_measured(measured: tuple[CostReport, Path]) -> None:
    report, out = measured
    assert sorted(path.name for path in out.iterdir()) == sorted(FILES)
    read = json.loads((out / "cost.json").read_text())
    protocol = read["protocol"]
    assert {"model", "digest", "machine", "cores", "threads", "torch", "date", "command", "classes"} <= set(protocol)
    assert len(protocol["digest"]) == 64
    assert protocol["command"].startswith("python -m lab.cost --random small --batch-size 4")
    for row, kept in zip(report.tables[0].rows, read["tables"][0]["rows"], strict=True):
        each = [1000 * seconds / row.images for seconds in row.seconds]
        assert kept["seconds"] == list(row.seconds)
        assert kept["median_ms"] == statistics.median(each)
        assert (kept["low_ms"], kept["high_ms"]) == (min(each), max(each))
        assert kept["limit_ms"] == pytest.approx(1000 * row.flops / read["tables"][0]["flops_per_second"] / row.images)
        assert kept["reached"] == pytest.approx(kept["limit_ms"] / kept["median_ms"])
    text, page = (out / "cost.txt").read_text(), (out / "cost.md").read_text()
    assert text == report.to_text()
    assert page == report.to_markdown()
    for row in report.tables[0].rows:
        digits = 1 if row.median_ms >= 10 else 3
        line = next(line for line in text.splitlines() if line.startswith(f"{row.entry.name}  "))
        assert f" {row.median_ms:.{digits}f} " in line
        assert f"| {row.entry.name} |" in page


def test_command_of_the_protocol_measures_the_same(measured: tuple[CostReport, Path]) -> None:
    words = measured[0].protocol["command"].split()
    options = make_parser().parse_args(words[3:])
    assert (options.random, options.batch_size, options.classes, options.rounds) == ("small", [4], 16, 3)
    assert options.lean
    assert options.full_context
    assert not options.memory
    assert options.methods == ["zeroshot", "lmr", "tent", "batclip"]


def test_row_derives_from_what_it_holds() -> None:
    row = make_row(Entry("forward"), (0.4, 0.1, 0.2), images=2, flops=10**9, rate=2e10, forward_ms=50.0)
    assert row.median_ms == 100
    assert row.forwards == 2
    assert row.limit_ms == 25
    assert row.reached == 0.25
    assert make_row(Entry("forward"), (1.0,)).reached is None


def test_switches_have_aims_of_their_own() -> None:
    """A switch is not taken for the published method, nor the other way round."""
    entries = list_entries(["lmr"], 16, 1, EntryKinds(transformers=False, text=False, switches=True))
    assert [entry.key for entry in entries[4:]] == [
        "lmr all", "lmr(share=0.25) all"
    ]  # fmt: skip
    rows = [make_row(entries[0], (1.0, 1.0, 1.0)), make_row(entries[1], (3.0, 3.0, 3.0), peak_bytes=600)]
    rows.append(make_row(entries[5], (1.5, 1.5, 1.7), peak_bytes=300))
    verdicts = {verdict.aim.top + " " + verdict.aim.quantity: verdict for verdict in judge_aims(rows)}
    assert {key: verdict.value for key, verdict in verdicts.items()} == {
        "lmr all time": 3.0,
        "lmr(share=0.25) all time": 1.5,
        "lmr(share=0.25) all memory": 0.5,
    }
    assert [verdict.result for verdict in verdicts.values()] == ["met", "met", "for batch size 16"]


def test_aims_are_judged_by_measured_ratios() -> None:
    rows = [
        make_row(Entry("forward"), (1.0, 1.1, 1.2)),
        make_row(Entry("transformers"), (1.0, 2.2, 2.0)),
        make_row(Entry("method", "lmr(lr=1e-4)"), (4.0, 4.4, 3.9), peak_bytes=100),
        make_row(Entry("method", "lmr", lean=True), (9.0, 9.0, 9.0), peak_bytes=1),
        make_row(Entry("plain", "lmr"), (8.0, 8.0, 8.0), peak_bytes=400),
        make_row(Entry("method", "batclip"), (9.0, 9.0, 9.0), peak_bytes=5 * 10**9),
        make_row(Entry("method", "zero"), (70.0, 71.0, 72.0)),
        make_row(Entry("prompts"), (1.0, 1.0, 1.0)),
        make_row(Entry("context"), (2.0, 2.1, 2.3)),
        make_row(Entry("method", "tpt"), (9.0, 9.0, 9.0), peak_bytes=2 * 10**9),
        make_row(Entry("streams", "lmr", streams=16), (2.0, 2.0, 2.0)),
        make_row(Entry("singles", "lmr", streams=16), (1.0, 1.0, 1.0)),
    ]
    verdicts = {verdict.aim.what: verdict for verdict in judge_aims(rows)}
    assert len(verdicts) == len(AIMS) - 2 - 2  # nothing with half or none past the gate was measured, and no switch
    seen = [(verdict.value, verdict.result) for verdict in verdicts.values()]
    assert seen[0] == (pytest.approx(1.1 / 2.0), "met")
    assert seen[1] == (pytest.approx(4.0 / 1.1), "missed")
    assert seen[2] == (0.5, "met")
    assert seen[3] == (0.25, "met")
    assert seen[4] == (2.0, "for 64 streams")
    assert seen[5] == (pytest.approx(4.0 / 9.0), "met")
    assert seen[6] == (5e9, "missed")
    assert seen[7] == (pytest.approx(71.0 / 1.1), "met")  # of the views
    assert seen[8:] == [(pytest.approx(2.1), "met"), (2e9, "met")]  # of the prompts
    first = verdicts["our forward / transformers' forward"]
    assert (first.low, first.high) == (0.5, 1.0)
    assert all(verdict.result == "for ViT-B/16" for verdict in judge_aims(rows, "ViT-B/16"))


def test_an_unexpected_gate_ends_the_measurement() -> None:
    entry = StepFactory(find_measured_model(ModelSource(random="small")), 4, 16).build(Entry("method", "lmr", "half"))
    entry.check(entry.run())
    with pytest.raises(LmrError, match="50% of its samples"):
        entry.check(StepResult(torch.zeros(4, 16), 0.75))
    with pytest.raises(LmrError, match="should have 100%"):
        run_cost(**SMALL, methods=["lmr(tau=0.99)"], rounds=1, memory=False)


def test_answers_that_are_not_finite_end_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(factory: StepFactory, entry: Entry) -> CostStep:
        return CostStep(entry, "", 4, 0, lambda: StepResult(torch.full((4, 16), math.nan)))

    monkeypatch.setattr(StepFactory, "build", build)
    with pytest.raises(LmrError, match="NaN"):
        run_cost(**SMALL, methods=["zeroshot"], rounds=1, streams=1, memory=False)


def build_small(entry: Entry, batch_size: int = 8) -> tuple[StepFactory, CostStep, StepResult]:
    """A entry on the small model, and what its warm-up step says."""
    factory = StepFactory(find_measured_model(ModelSource(random="small")), batch_size, 16)
    step = factory.build(entry)
    return factory, step, warm_up([step], 16, ProgressBar())[entry.name]


def test_a_loss_between_classes_has_a_gradient() -> None:
    """MINT's gradient is exactly 0, and its backward left out, where all images fall into one class."""
    factory, entry, result = build_small(Entry("method", "mint"))
    assert len(result.logits.argmax(1).unique()) == 4
    assert result.passes.backwards == 1
    method = lmr.create("mint", factory.classifier(entry.entry, 8))
    info = method.step(factory.model.draw_images(8)).info
    assert info["classes"] == 4
    assert method.state["gradient"].abs().max() > 1e-6


def test_methods_that_write_texts_are_measured_with_all_of_them(caplog: pytest.LogCaptureFixture) -> None:
    """Without a reader WATT has one template in place of eight, and CLIPArTT no captions: cheaper methods."""
    _, _, result = build_small(Entry("method", "watt(rounds=1, inner=1)"))
    assert result.passes.forwards == 8 + 1
    assert result.passes.backwards == 8
    build_small(Entry("method", "clipartt(steps=1, captions='text')"))
    assert not caplog.records


def test_words_stand_for_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"paper": ["zeroshot", "tent"]}
    monkeypatch.setattr("lab.cost.measure.expand_methods", lambda entry: words.get(entry, [entry]))
    few = {"rounds": 1, "memory": False, "plain": False, "streams": 1}
    (table,) = run_cost(**SMALL, **few, methods=["paper", "eta"]).tables
    assert [row.entry.name for row in table.rows] == ["forward", "zeroshot", "tent", "eta"]


@pytest.mark.parametrize("spec", ["tent", "eta", "mint", "batclip"])
def test_methods_without_a_gate_step_on_every_image(spec: str) -> None:
    _, _, result = build_small(Entry("method", spec))
    assert result.stepped is True
    assert result.passes.backwards == 1


def test_a_method_that_selects_is_counted_with_its_selection() -> None:
    """BITTA learns from the certain and from the uncertain samples, and leaves out those in between."""
    factory, entry, result = build_small(Entry("method", "bitta"))
    method = lmr.create("bitta", factory.classifier(entry.entry, 8))
    info = method.step(factory.model.draw_images(8)).info
    assert info["low"] + info["high"] < 8
    assert result.passes.backwards == (info["low"] + info["high"]) / 8
    every = dataclasses.replace(result.passes, backwards=1.0)
    assert factory.count_flops(entry, result) < factory.count_flops(entry, dataclasses.replace(result, passes=every))


@pytest.mark.parametrize("past", ["all", "half", "none"])
def test_backward_is_watched_image_by_image(past: str) -> None:
    _, _, result = build_small(Entry("method", "lmr", past))
    assert result.passes.backwards == result.gate_share == SHARES[past]


def test_images_that_take_no_part_in_the_backward_are_not_counted() -> None:
    """Not even where the method says that all do: MINT has no gradient on a single image."""
    factory, entry, result = build_small(Entry("method", "mint"), batch_size=1)
    assert result.passes.backwards == 0
    forward = factory.count_flops(*build_small(Entry("forward"), batch_size=1)[1:])
    assert factory.count_flops(entry, result) == 2 * forward
    every = dataclasses.replace(result.passes, backwards=1.0)
    assert factory.count_flops(entry, dataclasses.replace(result, passes=every)) > 2.9 * forward
    report = run_cost(**(SMALL | {"batch_sizes": (1,)}), methods=["mint", "eta(margin=0)"], rounds=1, memory=False)
    notes = report.tables[0].notes
    assert "0% of the images take part in the backward of mint, and its limit counts these only." in notes
    assert sum("eta(margin=0) took no step" in note for note in notes) == 1


def test_prompts_are_counted_as_often_as_a_method_encodes_them() -> None:
    factory, *after = build_small(Entry("method", "bitta"))
    before = build_small(Entry("method", "bitta(emit='before')"))[1:]
    assert factory.model.tower is not None
    assert factory.model.text is not None
    prompt, image = count_text(factory.model.text.config, 16), count_image(factory.model.tower)
    more = factory.count_flops(*after) - factory.count_flops(*before)
    assert more == 8 * (image.forward + count_comparison(48, 16).forward) + 16 * prompt.forward


def test_prompts_of_one_image_are_measured_apart() -> None:
    """What TPT does with its prompts, beside its whole step: once without and once with gradient."""
    report = run_cost(**SMALL, methods=["tpt(views=2)"], rounds=1, memory=False, plain=False, streams=1)
    rows = {row.entry.name: row for row in report.tables[0].rows}
    assert list(rows) == ["forward", "prompts forward", "prompts gradient", "tpt(views=2)"]
    forward, gradient = rows["prompts forward"], rows["prompts gradient"]
    assert forward.images == gradient.images == 1
    assert (forward.trainable, gradient.trainable) == (0, rows["tpt(views=2)"].trainable)
    model = find_measured_model(ModelSource(random="small"))
    own = count_text(model.text.config, (7 + 16) // 2, shared=1 + 4)
    assert forward.flops == 16 * own.forward
    assert gradient.flops == 16 * (own.forward + own.backward)
    (verdict,) = [verdict for verdict in report.tables[0].verdicts if verdict.aim.top == "context"]
    assert verdict.value == pytest.approx(gradient.median_ms / forward.median_ms)
    assert "prompts forward" not in [
        entry.name for entry in list_entries(["batclip"], 4, 1, EntryKinds(transformers=False, text=True))
    ]


@pytest.mark.parametrize(("spec", "batch_size", "images"), [("zero(views=8)", 2, 8), ("lmr", 2, 2), ("zero", 2, 64)])
def test_rate_is_that_of_the_largest_pass(
    monkeypatch: pytest.MonkeyPatch, spec: str, batch_size: int, images: int
) -> None:
    """The views of an image are one product, which the machine may multiply faster than one of the batch alone."""
    sizes = []

    class Noted(MatrixRate):
        def __init__(self, config: VisionConfig, size: int, dtype: torch.dtype) -> None:
            sizes.append(size)
            super().__init__(config, size, dtype)

    monkeypatch.setattr(measure, "MatrixRate", Noted)
    monkeypatch.setattr(measure, "MOST_REACHED", 100.0)
    given = SMALL | {"batch_sizes": (batch_size,)}
    run_cost(**given, methods=[spec], rounds=1, memory=False, plain=False, streams=1)
    assert sizes == [images]


def test_gradient_of_the_prompts_is_that_of_autograd() -> None:
    factory = StepFactory(find_measured_model(ModelSource(random="small")), 2, 12)
    prompts, gradient = (factory.build(Entry(kind)).run().logits for kind in ("prompts", "context"))
    text = factory.classifier(Entry("context"), 2).text
    learnt = text.learn("a photo of a", [])
    words = learnt.start(text.tower).detach().requires_grad_()
    found = torch.nn.functional.normalize(learnt.encode(text.tower, torch.arange(12), words), dim=-1)
    torch.testing.assert_close(prompts, found.detach())
    torch.testing.assert_close(gradient[0], torch.autograd.grad(found.sum(), words)[0].flatten())


def test_a_step_faster_than_its_arithmetic_is_in_doubt() -> None:
    possible = make_row(Entry("forward"), (1.0,), flops=100, rate=100 / 1.04)
    assert find_doubts([possible]) == []
    (doubt,) = find_doubts([possible, make_row(Entry("method", "mint"), (1.0,), flops=110, rate=100.0)])
    assert doubt.startswith("mint reached 110% of the arithmetic limit, which is impossible")


def test_doubts_are_shown_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "MOST_REACHED", 0.0)
    few = ["--methods", "tent", "--no-plain", "--no-memory", "--rounds=1", "--streams=1"]
    assert main(["--small", *few, f"--out={tmp_path}"]) == 1
    printed = capsys.readouterr()
    assert "tent reached" in printed.err
    assert "tent reached" in printed.out
    assert (tmp_path / "cost.txt").read_text() in printed.out
    assert len(json.loads((tmp_path / "cost.json").read_text())["tables"][0]["doubts"]) > 1


OWN = """
import torch
from lmr.core.bases.bimodal import BimodalMethod
from lmr.core.card import Card
from lmr.core.prediction import Step
from lmr.core.registry import register

@register("sharpen_both", Card(label="Sharpen"))
class SharpenBoth(BimodalMethod):
    def adapt(self, images, state, streams):
        def objective(raw, prototypes, logits):
            return -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean(), None
        loss, logits, _, gradient = self._differentiate(images, state["norms"], objective)
        return Step(logits, self.optim.descend(state, gradient), {"loss": loss.view(1)})
"""


@pytest.mark.usefixtures("own_methods")
def test_a_method_in_a_file_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path; both towers; its memory in a fresh process that starts elsewhere."""
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    given = {"methods": ["./own.py:sharpen_both(lr=1e-4)"], "rounds": 1, "streams": 1, "plain": False}
    forward, own = run_cost(**SMALL, **given).tables[0].rows
    assert forward.peak_bytes is not None
    assert own.peak_bytes is not None
    report = run_cost(**SMALL, **given, lean=True, full_context=True, memory=False)
    rows = {row.entry.name: row for row in report.tables[0].rows}
    name = "sharpen_both(lr=1e-4)"
    assert list(rows) == ["forward", name, f"{name}, lean", f"{name}, full context"]
    assert f"{tmp_path / 'own.py'}:{name}" in report.protocol["command"]
    assert rows[name].trainable == 2 * 64 * (2 * 3 + 2) + 2 * 32 * (2 * 2 + 1)
    assert rows["forward"].flops < rows[name].flops < rows[f"{name}, full context"].flops


def test_no_method_is_named_in_the_code() -> None:
    names = set(list_methods())
    folder = Path(lab.cost.__file__).parent
    found = [
        f"{path.name}:{node.lineno}"
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert found == []


def measure_in_copy(entry: Entry, *batch_sizes: int) -> list[int]:
    """The memory of steps, one after the other, in a copy of a process that has imported torch and run nothing.

    What runs in it is what ``measure_step_memory`` starts a process for; two of those are in the tests below.
    """
    multiprocessing.set_forkserver_preload([measure_here.__module__])
    source = ModelSource(random="small")
    with ProcessPoolExecutor(1, multiprocessing.get_context("forkserver")) as pool:
        return [pool.submit(measure_here, source, entry, size, 16, 1).result() for size in batch_sizes]


@linux
@pytest.mark.parametrize("entry", [Entry("method", "lmr"), Entry("plain", "lmr")], ids=lambda entry: entry.name)
def test_memory_is_that_of_the_step(entry: Entry) -> None:
    small, large = measure_in_copy(entry, 2, 40)
    assert large - small > 3_000_000  # 38 images x 17 tokens x 3 blocks x (about 10 widths of 64) x 4 bytes and more
    assert large < 200_000_000


@linux
def test_warm_up_takes_every_kind_of_pass() -> None:
    """A first backward loads code and starts threads, tens of megabytes that are not the step's own."""
    (every,), (half,) = (measure_in_copy(Entry("method", "lmr", past), 8) for past in ("all", "half"))
    assert half < every + 10_000_000


def test_memory_is_measured_in_a_fresh_process() -> None:
    peak = measure_step_memory(ModelSource(random="small"), Entry("forward"), 40, 16, 1)
    assert peak is not None
    assert 0 < peak < 200_000_000


def test_a_fresh_process_that_fails_says_why() -> None:
    with pytest.raises(LmrError, match=r"memory of forward failed: .*fewer images than"):
        measure_step_memory(ModelSource(random="small"), Entry("forward"), 64, 16, 1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"source": ModelSource(random="ViT-B-17")}, "ViT-B-17"),
        ({"batch_sizes": (0,)}, "batch size of at least 1, got 0"),
        ({"batch_sizes": ()}, "at least one batch size"),
        ({"batch_sizes": (4, -1)}, "batch size of at least 1, got -1"),
        ({"rounds": 0}, "number of rounds of at least 1"),
        ({"threads": 0}, "number of threads"),
        ({"classes": 1}, "at least 12 classes"),
        ({"streams": 0}, "number of streams"),
        ({"minutes": 0}, "minutes"),
        ({"minutes": math.nan}, "minutes"),
        ({"methods": ["lmrr"]}, "'lmrr'"),
        ({"methods": ["lmr(speed=9)"]}, "'speed'"),
        ({"methods": ["tent", "tent"]}, "once"),
        ({"batch_sizes": (48,)}, "fewer images than the model has features"),
    ],
)
def test_bad_requests_are_refused_before_anything_is_measured(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(LmrError, match=message):
        run_cost(**(SMALL | {"memory": True} | wrong))


def test_folder_that_cannot_be_written_is_found_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LmrError, match="Cannot create the folder"):
        run_cost(**SMALL, out=tmp_path / "file" / "cost")
    (tmp_path / "cost.md").mkdir()
    with pytest.raises(LmrError, match="is a folder, but a file is written there"):
        run_cost(**SMALL, out=tmp_path)


def test_files_are_replaced_whole_or_not_at_all(
    measured: tuple[CostReport, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cost.txt").write_text("before")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(LmrError, match="disk full"):
        measured[0].save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["cost.txt"]
    assert (tmp_path / "cost.txt").read_text() == "before"


def test_command_prints_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--small", "--no-memory", "--threads=1", "--streams=1", "--batch-size", "1", "3", "--methods", "lmr"]
    assert main([*words, "--minutes=1e-9", "--out", str(tmp_path)]) == 0
    shown, progress = capsys.readouterr()
    assert shown.count("lmr, all past") >= 2
    assert shown.count("lmr, half past  ") == 1  # half of one image is none
    assert "33%" in shown  # and one of three is a third
    assert "Batch size 1;" in shown
    assert "Batch size 3;" in shown
    assert (tmp_path / "cost.txt").read_text() in shown
    assert "One round takes about" in progress
    assert "3 rounds" in progress
    assert main(["--small", "pocket"]) == 2
    assert "--small" in capsys.readouterr().err


def test_embedded_model_can_be_measured() -> None:
    report = run_cost(
        source=ModelSource(model="pocket"),
        batch_sizes=(4,),
        classes=12,
        methods=["lmr"],
        rounds=1,
        threads=1,
        memory=False,
    )
    assert "lmr, half past" in report.to_text()
    assert {verdict.result for verdict in report.tables[0].verdicts} == {"for ViT-B/16"}


def test_tower_with_a_stem_is_measured_without_transformers() -> None:
    report = run_cost(
        source=ModelSource(model="photo"),
        batch_sizes=(4,),
        classes=12,
        methods=["lmr", "batclip"],
        rounds=1,
        threads=1,
        memory=False,
    )
    table = report.tables[0]
    assert "transformers has no model with this tower, so there is no comparison with it." in table.notes
    names = [row.entry.name for row in table.rows]
    assert "batclip" in names
    assert not any("transformers" in name or "plain" in name for name in names)
    assert all(row.flops for row in table.rows)


def test_plan_leaves_out_what_a_model_cannot_have() -> None:
    entries = list_entries(["lmr", "batclip"], 8, 1, EntryKinds(transformers=False, text=False))
    assert [entry.name for entry in entries] == ["forward", "lmr, all past", "lmr, half past", "lmr, none past"]
    assert len({dataclasses.astuple(entry) for entry in entries}) == 4


def test_plain_loops_may_be_left_out() -> None:
    report = run_cost(**SMALL, methods=["zeroshot", "lmr"], rounds=1, streams=1, memory=False, plain=False)
    names = [row.entry.name for row in report.tables[0].rows]
    assert names == ["forward", "zeroshot", "lmr, all past", "lmr, half past", "lmr, none past"]
    assert "not installed" not in report.to_text()
    assert report.protocol["command"].endswith(" --no-plain")


def test_without_transformers_the_table_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    report = run_cost(**SMALL, methods=["zeroshot"], rounds=1, streams=1, memory=False)
    assert [row.entry.name for row in report.tables[0].rows] == ["forward", "zeroshot"]
    assert "transformers is not installed" in report.to_text()


def test_matrix_rate_counts_what_it_multiplies() -> None:
    config = find_measured_model(ModelSource(random="small")).tower.config
    matrices = MatrixRate(config, 6)
    matrices.measure(keep=False)
    assert not any(matrices.seconds.values())
    matrices.measure()
    assert matrices.flops == 2 * 6 * 17 * (64 * 3 * 64 + 64 * 64 + 2 * 64 * 128)
    assert set(matrices.seconds) == {4 * 17, 6 * 17}
    assert matrices.rate == matrices.flops / min(min(times) for times in matrices.seconds.values())


def test_an_interrupted_product_does_not_slow_the_machine_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a step that was not interrupted would be faster than the arithmetic allows."""
    matrices = MatrixRate(find_measured_model(ModelSource(random="small")).tower.config, 4)
    multiply, calls = torch.mm, iter(range(10**9))

    def interrupt(*given: object, **more: object) -> object:
        if next(calls) == 0:
            time.sleep(0.01)
        return multiply(*given, **more)

    monkeypatch.setattr(torch, "mm", interrupt)
    matrices.measure()
    assert next(calls) > 8
    assert matrices.flops / matrices.rate < 0.01
