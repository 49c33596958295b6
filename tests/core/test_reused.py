"""Reused: frames that repeat take the answer of the last new one, as a reference in float64 says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lmr
from lmr.core.reused import AUDIT, KEPT, LEARNT, Reused

NAMES = ("cat", "dog", "ship", "car")
SIDE = 16


def make_classifier(names: tuple[str, ...] = NAMES) -> lmr.ZeroShot:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 8, bias=False))
        prototypes = torch.randn(len(NAMES), 8)[[NAMES.index(name) for name in names]]
    return lmr.ZeroShot(encoder, prototypes, 20.0, names=names, input_shape=(3, SIDE, SIDE))


def make(method: str = "zeroshot", streams: int = 1, **values: float) -> Reused:
    return Reused(lmr.create(method, make_classifier(), streams=streams), **values)


def draw(kind: str, count: int = 120, seed: int = 0) -> Tensor:
    """Frames of a camera: a scene with noise, and what happens in it."""
    random = np.random.default_rng(seed)
    scene = random.normal(size=(3, SIDE, SIDE))
    frames = np.stack([scene] * count)
    time = np.arange(count)[:, None, None, None]
    if kind == "light":
        frames *= 1 + 0.002 * time
    if kind == "object":
        frames[60:70, :, 4:8, 4:8] = 2.0
    if kind == "cut":
        frames[60:] = random.normal(size=(3, SIDE, SIDE))
    return torch.from_numpy(frames + 0.05 * random.normal(size=frames.shape)).float()


class Reference:
    """The rules frame by frame, in float64, with nothing of the library."""

    def __init__(self) -> None:
        self.frame: np.ndarray | None = None
        self.answer = np.zeros(4)
        self.noises: list[float] = []
        self.repeats, self.variation, self.leads, self.wavers = 0, 0.0, 0, False

    def take(self, image: np.ndarray, logits: np.ndarray) -> tuple[bool, bool]:
        """Return whether the frame is new, and whether its answer is reused."""
        image = image.astype(np.float16).astype(float)  # of 16 x 16 pixels: each is a cell
        if self.frame is None or not self._repeats(image - self.frame):
            if self.frame is None or not self._explains(image - self.frame, 4):
                self.leads = 0
            self.frame, self.answer, self.repeats, self.wavers = image, logits, 0, False
            return True, False
        label = self.answer.argmax()
        lead = self._lead(self.answer, label)
        self.repeats += 1
        sure = (self.leads >= LEARNT and lead >= 2 * self.variation**0.5) or self.repeats > 32
        if sure and not self.wavers and self.repeats % AUDIT and self.repeats not in (4, 8, 16):
            return False, True
        self.wavers |= logits.argmax() != label
        moved = (self._lead(logits, label) - lead) ** 2
        self.variation = (self.variation * self.leads + moved) / (self.leads + 1)
        self.leads = min(self.leads + 1, 32)
        return False, False

    def _repeats(self, difference: np.ndarray) -> bool:
        squares = difference.reshape(3, 8, 2, 8, 2)
        within = np.sort(np.abs(squares - squares.mean((2, 4), keepdims=True)).ravel())
        self.noises = [*self.noises, within[(len(within) - 1) // 2] * 1.4826 / 0.75**0.5][-KEPT:]
        return len(self.noises) >= LEARNT and self._explains(difference, 1)

    def _explains(self, difference: np.ndarray, factor: float) -> bool:
        noise = max(0.015, factor * sorted(self.noises)[int(0.25 * (len(self.noises) - 1))])
        peak, whole = np.abs(difference).max(), np.sqrt((difference**2).mean())
        return bool(peak <= 5 * noise and whole <= 1.2 * noise)

    @staticmethod
    def _lead(logits: np.ndarray, label: int) -> float:
        return float(logits[label] - np.delete(logits, label).max())


@pytest.mark.parametrize("kind", ["still", "light", "object", "cut"])
def test_whole_streams_are_as_the_reference_says(kind: str) -> None:
    frames, method, reference = draw(kind), make(), Reference()
    logits = method.classifier(frames)
    shared = 0
    for image, own in zip(frames, logits, strict=True):
        answer = method.step(image[None])
        new, reused = reference.take(image.double().numpy(), own.double().numpy())
        assert answer.reused is not None
        assert answer.reused.tolist() == [reused]
        expected = torch.from_numpy(reference.answer) if reused or new else own.double()
        assert torch.allclose(answer.logits[0].double(), expected, atol=1e-5)
        shared += reused
    assert shared > (20 if kind == "light" else 60)


def test_streams_share_a_batch_as_if_alone() -> None:
    kinds = ("still", "light", "cut")
    frames = [draw(kind, seed=seed) for seed, kind in enumerate(kinds)]
    together, alone = make(streams=3), [make() for _ in kinds]
    for first in range(0, 120, 4):
        parts = [own[first : first + 4] for own in frames]
        both = together.step(torch.stack(parts, 1).flatten(0, 1), streams=[0, 1, 2] * 4)
        for k, (part, method) in enumerate(zip(parts, alone, strict=True)):
            own = method.step(part)
            assert both.reused is not None
            assert both.reused[k::3].equal(own.reused)
            assert torch.allclose(both.logits[k::3], own.logits, atol=1e-5)
            assert both.info["streams"][k]["finite"]


def test_a_stream_goes_on_after_a_restart(tmp_path: Path) -> None:
    frames, method = draw("still"), make()
    for part in frames[:80].split(8):
        method.step(part)
    method.save(tmp_path / "a.state")
    again = make()
    again.load(tmp_path / "a.state")
    first, second = (one.step(frames[80:88]) for one in (method, again))
    assert first.reused is not None
    assert first.reused.any()
    assert first.reused.equal(second.reused)
    assert first.logits.equal(second.logits)
    lmr.create("zeroshot", make_classifier()).load(tmp_path / "a.state")  # a method without reuse takes the state


@pytest.mark.parametrize("change", ["reset", "classes"])
def test_no_answer_is_reused_after(change: str) -> None:
    frames, method = draw("still"), make()
    for part in frames[:80].split(8):
        method.step(part)
    if change == "reset":
        method.reset()
    else:
        method = method.with_classes(make_classifier(("ship", "dog", "cat")))
    answer = method.step(frames[80:81])
    assert answer.reused is not None
    assert not answer.reused.any()
    assert torch.allclose(answer.logits, method.classifier(frames[80:81]), atol=1e-5)


def test_labels_correct_an_answer_that_is_reused() -> None:
    frames, method = draw("still"), make()
    labelled = lmr.Labelled(method)
    for part in frames[:80].split(8):
        before = labelled.step(part)
    other = int(before.logits[-1].argsort()[-2])
    labelled.learn_labels([70, 75, 79], [other] * 3)
    answer, plain = labelled.step(frames[80:81]), method.own["answer"][:, :-1]
    assert answer.reused is not None
    assert answer.reused.all()
    assert torch.allclose(answer.logits, plain + labelled.own["offset"], atol=1e-5)
    assert int(answer.labels) == other


def test_repeats_teach_nothing() -> None:
    frames, method = draw("still"), make("bca")
    for part in frames[:80].split(8):
        method.step(part)
    before = {key: value.clone() for key, value in method.method.state.items()}
    answer = method.step(frames[80:88])
    assert answer.reused is not None
    assert answer.reused.sum() >= 7
    assert not answer.info["stepped"]
    assert all(value.equal(before[key]) for key, value in method.method.state.items())


def test_a_step_that_fails_leaves_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    frames, method = draw("cut"), make()
    for part in frames[:56].split(8):
        method.step(part)
    before = {key: value.clone() for key, value in method.state.items()}

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(lmr.Method, "step", fail)
        with pytest.raises(MemoryError):
            method.step(frames[56:72])
    assert all(value.equal(before[key]) for key, value in method.state.items())


def test_an_answer_that_is_not_finite_is_not_reused() -> None:
    method = make()
    for _ in range(40):
        answer = method.step(torch.full((1, 3, SIDE, SIDE), 3e38))
    assert answer.reused is not None
    assert not answer.reused.any() or answer.logits.isfinite().all()
    assert all(value.isfinite().all() for value in method.own.values())


def test_images_of_no_class_stay_unknown() -> None:
    frames = draw("still")
    method = Reused(lmr.create("zeroshot", make_classifier(), unknown=1.0))
    answers = [method.step(part) for part in frames.split(8)]
    last = answers[-1]
    assert last.reused is not None
    assert last.unknown is not None
    assert last.scores is not None
    assert last.reused.any()
    assert last.unknown.all()
    assert torch.allclose(last.scores, answers[0].scores[:1].expand(8), atol=0.1)  # type: ignore[index]


def test_a_limit_of_zero_reuses_nothing() -> None:
    method = make(limit=0.0)
    assert all(method.step(part).reused is None for part in draw("still").split(8))
    for limit in (-1.0, float("nan"), "x"):
        with pytest.raises(lmr.LmrError, match="limit"):
            make(limit=limit)  # type: ignore[arg-type]
