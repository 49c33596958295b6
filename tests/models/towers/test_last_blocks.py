"""A tower that starts at a block: its features, its gradient and its cost, against the tower written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import lmr
import lmr_reference as book
from lmr.bench.flops import count_image
from lmr.core.norms import NormBank
from lmr.core.spec import parse_spec
from lmr.models.towers import image as vit
from lmr.models.towers.block import fold_activations
from lmr.models.towers.image import VisionTower
from vision_reference import list_norms, make_images, make_tower, write_out

DEPTH = 3


@pytest.fixture(params=[("fast", 10**9), ("fast", 3 * 17 * 96), ("lean", 3 * 17 * 96)])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """All images at once and in parts; keeping much and keeping little."""
    memory, part = request.param
    monkeypatch.setattr(vit, "_PART", part)
    monkeypatch.setattr(vit, "_FORWARD_PART", part)
    return str(memory)


def write_out_last(tower: VisionTower, blocks: int) -> tuple[Callable[[Tensor, Any], Tensor], Any]:
    """The tower as a function of images and of the norms of its last blocks; and these norms."""
    encode, norms = write_out(tower), [(w.clone(), b.clone()) for w, b in list_norms(tower)]
    before = 1 + 2 * (DEPTH - blocks)
    return lambda images, last: encode(images, norms[:before] + list(last)), norms[before:]


@pytest.mark.parametrize("blocks", [1, 2, 3])
@pytest.mark.parametrize("many", [False, True])
def test_features_and_gradient(mode: str, blocks: int, many: bool) -> None:
    tower = make_tower()
    encode, norms = write_out_last(tower, blocks)
    fold_activations(tower)
    tower.set_mode(memory=mode)
    bank, images, first = NormBank(tower, blocks), make_images(7), DEPTH - blocks
    assert bank.size == 2 * tower.config.width * (2 * blocks + 1)
    rows = (bank.start + 0.1 * torch.randn(1 + many, bank.size, dtype=torch.float64)).requires_grad_()
    index = torch.arange(7) % len(rows)
    width = tower.config.width

    def split(row: Tensor) -> Any:
        return list(zip(row.split(width)[::2], row.split(width)[1::2], strict=True))

    expected = torch.cat([encode(images[k : k + 1], split(rows[index[k]])) for k in range(7)])
    pull = torch.randn_like(expected)
    pull[[2, 5]] = 0
    (wanted,) = torch.autograd.grad(expected, rows, pull)
    hidden = tower.embed_until(images, first)
    kept = hidden.clone()
    with bank.serve(rows, index):
        features = tower(hidden, first)
        (found,) = torch.autograd.grad(features, rows, pull, retain_graph=True)
        with torch.no_grad():
            plain = tower(hidden, first)
        whole = tower(images)  # the same norms, from the images on
        (also,) = torch.autograd.grad(whole, rows, pull)
    for given in (features, plain, whole):
        torch.testing.assert_close(given, expected, atol=1e-11, rtol=0)
    for gradient in (found, also):
        torch.testing.assert_close(gradient, wanted, atol=1e-11, rtol=1e-11)
    assert torch.equal(hidden, kept)  # several passes start from it
    assert len(norms) == 2 * blocks + 1


def test_activations_may_require_gradient() -> None:
    tower = make_tower()
    encode, norms = write_out_last(tower, 1)
    hidden = tower.embed_until(make_images(3), 2).requires_grad_()
    assert torch.autograd.grad(tower(hidden, 2).sum(), hidden)[0].abs().sum() > 0
    torch.testing.assert_close(tower(hidden, 2), encode(make_images(3), norms), atol=1e-11, rtol=0)


@pytest.mark.parametrize(
    ("spec", "dtype"),
    [
        ("blocks=1", torch.float64),
        ("blocks=2, share=0.5", torch.float64),
        ("blocks=2, share=0.5", torch.float32),
        ('blocks=2, emit="before"', torch.float64),
        ("blocks=7", torch.float64),
    ],
)
def test_streams_of_lmr_equal_the_reference(mode: str, spec: str, dtype: torch.dtype) -> None:
    """Whole streams, alone and two in one batch. More blocks than there are means all, without the norm before."""
    arguments = parse_spec(f"lmr({spec})")[1]
    tower = make_tower()
    encode, norms = write_out_last(tower, min(DEPTH, arguments.pop("blocks")))
    fold_activations(tower)
    tower.set_mode(memory=mode)
    torch.manual_seed(5)
    anchors = torch.randn(5, 3, 32, 32, dtype=torch.float64).repeat_interleave(4, 0)
    anchors += 0.3 * torch.randn_like(anchors)
    prototypes = encode(anchors, norms)
    images = anchors[torch.randint(20, (32,))]
    images = images + torch.tensor([0.1, 0.6, 1.5])[torch.randint(3, (32, 1, 1, 1))] * torch.randn_like(images)
    method = lmr.create(f"lmr(delta=0.1, {spec})", lmr.ZeroShot(tower.to(dtype), prototypes.to(dtype), 15.0))
    streams = lmr.create(method.spec, method.classifier, streams=2)
    reference = book.Reference(encode, norms, prototypes, scale=15.0, delta=0.1, **arguments)
    near = {"atol": 1e-4 if dtype == torch.float32 else 1e-9, "rtol": 0}
    stepped = 0
    for batch in images.to(dtype).split(7):
        answer, expected = method.step(batch), reference.step(batch)
        torch.testing.assert_close(answer.logits.double(), expected, **near)
        twice = streams.step(batch.repeat_interleave(2, 0), streams=[0, 1] * len(batch)).logits
        for k in (0, 1):
            torch.testing.assert_close(twice[k::2], answer.logits, **near)
        stepped += answer.info["stepped"]
    assert stepped == 5
    assert (method.state["norms"][0].double() - reference.flat).abs().max() < near["atol"]
    torch.testing.assert_close(
        method.predict(batch).logits.double() - method.state["bias"].double(),
        reference.score(batch, reference.norms),
        **near,
    )


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_weights(half: torch.dtype) -> None:
    """Starting at a block gives the digits of the whole pass, and the norms stay whole."""
    tower = make_tower().float()
    fold_activations(tower)
    for module in tower.modules():
        if not isinstance(module, torch.nn.LayerNorm):
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.to(half)
    images = make_images(4).to(half)
    bank = NormBank(tower, 1)
    row = bank.start.unsqueeze(0).requires_grad_()
    with bank.serve(row):
        features = tower(tower.embed_until(images, 2), 2)
        assert features.dtype == half
        (gradient,) = torch.autograd.grad(features.float().sum(), row)
    assert gradient.dtype == torch.float32
    with torch.no_grad():
        torch.testing.assert_close(features.detach(), tower(images), atol=0, rtol=0)


def test_what_does_not_fit_is_refused() -> None:
    tower = make_tower()
    with pytest.raises(lmr.LmrError, match=r"activations \['B', 17, 48\], got \[2, 3, 32, 32\]"):
        tower(make_images(2), 1)
    with pytest.raises(lmr.LmrError, match="from 0 to 2 to start at, got 3"):
        tower(torch.zeros(2, 17, 48), 3)
    with pytest.raises(lmr.LmrError, match="from 0 to 2, got -1"):
        tower.embed_until(make_images(2), -1)


def count_flops(work: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_arithmetic_is_that_of_the_last_blocks(blocks: int) -> None:
    tower = make_tower()
    fold_activations(tower)
    images, first, bank = make_images(1), DEPTH - blocks, NormBank(tower, blocks)
    last, hidden = count_image(tower, blocks), tower.embed_until(images, first)
    with torch.no_grad():
        found, whole = count_flops(lambda: tower(hidden, first)), count_flops(lambda: tower(images))
        assert found + count_flops(lambda: tower.embed_until(images, first)) == whole
    attention = 4 * 17 * 48 * (17 * (blocks - 1) + 1)  # which torch does not count on a CPU
    assert found + attention == last.forward
    row = bank.start.unsqueeze(0).requires_grad_()
    with bank.serve(row):
        features = tower(hidden, first)
    # The backward computes the scores of attention again, which the count of what is needed leaves out.
    assert count_flops(lambda: torch.autograd.grad(features.sum(), row)) == last.backward + attention // 2
