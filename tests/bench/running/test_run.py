from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import lmr
from lmr.bench.inputs import FEATURES, KeptImages, find_dataset
from lmr.bench.plans.plan import parse_plan
from lmr.bench.plans.task import Task, list_tasks
from lmr.bench.running.row import Row, read_samples
from lmr.bench.running.run import Stop, run_task
from lmr.core.remembered import Remembered
from lmr.data.catalogue import open_dataset
from lmr.data.labelled import ImageFileSet
from lmr.data.names import read_list
from lmr.data.streams import make_stream
from lmr.images.ahead import THREAD_NAME
from predict_runs import draw_arrays

pytestmark = pytest.mark.usefixtures("tiny_models")
SMALL = {
    "datasets": "photo-c",
    "backbones": "photo",
    "corruptions": "jpeg_compression",
    "images": 60,
    "batch_sizes": 16,
}


def make_task(methods: str, **changes: Any) -> Task:
    (task,) = list_tasks([parse_plan("test", "", Path(), SMALL | {"methods": methods} | changes)])
    return task


@pytest.mark.parametrize("method", ["zeroshot", "tda", "ecalp"])
def test_methods_that_train_nothing_share_features_to_the_same_bits(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run encodes the two batches whose memory is measured, and no other."""
    FEATURES.clear()
    task, encode, sizes = make_task(method), lmr.ZeroShot.encode, list[int]()

    def count(self: lmr.ZeroShot, images: torch.Tensor) -> torch.Tensor:
        sizes.extend([len(images)] if isinstance(self, Remembered) else [])  # not those of counting passes
        return encode(self, images)

    monkeypatch.setattr(lmr.ZeroShot, "encode", count)
    alone, first = run_task(task, tmp_path), read_samples(tmp_path, task.run)
    assert sizes == [16, 16, 16, 12]
    again, second = run_task(task, tmp_path), read_samples(tmp_path, task.run)
    assert sizes[4:] == [16, 16]
    assert again.compare() == alone.compare()
    for name, values in first.items():
        np.testing.assert_array_equal(second[name], values)


def stop_after(images: int) -> Callable[[int], None]:
    def report(answered: int) -> None:
        if answered >= images:
            raise Stop

    return report


def answer_by_hand(spec: str, task: Task) -> tuple[torch.Tensor, np.ndarray, list[lmr.Prediction]]:
    """Logits [N, C] of a method on the stream of a task, labels, and the answers, with nothing of the bench."""
    dataset = open_dataset("photo-c")
    backbone = lmr.load()
    method = lmr.create(spec, backbone.classifier(dataset.classes), preset="default")
    batches = list(make_stream(dataset, "jpeg_compression", severity=5, limit=60, batch_size=16))
    answers = [method.step(backbone.preprocess(np.stack(b.images))) for b in batches]
    return torch.cat([answer.logits for answer in answers]), np.concatenate([b.labels for b in batches]), answers


def test_row_says_what_the_method_answered(tmp_path: Path) -> None:
    task = make_task("lmr")
    row = run_task(task, tmp_path)
    logits, labels, answers = answer_by_hand("lmr", task)
    right = (logits.argmax(1).numpy() == labels).mean()
    sizes = [len(answer.logits) for answer in answers]
    assert sizes == [16, 16, 16, 12]
    assert row.metrics["accuracy"] == pytest.approx(right)
    assert row.metrics["nll"] == pytest.approx(
        torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels)).item()
    )
    for key in ("gate_share", "protected_size"):
        mean = sum(size * answer.info[key] for size, answer in zip(sizes, answers, strict=True)) / 60
        assert row.metrics[key] == pytest.approx(mean)
    assert row.metrics["drift"] == pytest.approx(answers[-1].info["drift"])
    assert row.metrics["clean_accuracy"] is None
    assert row.curve["images"][-1] == row.images == 60
    assert row.curve["accuracy"][-1] == pytest.approx(right)
    assert (row.domain, row.severity, row.emit, row.reset) == ("jpeg_compression", 5, "after", "domain")
    assert row.run == task.run
    assert row.protocol["classes"] == "10"
    assert (row.metrics["ms_per_image"] or 0) > 0
    assert row.metrics["trainable"] == lmr.create("lmr", lmr.load().classifier(read_list("cifar10"))).trainable > 100
    samples = read_samples(tmp_path, row.run)
    assert np.array_equal(samples["predicted"], logits.argmax(1).numpy())
    assert np.array_equal(samples["true"], labels)
    assert samples["confidence"] == pytest.approx(logits.softmax(1).amax(1).numpy(), rel=1e-5)


def test_scores_of_zero_shot_are_cosines(tmp_path: Path) -> None:
    """gap, margin and recovery against loops over the cosines of every picture."""
    task = make_task("zeroshot", recovery=True)
    samples = read_samples(tmp_path, run_task(task, tmp_path).run)
    logits, labels, _ = answer_by_hand("zeroshot", task)
    for k, cosines in enumerate((logits / 100).double().tolist()):
        best = max(cosines)
        inside = [value for value in cosines if value >= best - 0.03]
        outside = [value for value in cosines if value < best - 0.03]
        assert samples["gap"][k] == pytest.approx(best - cosines[labels[k]], abs=1e-7)
        expected = min(inside) - max(outside) if outside else math.nan
        assert samples["margin"][k] == pytest.approx(expected, abs=1e-7, nan_ok=True)
        wrong = samples["predicted"][k] != labels[k]
        assert samples["recovery"][k] == pytest.approx(-samples["gap"][k] if wrong else math.nan, abs=1e-7, nan_ok=True)
    assert (samples["predicted"] != labels).any()


def test_a_class_without_any_probability_has_no_likelihood(tmp_path: Path) -> None:
    """ECALP's graph gives most classes nothing; its logits have a floor there, whose height says nothing."""
    task = make_task("ecalp")
    logits, labels, _ = answer_by_hand("ecalp", task)
    floor = np.log(np.finfo(np.float32).tiny)
    assert (logits[range(60), labels] < floor + 1e-3).any()
    assert run_task(task, tmp_path).metrics["nll"] is None


@pytest.mark.parametrize("method", ["lmr", "ecalp", "bitta"])
def test_run_that_was_stopped_goes_on_to_the_same_row(method: str, tmp_path: Path) -> None:
    task = make_task(method)
    whole = run_task(task, tmp_path / "whole")
    for images in (16, 32, 48):
        with pytest.raises(Stop):
            run_task(task, tmp_path / "broken", stop_after(images))
    seen: list[int] = []
    broken = run_task(task, tmp_path / "broken", seen.append)
    assert seen[0] == 48
    assert broken.compare() == whole.compare()
    for name, expected in read_samples(tmp_path / "whole", whole.run).items():
        assert np.array_equal(read_samples(tmp_path / "broken", whole.run)[name], expected, equal_nan=True), name


def spoil_answers(folder: Path, run: str) -> None:
    with open(folder / "checkpoints" / f"{run}.answers", "r+b") as file:
        file.truncate(100)


def spoil_state(folder: Path, run: str) -> None:
    (folder / "checkpoints" / f"{run}.state").write_bytes(b"no state")


@pytest.mark.parametrize("spoil", [spoil_answers, spoil_state])
def test_damaged_checkpoint_counts_as_none(spoil: Callable[[Path, str], None], tmp_path: Path) -> None:
    task = make_task("lmr")
    whole = run_task(task, tmp_path / "whole")
    with pytest.raises(Stop):
        run_task(task, tmp_path, stop_after(32))
    spoil(tmp_path, task.run)
    words: list[str] = []
    assert run_task(task, tmp_path, log=words.append).compare() == whole.compare()
    assert len(words) == 1
    assert "its run starts again" in words[0]


def test_answers_behind_the_saved_state_are_cut_off(tmp_path: Path) -> None:
    """As when a kill comes between the answers and the state."""
    task = make_task("lmr")
    whole = run_task(task, tmp_path / "whole")
    with pytest.raises(Stop):
        run_task(task, tmp_path, stop_after(32))
    with open(tmp_path / "checkpoints" / f"{task.run}.answers", "ab") as file:
        file.write(b"x" * 1000)
    assert run_task(task, tmp_path).compare() == whole.compare()


def test_forgetting_asks_for_clean_pictures_after_the_stream(tmp_path: Path) -> None:
    row = run_task(make_task("zeroshot", forgetting=70), tmp_path)
    dataset, backbone = open_dataset("photo"), lmr.load()
    classifier = backbone.classifier(dataset.classes)
    right = []
    for batch in make_stream(dataset, "clean", seed=1, limit=70):
        images = backbone.preprocess(np.stack(batch.images))
        right += (classifier.cosines(classifier.features(images)).argmax(1).numpy() == batch.labels).tolist()
    assert len(right) == 70
    assert row.metrics["clean_accuracy"] == pytest.approx(sum(right) / 70)


def run_streams(folder: Path, **changes: Any) -> Row:
    return run_task(make_task("lmr", corruptions=["jpeg_compression", "fog"], images=20, **changes), folder)


def test_continual_and_mixed_streams_are_one_row(tmp_path: Path) -> None:
    continual, mixed = run_streams(tmp_path, reset="never"), run_streams(tmp_path, mix=True)
    assert (continual.domain, continual.reset, continual.images) == ("continual", "never", 40)
    assert (mixed.domain, mixed.reset, mixed.images) == ("mixed", "never", 40)
    for row in (continual, mixed):
        samples = read_samples(tmp_path, row.run)
        for place, domain in enumerate(("jpeg_compression", "fog")):
            part = samples["domain"] == place
            right = (samples["predicted"] == samples["true"])[part].mean()
            assert row.domains[domain] == pytest.approx(right)
    assert continual.order["hash"] != mixed.order["hash"]


def test_clean_images_before_an_onset_are_answered_and_not_counted(tmp_path: Path) -> None:
    row = run_task(make_task("lmr", order="skew", dominant=3, onset=20), tmp_path)
    samples = read_samples(tmp_path, row.run)
    assert samples["domain"].tolist() == [1] * 20 + [0] * 40
    right, true = samples["predicted"] == samples["true"], samples["true"]
    assert row.domains == {
        "jpeg_compression": pytest.approx(right[20:].mean()), "clean": pytest.approx(right[:20].mean()),
    }  # fmt: skip
    recalls = [right[20:][true[20:] == name].mean() for name in np.unique(true[20:])]
    assert (row.domain, row.images) == ("jpeg_compression", 60)
    assert row.metrics["accuracy"] == pytest.approx(right[20:].mean())
    assert row.metrics["accuracy_second_half"] == pytest.approx(right[40:].mean())
    assert row.metrics["macro_recall"] == pytest.approx(np.mean(recalls))
    assert row.order == {"kind": "skew", "majority": "0.8", "dominant": "3", "onset": "20", "hash": row.order["hash"]}


def make_file_task(folder: Path, **changes: Any) -> Task:
    """A stream of 40 image files in class folders."""
    pixels, truth = draw_arrays(range(40)), open_dataset("photo").labels("clean")
    for number, (array, label) in enumerate(zip(pixels, truth[:40], strict=True)):
        place = folder / read_list("cifar10")[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(array).save(place / f"{number}.png")
    table = {"datasets": f"folder:{folder}", "backbones": "photo", "methods": "lmr", "batch_sizes": 8} | changes
    (task,) = list_tasks([parse_plan("test", "", Path(), table)])
    return task


def test_files_that_are_read_ahead_give_the_same_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_file_task(tmp_path / "images")
    ahead = run_task(task, tmp_path / "ahead")
    find_dataset.cache_clear()
    monkeypatch.setattr(ImageFileSet, "reads_files", False)
    between = run_task(task, tmp_path / "between")
    assert ahead.compare() == between.compare()
    first, second = (read_samples(tmp_path / name, ahead.run) for name in ("ahead", "between"))
    for name, values in first.items():
        assert np.array_equal(values, second[name], equal_nan=True), name


def test_file_that_cannot_be_read_ends_the_run_and_its_thread(tmp_path: Path) -> None:
    task = make_file_task(tmp_path / "images")
    broken = next((tmp_path / "images").rglob("17.png"))
    broken.write_bytes(broken.read_bytes()[:100])
    find_dataset.cache_clear()
    KeptImages._place = None
    with pytest.raises(lmr.LmrError, match=r"Cannot read '.*17\.png'"):
        run_task(task, tmp_path / "rows")
    assert THREAD_NAME not in [thread.name for thread in threading.enumerate()]


def test_live_stream_does_not_wait(tmp_path: Path) -> None:
    """TENT costs 1.4 forwards, rounded up to 2: it adapts on batches 0 and 2 and answers 1 and 3 as it is then."""
    task = make_task("tent", timing="live")
    row = run_task(task, tmp_path)
    assert (row.order_text, row.protocol["timing"]) == ("shuffle live", "adapts on one batch in 2")
    assert "--set timing=live" in row.command
    assert task.run != make_task("tent").run
    dataset, backbone = open_dataset("photo-c"), lmr.load()
    method = lmr.create("tent", backbone.classifier(dataset.classes))
    expected: list[torch.Tensor] = []
    for number, batch in enumerate(make_stream(dataset, "jpeg_compression", severity=5, limit=60, batch_size=16)):
        images = backbone.preprocess(np.stack(batch.images))
        expected.append((method.predict(images) if number % 2 else method.step(images)).logits.softmax(1).amax(1))
    confidence = read_samples(tmp_path, row.run)["confidence"]
    assert confidence == pytest.approx(torch.cat(expected).numpy(), rel=1e-5)
    waited = read_samples(tmp_path, run_task(make_task("tent"), tmp_path).run)["confidence"]
    assert np.array_equal(waited[:16], confidence[:16])
    assert not np.array_equal(waited[48:], confidence[48:])
    with pytest.raises(Stop):
        run_task(task, tmp_path / "broken", stop_after(16))
    assert run_task(task, tmp_path / "broken").compare() == row.compare()


@pytest.mark.usefixtures("real_models")
@pytest.mark.parametrize(("method", "pace"), [("zeroshot", 1), ("lmr", 3), ("sar", 4)])
def test_pace_of_live_timing_is_counted(method: str, pace: int, tmp_path: Path) -> None:
    row = run_task(make_task(method, timing="live", images=16), tmp_path)
    assert row.protocol["timing"] == f"adapts on one batch in {pace}"
