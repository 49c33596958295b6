"""The switches of LMR that do less: against the slow reference, in streams together and alone, and where they stop."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lmr
import lmr_reference as book
from lmr.bench.cost.steps import PassWatch
from lmr.core.norms import NormBank, find_blocks
from lmr.core.traits import Passes
from lmr_problem import copy_state, make_images, make_problem


@pytest.mark.parametrize("share", [0.01, 0.25, 0.6])
@pytest.mark.parametrize("rest", [{}, {"emit": "before"}, {"am": False, "positives": "top1"}, {"tau": 0.6}])
def test_share_follows_the_reference(share: float, rest: dict[str, Any]) -> None:
    tower, prototypes, anchors = make_problem()
    method = lmr.create("lmr", lmr.ZeroShot(tower, prototypes, 100.0), share=share, **rest)
    reference = book.Reference(book.write_out(tower), tower.norms, prototypes, share=share, **rest)
    stepped = []
    for images in make_images(anchors, 75).split(8):
        answer, expected = method.step(images), reference.step(images)
        assert (answer.logits - expected).abs().max() < 1e-9
        samples = reference.history[-1]["samples"]
        assert len(samples) == math.ceil(share * len(images))
        assert answer.info["gate_share"] == pytest.approx(sum(s.weight > 0 for s in samples) / len(samples), abs=1e-6)
        assert answer.info["loss"] == pytest.approx(reference.history[-1]["loss"], abs=1e-9)
        assert answer.info["stepped"] is reference.history[-1]["stepped"]
        stepped.append(answer.info["stepped"])
    assert any(stepped)
    if "tau" in rest and share < 0.1:
        assert not all(stepped)  # a batch without a confident teacher is answered by the tower as it was
    expected = {"norms": reference.flat, "mass": reference.mass, "bias": reference.bias, "running": reference.running}
    for key, value in expected.items():
        assert (method.state[key][0] - torch.as_tensor(value, dtype=torch.float64)).abs().max() < 1e-9, key


def test_share_of_everything_is_the_published_method() -> None:
    """The default, to the last bit, and under the spec that older states and rows have."""
    tower, prototypes, anchors = make_problem()
    clip = lmr.ZeroShot(tower, prototypes, 100.0)
    plain, whole = lmr.create("lmr", clip), lmr.create("lmr(share=1, blocks=None)", clip)
    assert plain.spec == whole.spec
    assert "share" not in plain.spec
    assert "blocks" not in plain.spec
    assert "share=0.5" in lmr.create("lmr(share=0.5)", clip).spec
    for images in make_images(anchors, 30).split(10):
        assert torch.equal(plain.step(images).logits, whole.step(images).logits)


@pytest.mark.parametrize("spec", ["lmr(share=0.4)", 'lmr(share=0.4, emit="before")', "lmr(share=0.2, tau=0.5)"])
def test_streams_together_are_streams_alone(spec: str) -> None:
    """Whatever the order in which a batch mixes them, each stream's own images decide which of them teach."""
    tower, prototypes, anchors = make_problem()
    clip = lmr.ZeroShot(tower, prototypes, 100.0)
    together, alone = lmr.create(spec, clip, streams=4), [lmr.create(spec, clip) for _ in range(4)]
    torch.manual_seed(0)
    for batch in make_images(anchors, 150).split(15):
        ids = torch.randint(4, (len(batch),))
        logits = together.step(batch, streams=ids).logits
        for s, other in enumerate(alone):
            if (ids == s).any():
                assert (logits[ids == s] - other.step(batch[ids == s]).logits).abs().max() < 1e-9
    for key, value in together.state.items():
        assert (value - torch.cat([other.state[key] for other in alone])).abs().max() < 1e-9, key
    assert together.state["steps"].max() >= 2


class Faulty(nn.Module):
    """A tower that gives NaN for images whose first number is 99."""

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, images: Tensor) -> Tensor:
        return torch.where(images[:, :1, 0] == 99.0, torch.nan, self.tower(images))


@pytest.mark.parametrize("emit", ["after", "before"])
@pytest.mark.parametrize("bad", [0, 9])  # with half of ten, images 1, 3, 5, 7 and 9 teach
def test_an_image_without_a_finite_answer_changes_nothing(bad: int, emit: str) -> None:
    """Also where it does not teach: its answer would enter the bias correction."""
    tower, prototypes, anchors = make_problem()
    method = lmr.create("lmr(share=0.5, tau=0.1)", lmr.ZeroShot(Faulty(tower), prototypes, 100.0), emit=emit)
    good = make_images(anchors, 10)
    method.step(good)
    before, images = copy_state(method), make_images(anchors, 10, seed=1)
    images[bad, 0, 0] = 99.0
    answer = method.step(images)
    assert answer.info["finite"] is False
    assert answer.info["stepped"] is False
    assert answer.logits.isfinite().all(1).tolist() == [k != bad for k in range(10)]
    for key in set(before) - {"predicted"}:
        assert torch.equal(method.state[key], before[key]), key


def test_a_step_into_the_void_is_taken_back_for_all_images() -> None:
    """Images that do not teach have no answer from before the step; they are asked with the norms as they were."""
    tower, prototypes, anchors = make_problem()
    method = lmr.create("lmr(lr=1e300, share=0.3, tau=0.1)", lmr.ZeroShot(tower, prototypes, 100.0))
    images = make_images(anchors, 10)
    before, expected = copy_state(method), method.predict(images).logits
    answer = method.step(images)
    assert torch.allclose(answer.logits, expected, rtol=0, atol=1e-12)
    assert answer.info["finite"] is False
    for key in set(before) - {"predicted"}:
        assert torch.equal(method.state[key], before[key]), key


@pytest.mark.parametrize(
    ("spec", "learning", "passes"),
    [
        ("lmr", 1.0, Passes(2, 1)),
        ("lmr", 0.0, Passes(1, 0)),
        ("lmr(share=0.25)", 1.0, Passes(1.25, 0.25, share=0.25)),
        ("lmr(share=0.25)", 0.125, Passes(1.25, 0.125, share=0.25)),
        ('lmr(share=0.25, emit="before")', 1.0, Passes(1, 0.25, share=0.25)),
        ("lmr(pmr=False, share=0.25)", 1.0, Passes(1, 0)),
    ],
)
def test_passes(spec: str, learning: float, passes: Passes) -> None:
    tower, prototypes, _ = make_problem()
    assert lmr.create(spec, lmr.ZeroShot(tower, prototypes)).count_passes(learning) == passes


@pytest.mark.parametrize("spec", ["lmr(share=0.25)", "lmr(share=0.4, emit='before')", "lmr(share=0.3)", "lmr"])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_passes_of_a_batch_are_those_of_whole_images(spec: str, size: int) -> None:
    """Against the images that go through the tower, and those to whose features a gradient comes."""
    tower, prototypes, anchors = make_problem()
    method = lmr.create(spec, lmr.ZeroShot(tower, prototypes, 100.0), tau=0.0)
    watch = PassWatch(size)
    with watch.observe(tower):
        assert method.step(make_images(anchors, size)).info["stepped"]
    counted = method.count_passes().of_batch(size)
    assert (counted.forwards, counted.backwards) == pytest.approx((watch.forwards, watch.backwards))


@pytest.mark.parametrize(
    "spec", ["lmr(share=0)", "lmr(share=1.5)", "lmr(blocks=0)", "lmr(blocks=-1)", "lmr(blocks=1.5)"]
)
def test_refused_values(spec: str) -> None:
    tower, prototypes, _ = make_problem()
    with pytest.raises(lmr.LmrError, match=r"share|block"):
        lmr.create(spec, lmr.ZeroShot(tower, prototypes))


# Blocks of a module that is not ours.


class Own(nn.Module):
    """A tower of one's own, with blocks in a list: images [B, 3, 6] to features [B, 10]."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.embed, self.before = nn.Linear(6, 8), nn.LayerNorm(8)
        blocks = [nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.Tanh()) for _ in range(depth)]
        self.layers = nn.ModuleList(blocks)
        self.after, self.head = nn.LayerNorm(8), nn.Linear(8, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.before(self.embed(images))
        for layer in self.layers:
            x = x + layer(x)
        return self.head(self.after(x.mean(1)))  # type: ignore[no-any-return]


def test_blocks_of_a_module_of_ones_own() -> None:
    """Without an interface the norms of the last blocks adapt, as with all others frozen in the reference."""
    torch.manual_seed(3)
    tower = Own().double()
    assert find_blocks(tower) == ("layers", 3)
    bank = NormBank(tower, 2)
    assert [norm.name for norm in bank.norms] == ["layers.1.0", "layers.2.0", "after"]
    anchors = torch.randn(12, 3, 6, dtype=torch.float64)
    with torch.no_grad():
        prototypes = tower(anchors)
    start = [(m.weight.clone(), m.bias.clone()) for m in (tower.layers[1][0], tower.layers[2][0], tower.after)]

    def encode(images: Tensor, norms: Any) -> Tensor:
        frozen, state = dict(tower.named_parameters()), {}
        for name, (weight, bias) in zip(["layers.1.0", "layers.2.0", "after"], norms, strict=True):
            state |= {f"{name}.weight": weight, f"{name}.bias": bias}
        return torch.func.functional_call(tower, frozen | state, (images,))  # type: ignore[no-any-return]

    clip = lmr.ZeroShot(tower, prototypes, 100.0)
    method, streams = (
        lmr.create("lmr(blocks=2, share=0.5)", clip),
        lmr.create("lmr(blocks=2, share=0.5)", clip, streams=2),
    )
    reference = book.Reference(encode, start, prototypes, share=0.5)
    for images in make_images(anchors, 40).split(8):
        answer = method.step(images)
        assert (answer.logits - reference.step(images)).abs().max() < 1e-9
        twice = streams.step(images.repeat(2, 1, 1), streams=[0] * 8 + [1] * 8).logits
        assert (twice[8:] - answer.logits).abs().max() < 1e-9
    assert reference.steps == 5


def test_a_module_without_blocks_is_refused() -> None:
    tower, prototypes, _ = make_problem()
    with pytest.raises(lmr.LmrError, match="not known which blocks are the last"):
        lmr.create("lmr(blocks=1)", lmr.ZeroShot(tower, prototypes))
