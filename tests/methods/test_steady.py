"""Steady against the slow reference beside the tests, image by image, over streams that pass through every phase."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lmr
import lmr_reference as book
from lmr.core.passes import count_passes
from lmr.core.streams import Streams
from lmr.methods.steady import BLOCK, MEMORY, VARIANCES, describe_pixels, measure_novelty
from lmr_problem import copy_state
from steady_problem import Phase, PictureTower, draw, encode_pictures, make_problem
from steady_reference import SteadyReference, describe

FAST = {"lr": 5e-3, "eta": 0.1, "gamma0": 4.0, "beta": 1.0}  # so that a short drift leaves traces
SIZES = (1, 7, 64)
LIFE = (
    Phase(80, skew=0.5),
    Phase(80, noise=0.4, light=0.8, skew=0.5),
    Phase(36, noise=0.4, light=0.8, skew=0.5, repeats=3),
    Phase(88, noise=0.4, light=-0.8, skew=0.5),  # other weather, and as bad
    Phase(104, detail=1.2, skew=0.5),  # other images than at first, and as clear
    Phase(24, detail=1.2, skew=0.5, repeats=8),
    Phase(93, noise=0.4, light=-0.9),
)
BAD = Phase(120, noise=0.2, light=0.8, skew=0.5)
BEGINS_BAD = (Phase(80, noise=0.4, light=0.8), Phase(104), Phase(93, noise=0.4, light=0.9))
OF_NORMS = {"norms", "first", "second", "steps", "gradient", "weight", "class_weights", "mass"}
SHARES = (3.0, 0.0, *[1.0] * 10)


@functools.cache
def load_problem() -> tuple[PictureTower, Tensor, Tensor]:
    return make_problem()


def make_classifier(dtype: torch.dtype = torch.float64, kind: type[PictureTower] = PictureTower) -> lmr.ZeroShot:
    tower, prototypes, _ = load_problem()
    copied = kind().double()
    copied.load_state_dict(tower.state_dict())
    return lmr.ZeroShot(copied.to(dtype), prototypes.to(dtype), 100.0)


@functools.cache
def draw_life(phases: tuple[Phase, ...] = LIFE, seed: int = 0) -> Tensor:
    return draw(load_problem()[2], phases, seed)


def make_reference(**spec: Any) -> SteadyReference:
    tower, prototypes, _ = load_problem()
    encode = book.write_out(tower)

    def see(images: Tensor, norms: book.Norms) -> Tensor:
        return encode_pictures(lambda columns: encode(columns, norms), images)

    return SteadyReference(see, tower.norms, prototypes, **spec)


@functools.cache
def follow(phases: tuple[Phase, ...] = LIFE, seed: int = 0, prior: Any = "history") -> tuple[SteadyReference, Tensor]:
    """The reference after a stream, and its answers."""
    reference = make_reference(**FAST, prior=prior)
    return reference, reference.step(draw_life(phases, seed))


def flow(method: lmr.Method, images: Tensor, size: int) -> Tensor:
    return torch.cat([method.step(batch).logits for batch in images.split(size)])


def check_state(method: lmr.Method, reference: SteadyReference, row: int = 0, tolerance: float = 1e-9) -> None:
    """All that the stream has learnt and counted."""
    expected = {
        "norms": reference.flat,
        "first": torch.cat([t.flatten() for t in reference.first]),
        "second": torch.cat([t.flatten() for t in reference.second]),
        "gradient": torch.cat([t.flatten() for t in reference.gradient]),
        "block": reference.list_block(),
        "history": [a + b for a, b in zip(reference.certain, reference.doubtful, strict=True)],
        "running": reference.running or [0.0] * reference.classes,
        "answered": [sum(w for w, k, _ in reference.clear if k == c) for c in range(reference.classes)],
        "clarities": [sum(w * v for w, k, v in reference.clear if k == c) for c in range(reference.classes)],
        "squares": sum(w * v * v for w, _, v in reference.clear),
        "last": reference.last or [0.0] * len(VARIANCES),
    }
    names = ["steps", "adapting", "looking", "images", "weight", "pending", "class_weights", "answers", "mass", "bias"]
    names += ["recent", "domain_pixels", "domain_images", "predicted", "fall", "rise", "doubtful", "age"]
    names += ["onset", "until"]
    expected |= {name: getattr(reference, name) for name in names}
    if "norms" not in method.state:
        expected = {key: expected[key] for key in expected.keys() - OF_NORMS}
    assert set(expected) == set(method.state)
    for key, value in expected.items():
        difference = (method.state[key][row].double() - torch.as_tensor(value, dtype=torch.float64)).abs().max().item()
        assert difference <= tolerance, f"{key} is off by {difference}"


# Whole streams.


def test_streams_pass_through_every_phase() -> None:
    """What the comparisons below stand on: all branches occur, and rounding can turn no decision over."""
    life, bad = follow()[0], follow(BEGINS_BAD)[0]
    expected = ["drifted", "changed", "drifted still", "changed", "quiet", "drifted"]
    assert [word for _, word in life.log] == expected
    assert [word for _, word in bad.log] == ["clearer", "drifted"]
    assert min(life.slack, bad.slack) > 1e-6


@pytest.mark.parametrize("phases", [LIFE, BEGINS_BAD], ids=["life", "begins bad"])
@pytest.mark.parametrize("size", SIZES[1:])
def test_every_batching_gives_the_answers_of_the_reference(size: int, phases: tuple[Phase, ...]) -> None:
    method = lmr.create("steady", make_classifier(), **FAST)
    reference, expected = follow(phases)
    torch.testing.assert_close(flow(method, draw_life(phases), size), expected, atol=1e-9, rtol=0)
    check_state(method, reference)
    adapted = reference.score(draw_life()[:5], reference.norms) + torch.tensor(reference.bias, dtype=torch.float64)
    torch.testing.assert_close(method.predict(draw_life()[:5]).logits, adapted, atol=1e-9, rtol=0)


@pytest.mark.parametrize("prior", ["uniform", SHARES], ids=["uniform", "given"])
def test_stream_with_known_shares_adapts_from_the_first_image_on(prior: Any) -> None:
    phases = (BAD, Phase(24, noise=0.2, light=0.8, repeats=4), Phase(85, skew=0.5))
    reference, expected = follow(phases, prior=prior)
    assert {word for _, word in reference.log} == {"changed"}
    for size in (1, 7, 64):
        method = lmr.create("steady", make_classifier(), **FAST, prior=prior)
        torch.testing.assert_close(flow(method, draw_life(phases), size), expected, atol=1e-9, rtol=0)
        check_state(method, reference)
    assert reference.steps > 1
    assert max(map(abs, reference.bias)) > 0.1


@pytest.mark.parametrize(
    "spec",
    [
        {"negatives": 2, "delta": 0.05, "tau": 0.5},
        {"gamma0": 0.3, "beta": 3.0},
        {"mu": 0.5, "clip": 0.1, "eta": 0.4},
        {"eps": 0.5},
        {"lr": 1e-2, "tau": 0.0},
    ],
    ids=str,
)
def test_values(spec: dict[str, Any]) -> None:
    phases = (Phase(56, skew=0.5), Phase(93, noise=0.4, light=0.9, skew=0.5))
    reference = make_reference(**FAST | spec)
    expected = reference.step(draw_life(phases))
    assert reference.steps > 1
    method = lmr.create("steady", make_classifier(), **FAST | spec)
    torch.testing.assert_close(flow(method, draw_life(phases), 20), expected, atol=1e-9, rtol=0)
    check_state(method, reference)


def test_long_domain_waits_for_more_images_between_steps() -> None:
    """A step waits for a part of all new images, with a state that says so; 1,000 images would take the test long."""
    images = draw_life((BAD,))
    given: dict[str, Any] = FAST | {"prior": "uniform"}
    method, reference = lmr.create("steady", make_classifier(), **given), make_reference(**given)
    flow(method, images, 64)
    reference.step(images)
    before = reference.steps
    reference.age = 1100.0
    method.state["age"].fill_(1100.0)
    torch.testing.assert_close(flow(method, images, 7), reference.step(images), atol=1e-9, rtol=0)
    assert reference.steps - before < 0.7 * before
    check_state(method, reference)


def test_frozen_model_is_asked_again_after_long() -> None:
    """The pixels do not change; a stream that is drifted still keeps what it has learnt."""
    images = draw_life((LIFE[0], Phase(160, noise=0.2, light=0.9, skew=0.5)))
    method, reference = lmr.create("steady", make_classifier(), **FAST), make_reference(**FAST)
    flow(method, images[:140], 64)
    reference.step(images[:140])
    reference.age = MEMORY - 10.0
    method.state["age"].fill_(MEMORY - 10.0)
    steps = reference.steps
    torch.testing.assert_close(flow(method, images[140:], 7), reference.step(images[140:]), atol=1e-9, rtol=0)
    check_state(method, reference)
    assert [word for _, word in reference.log] == ["drifted", "asked", "drifted still"]
    assert reference.steps > steps > 0


@pytest.mark.parametrize("life", [LIFE[:2], LIFE], ids=["drifted", "two drifts"])
def test_second_pass_adapts_from_where_the_drift_began(life: tuple[Phase, ...]) -> None:
    images = draw_life(life)
    reference = make_reference(**FAST)
    reference.step(images)
    reference.rewind()
    known, steps = reference.until, reference.steps
    expected = reference.step(images)
    assert steps > 0
    assert (known, "drifted") in reference.log
    for size in (1, 7, 64):
        method = lmr.create("steady", make_classifier(), **FAST)
        flow(method, images, size)
        method.rewind()
        torch.testing.assert_close(flow(method, images, size), expected, atol=1e-9, rtol=0)
        check_state(method, reference)


@pytest.mark.parametrize("prior", ["uniform", "history"])
def test_second_pass_goes_on_where_no_drift_began(prior: str) -> None:
    """Streams that adapt from the first image on, and those that are quiet at the end."""
    method = lmr.create("steady", make_classifier(), **FAST, prior=prior)
    flow(method, draw_life(LIFE[:1]), 64)
    before = copy_state(method)
    method.rewind()
    assert all(torch.equal(value, before[key]) for key, value in method.state.items())


def test_streams_of_a_mixed_batch_get_what_they_get_alone() -> None:
    """Three streams in different phases; a stream that is absent does not change."""
    lives = [(LIFE, 0), (BEGINS_BAD, 0), (LIFE[:3], 1)]
    method = lmr.create("steady", make_classifier(), **FAST, streams=4)
    generator = torch.Generator().manual_seed(0)
    streams = [draw_life(*life) for life in lives]
    left, found = [0, 0, 0], [torch.empty(0, 12, dtype=torch.float64)] * 3
    while any(place < len(images) for place, images in zip(left, streams, strict=True)):
        ids = torch.randint(3, (13,), generator=generator).tolist()
        rows, kept = [], []
        for k in ids:
            if left[k] < len(streams[k]):
                rows.append(streams[k][left[k]])
                kept.append(k)
                left[k] += 1
        if not kept:
            continue
        before = copy_state(method)
        logits = method.step(torch.stack(rows), streams=kept).logits
        for k in range(4):
            own = torch.tensor(kept) == k
            if own.any():
                found[k] = torch.cat([found[k], logits[own]])
            else:
                assert all(torch.equal(value[k], before[key][k]) for key, value in method.state.items())
    for k, life in enumerate(lives):
        reference, expected = follow(*life)
        torch.testing.assert_close(found[k], expected, atol=1e-9, rtol=0)
        check_state(method, reference, k)


def test_float32_answers_are_the_same_for_every_batching() -> None:
    clip, images = make_classifier(torch.float32), draw_life(BEGINS_BAD).float()
    expected, *others = [flow(lmr.create("steady", clip, **FAST), images, size) for size in SIZES]
    for logits in others:
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
    assert (expected - follow(BEGINS_BAD)[1]).abs().max() < 1e-2


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_share_follows_the_reference_in_every_batching(share: float) -> None:
    """Only the share of a drifted stream's images enters the gradient; with a tenth, blocks without any occur."""
    phases = LIFE[:2]
    images, reference = draw_life(phases), make_reference(**FAST, share=share)
    expected = reference.step(images)
    assert reference.steps > 0
    assert reference.slack > 1e-6
    for size in (1, 7, 64):
        method = lmr.create("steady", make_classifier(), **FAST, share=share)
        torch.testing.assert_close(flow(method, images, size), expected, atol=1e-9, rtol=0)
        check_state(method, reference)
    whole = lmr.create("steady", make_classifier(), **FAST)
    assert (flow(whole, images, 64) - expected).abs().max() > 1e-3


@pytest.mark.parametrize("prior", ["history", "uniform"])
def test_bias_alone_adapts_at_the_cost_of_the_frozen_model_without_a_learning_rate(prior: str) -> None:
    images, values = draw_life(LIFE[:2]), FAST | {"lr": 0.0, "prior": prior}
    method, reference = lmr.create("steady", make_classifier(), **values), make_reference(**values)
    torch.testing.assert_close(flow(method, images, 20), reference.step(images), atol=1e-9, rtol=0)
    check_state(method, reference)
    assert max(map(abs, reference.bias)) > 0.1
    adapted = method.classifier(images[:5]) + torch.tensor(reference.bias, dtype=torch.float64)
    torch.testing.assert_close(method.predict(images[:5]).logits, adapted, atol=1e-9, rtol=0)
    passes = count_passes(method, 20)
    assert passes is not None
    assert (passes.forwards, passes.backwards, method.trainable) == (1, 0, 0)


# States.


@pytest.mark.parametrize("place", [83, 277, 430])
def test_stream_resumes_in_the_middle_of_a_block(place: int, tmp_path: Any) -> None:
    images = draw_life()[place - 43 : place + 61]
    whole, first, second = (lmr.create("steady", make_classifier(), **FAST) for _ in range(3))
    for method in (whole, first):
        flow(method, draw_life()[: place - 43], 64)
        flow(method, images[:43], 43)
    first.save(tmp_path / "state")
    second.load(tmp_path / "state")
    assert torch.equal(flow(second, images[43:], 5), flow(whole, images[43:], 5))
    assert all(torch.equal(value, second.state[key]) for key, value in whole.state.items())


def test_quiet_stream_is_answered_by_the_frozen_model() -> None:
    clip = make_classifier()
    method = lmr.create("steady", clip, **FAST)
    images = draw_life(LIFE[:1])
    answers = [method.step(batch) for batch in images.split(20)]
    torch.testing.assert_close(torch.cat([answer.logits for answer in answers]), clip(images), atol=0, rtol=0)
    assert not any(answer.info["adapting"] or answer.info["stepped"] or answer.info["drift"] for answer in answers)
    shares = method.state["history"][0] / method.state["history"].sum()
    counts = torch.bincount(clip(images).argmax(1), minlength=12) / len(images)
    assert (shares - counts).abs().max() < 0.15


def test_bad_images_before_the_alarm_leave_the_class_shares() -> None:
    """The history after the alarm is that of the last block in which the sum of the falls was 0."""
    method, images = lmr.create("steady", make_classifier(), **FAST), draw_life(LIFE[:2])
    certain, blocks = method.state["history"].clone(), 0
    for block in images.split(BLOCK):
        method.step(block)
        if method.phases() == ["adapting"]:
            break
        blocks += int(method.state["fall"] > 0)
        certain = method.state["history"].clone() if method.state["fall"] == 0 else certain * (1 - len(block) / MEMORY)
    assert blocks > 0
    assert method.phases() == ["adapting"]
    assert (method.state["doubtful"] == 0).all()
    torch.testing.assert_close(method.state["history"], certain, atol=0.05, rtol=0.01)


def test_info_says_when_a_stream_adapts_and_steps() -> None:
    """In batches of one image."""
    method, reference = lmr.create("steady", make_classifier(), **FAST), make_reference(**FAST)
    seen = set()
    for image in draw_life().split(1):
        steps, learns = reference.steps, reference.adapting
        expected, answer = reference.step(image), method.step(image)
        torch.testing.assert_close(answer.logits, expected, atol=1e-9, rtol=0)
        assert answer.info["adapting"] is reference.adapting
        assert answer.info["stepped"] is (reference.steps > steps)
        assert answer.info["gate_share"] == float(learns and reference.passed)
        seen.add((answer.info["adapting"], answer.info["stepped"]))
    check_state(method, reference)
    assert seen == {(False, False), (True, False), (True, True)}


def test_state_of_a_large_model_is_small() -> None:
    """The norms of ViT-B/16, two in each of twelve blocks and two around them, and 1,000 classes."""
    encoder = nn.Sequential(nn.Flatten(), *[nn.LayerNorm(768) for _ in range(26)])
    method = lmr.create("steady", lmr.ZeroShot(encoder, torch.randn(1000, 768)))
    assert method.trainable == 39_936
    assert sum(value.nbytes for value in method.state.values()) <= 1_500_000


# Arguments.


def test_values_for_few_classes_are_those_of_lmr() -> None:
    clip = make_classifier()
    method = lmr.create("steady", clip, preset="auto")
    assert (method.gamma0, method.beta) == (0.3, 3.0)  # type: ignore[attr-defined]
    assert method.spec == lmr.create("steady", clip, preset="cifar10-c").spec


# Pixels.


@pytest.mark.parametrize(
    "shape", [(3, 9, 6), (3, 32, 32), (3, 4, 4), (3, 3, 3), (3, 2, 5), (3, 1, 1), (1, 5, 7), (4, 6, 4)], ids=str
)
def test_pixel_statistics(shape: tuple[int, ...]) -> None:
    images = torch.randn(3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    images[1] *= torch.linspace(0, 1, shape[2], dtype=torch.float64)
    images[2] = 0.7
    expected = torch.tensor([describe(image) for image in images], dtype=torch.float64)
    assert describe_pixels(images).shape == (3, len(VARIANCES))
    torch.testing.assert_close(describe_pixels(images), expected, atol=1e-10, rtol=0)
    torch.testing.assert_close(describe_pixels(images.float()), expected.float(), atol=1e-3, rtol=1e-4)
    half = images.half()
    torch.testing.assert_close(describe_pixels(half), describe_pixels(half.float()), atol=0, rtol=0)


@pytest.mark.parametrize(
    "change",
    [
        lambda images: images + 1.0,
        lambda images: 2 * images,
        lambda images: images + 0.5 * torch.randn(images.shape, generator=torch.Generator().manual_seed(1)),
        lambda images: nn.functional.avg_pool2d(images, 5, 1, 2),
        lambda images: images.mean(1, keepdim=True).expand_as(images),
        lambda images: images * torch.tensor([1.5, 1.0, 0.3]).view(3, 1, 1),
    ],
    ids=["light", "contrast", "noise", "blur", "grey", "colour"],
)
def test_changes_of_pixels_move_a_statistic_far(change: Callable[[Tensor], Tensor]) -> None:
    smooth = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    images = nn.functional.interpolate(smooth, scale_factor=4, mode="bilinear") + 0.4
    moved = describe_pixels(change(images)).mean(0) - describe_pixels(images).mean(0)
    assert (moved.square() / torch.tensor(VARIANCES)).max() > 1


def test_novelty_is_measured_against_the_image_before_in_the_stream() -> None:
    generator = torch.Generator().manual_seed(0)
    deviations = torch.tensor(VARIANCES, dtype=torch.float64).sqrt()
    pixels = torch.randn(2000, len(VARIANCES), dtype=torch.float64, generator=generator) * deviations
    one = Streams(torch.tensor([0]), torch.zeros(len(pixels), dtype=torch.int64))
    last, begun = torch.zeros(1, len(VARIANCES), dtype=torch.float64), torch.tensor([False])
    novelty = measure_novelty(pixels, last, begun, one)
    assert novelty[0] == 1
    assert 0.9 < novelty.mean() < 1.1
    assert novelty.max() <= 2
    expected = ((pixels[1:] - pixels[:-1]) / deviations).square().mean(1) / 2
    torch.testing.assert_close(novelty[1:], expected.clamp(max=2))
    assert (measure_novelty(pixels[:1].repeat(5, 1), pixels[:1], torch.tensor([True]), one.take(slice(5))) == 0).all()
    mixed = Streams(torch.tensor([3, 5]), torch.tensor([1, 0, 1, 0, 0]))
    found = measure_novelty(pixels[:5], pixels[5:7], torch.tensor([True, False]), mixed)
    steps = [None, (1, 5), (2, 0), (3, 1), (4, 3)]
    for k, pair in enumerate(steps):
        distance = 1.0 if pair is None else ((pixels[pair[0]] - pixels[pair[1]]) / deviations).square().mean() / 2
        assert found[k] == pytest.approx(min(2.0, float(distance)))


def test_repeated_frames_teach_nothing() -> None:
    images = draw_life()
    for seen, adapts in ((72, 0), (272, 1)):  # a block is over after both
        method = lmr.create("steady", make_classifier(), **FAST)
        flow(method, images[:seen], 64)
        before = copy_state(method)
        assert before["adapting"].item() == adapts
        flow(method, images[seen - 1 : seen].repeat(5 * BLOCK, 1, 1, 1), 7)
        changed = {key for key, value in method.state.items() if not torch.equal(value, before[key])}
        assert changed == {"images", "predicted"}
