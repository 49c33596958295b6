"""Trials keep what each entry would answer alone, and a resumed one equals one that was never stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import lmr
from lmr.bench.tune.trials import TrialBatch, Trials, list_entries, read_values
from lmr.core.state import read_state, write_state

pytestmark = pytest.mark.usefixtures("tiny_models")

SPECS = ("lmr(lr=1e-3, gamma0=4.0)", "lmr(lr=1e-2, gamma0=4.0)", "zeroshot")


@pytest.fixture(scope="module")
def clip() -> lmr.ZeroShot:
    return lmr.load("pocket").classifier(["red star", "blue ring", "green cross", "purple heart"])


@pytest.fixture(scope="module")
def batches() -> list[TrialBatch]:
    images = torch.randn(20, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    places = [[0, 1, 2, 3, 4, 5, 6, 7], [], [9, 10, 11, 12], [13, 15, 16, 17, 18, 19, 20, 21]]
    parts = images.split([len(part) for part in places])
    return [TrialBatch(part, place) for part, place in zip(parts, places, strict=True)]


def make_trials(clip: lmr.ZeroShot, path: Path | None = None, key: str = "k") -> Trials:
    return Trials([lmr.create(spec, clip) for spec in SPECS], key, path)


def test_every_entry_answers_as_if_alone(clip: lmr.ZeroShot, batches: list[TrialBatch]) -> None:
    seen: list[int] = []
    trials = make_trials(clip)
    trials.run(lambda start: iter(batches[start:]), seen.append)
    assert seen == [0, 8, 0, 4, 8]
    assert trials.places.tolist() == [place for batch in batches for place in batch.places]
    for spec, evidence in zip(SPECS, trials.collect(), strict=True):
        method = lmr.create(spec, clip)
        answers = [method.step(images).probabilities for images, places in batches if places]
        torch.testing.assert_close(evidence.probabilities, torch.cat(answers))
    frozen = trials.collect()[-1]
    torch.testing.assert_close(frozen.frozen, frozen.probabilities)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_a_run_that_was_stopped_is_resumed(
    clip: lmr.ZeroShot, batches: list[TrialBatch], tmp_path: Path, stop: type[BaseException]
) -> None:
    whole = make_trials(clip)
    whole.run(lambda start: iter(batches[start:]))

    def read_some(start: int) -> Iterator[TrialBatch]:
        yield from batches[:3]
        raise stop

    with pytest.raises(stop):
        make_trials(clip, tmp_path / "s").run(read_some, save_seconds=0)
    asked: list[int] = []
    again = make_trials(clip, tmp_path / "s")
    again.run(lambda start: asked.append(start) or iter(batches[start:]))  # type: ignore[func-returns-value]
    assert asked == [3]
    assert again.places.equal(whole.places)
    for one, other in zip(again.collect(), whole.collect(), strict=True):
        assert one.probabilities.equal(other.probabilities)
        assert one.frozen.equal(other.frozen)
    again.delete_checkpoint()
    assert not list(tmp_path.iterdir())


def test_a_watched_entry_is_resumed_with_its_watch(clip: lmr.ZeroShot, tmp_path: Path) -> None:
    """It is rolled back in the middle: what its watch has seen so far decides when, and what it answers then."""
    generator = torch.Generator().manual_seed(0)
    images = [torch.randn(4, 3, 32, 32, generator=generator) for _ in range(8)]
    batches = [TrialBatch(image, list(range(4 * k, 4 * k + 4))) for k, image in enumerate(images)]
    alarms = lmr.Thresholds(entropy=1e6, spread=1e6, entropy_ratio=0.0, least=1, confirm=13, quiet=2, rest=50)

    def make(path: Path | None = None) -> tuple[lmr.Watched, Trials]:
        watched = lmr.Watched(lmr.create("lmr", clip), lmr.WatchSettings(every=1, canaries=0, thresholds=alarms))
        return watched, Trials([lmr.create("zeroshot", clip), watched], "k", path)

    plain, whole = make()
    whole.run(lambda start: iter(batches[start:]))
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "s")[1].run(_interrupt_after(batches[:5]))
    resumed, again = make(tmp_path / "s")
    again.run(lambda start: iter(batches[start:]))
    assert plain.events
    assert resumed.events == plain.events
    assert resumed.health == plain.health
    for one, other in zip(again.collect(), whole.collect(), strict=True):
        assert one.probabilities.equal(other.probabilities)


def test_an_interrupt_within_a_batch_keeps_the_last_checkpoint(
    clip: lmr.ZeroShot, batches: list[TrialBatch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = make_trials(clip, tmp_path / "s")
    calls = 0

    def step(*arguments: object) -> lmr.Prediction:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return type(last).step(last, *arguments)  # type: ignore[arg-type]

    last = trials.methods[-1]
    monkeypatch.setattr(last, "step", step)
    with pytest.raises(KeyboardInterrupt):
        trials.run(lambda start: iter(batches[start:]), save_seconds=0)
    again = make_trials(clip, tmp_path / "s")
    again.run(lambda start: iter(batches[start:]))
    whole = make_trials(clip)
    whole.run(lambda start: iter(batches[start:]))
    assert all(a.probabilities.equal(b.probabilities) for a, b in zip(again.collect(), whole.collect(), strict=True))


@pytest.mark.parametrize("damage", ["bytes", "key"])
def test_a_checkpoint_that_does_not_fit_is_ignored(
    clip: lmr.ZeroShot, batches: list[TrialBatch], tmp_path: Path, damage: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        make_trials(clip, tmp_path / "s").run(_interrupt_after(batches[:1]))
    if damage == "bytes":
        content = bytearray((tmp_path / "s").read_bytes())
        content[-1] ^= 1
        (tmp_path / "s").write_bytes(content)
    asked: list[int] = []
    again = make_trials(clip, tmp_path / "s", "other" if damage == "key" else "k")
    again.run(lambda start: asked.append(start) or iter(batches[start:]))  # type: ignore[func-returns-value]
    assert asked == [0]
    assert len(again.places) == 20


@pytest.mark.parametrize("damage", ["word", "negative", "none", "fewer places"])
def test_a_checkpoint_with_a_wrong_count_is_ignored(
    clip: lmr.ZeroShot, batches: list[TrialBatch], tmp_path: Path, damage: str
) -> None:
    """Its digest is right, so that all of it is read before the fault is found: nothing of it may stay."""
    with pytest.raises(KeyboardInterrupt):
        make_trials(clip, tmp_path / "s").run(_interrupt_after(batches[:1]))
    tensors, facts = read_state(tmp_path / "s")
    kept = facts | {"batches": {"word": "one", "negative": "-1"}.get(damage, "1")}
    if damage == "none":
        del kept["batches"]
    if damage == "fewer places":
        tensors["places"] = tensors["places"][:-1].clone()
    write_state(tmp_path / "s", tensors, kept)
    asked: list[int] = []
    again = make_trials(clip, tmp_path / "s")
    again.run(lambda start: asked.append(start) or iter(batches[start:]))  # type: ignore[func-returns-value]
    whole = make_trials(clip)
    whole.run(lambda start: iter(batches[start:]))
    assert asked == [0]
    assert again.places.equal(whole.places)
    assert all(a.probabilities.equal(b.probabilities) for a, b in zip(again.collect(), whole.collect(), strict=True))


def test_nothing_of_a_bad_checkpoint_stays_in_a_watched_entry(
    clip: lmr.ZeroShot, batches: list[TrialBatch], tmp_path: Path
) -> None:
    def make(path: Path | None) -> Trials:
        return Trials([lmr.Watched(lmr.create("lmr", clip))], "k", path)

    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "s").run(_interrupt_after(batches[:1]))
    tensors, facts = read_state(tmp_path / "s")
    write_state(tmp_path / "s", tensors | {"places": tensors["places"][:-1].clone()}, facts)
    again, whole = make(tmp_path / "s"), make(None)
    for trials in (again, whole):
        trials.run(lambda start: iter(batches[start:]))
    found, expected = (trials.methods[0].state_dict() for trials in (again, whole))
    assert found["watch"] == expected["watch"]


def _interrupt_after(batches: list[TrialBatch]):  # type: ignore[no-untyped-def]
    def read(start: int) -> Iterator[TrialBatch]:
        yield from batches
        raise KeyboardInterrupt

    return read


def test_nothing_readable_is_an_error(clip: lmr.ZeroShot) -> None:
    with pytest.raises(lmr.LmrError, match="None of the images can be read"):
        make_trials(clip).run(lambda start: iter([TrialBatch(torch.empty(0), [])]))


# The entries.


def test_values_are_numbers_or_words() -> None:
    assert read_values("lr=3e-4, 1e-3") == ("lr", (3e-4, 1e-3))
    assert read_values("emit=after,before") == ("emit", ("after", "before"))
    assert read_values("am=True,False") == ("am", (True, False))


@pytest.mark.parametrize("text", ["lr", "lr=", "lr=1,,2", "=1", "l r=1,2"])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(lmr.LmrError, match="Cannot read the values"):
        read_values(text)


def test_a_value_or_an_argument_that_comes_twice_is_refused() -> None:
    with pytest.raises(lmr.LmrError, match="every value once"):
        read_values("lr=1e-3,0.001")
    with pytest.raises(lmr.LmrError, match="every argument once"):
        list_entries("lmr", ["lr=1", "lr=2"])


def test_the_method_as_it_is_comes_first() -> None:
    assert list_entries("lmr(am=False)", ["lr=1e-4,1e-3", "delta=0.02,0.05"]) == [
        "lmr(am=False)",
        "lmr(am=False, lr=0.0001, delta=0.02)",
        "lmr(am=False, lr=0.0001, delta=0.05)",
        "lmr(am=False, lr=0.001, delta=0.02)",
        "lmr(am=False, lr=0.001, delta=0.05)",
    ]
    assert list_entries("./mine.py:mine", ["x=1"]) == ["./mine.py:mine()", "./mine.py:mine(x=1)"]
