"""The image tower against CLIP's definition written out in float64, and against the slow reference of LMR."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import lmr
import lmr_reference as book
from lmr.core import norms as norms_module
from lmr.core import tower as adapted
from lmr.core.norms import NormBank, RowNorm
from lmr.core.streams import Streams
from lmr.core.tower import AdaptedTower
from lmr.models.towers import image as vit
from lmr.models.towers.block import fold_activations
from lmr.models.towers.image import VisionTower
from vision_reference import Norms, list_norms, make_images, make_tower, write_out


def split_row(tower: VisionTower, row: Tensor) -> Norms:
    """The norms of one row of the bank, in the order of the tower."""
    pieces = row.split(tower.config.width)
    return list(zip(pieces[::2], pieces[1::2], strict=True))


@pytest.fixture(params=[10**9, 3 * 17 * 96, 1], ids=["whole", "threes", "ones"])
def part(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """All images at once, in parts of three, one by one."""
    monkeypatch.setattr(vit, "_PART", request.param)
    return int(request.param)


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("fold", [False, True])
def test_features_and_gradient_are_those_of_the_definition(activation: str, fold: bool) -> None:
    tower = make_tower(activation)
    encode, images = write_out(tower), make_images(7)
    if fold:
        fold_activations(tower)
    bank = NormBank(tower)
    row = (bank.start + 0.1 * torch.randn_like(bank.start)).requires_grad_()
    expected = encode(images, split_row(tower, row))
    pull = torch.randn_like(expected)
    (wanted,) = torch.autograd.grad(expected, row, pull)
    with bank.serve(row.unsqueeze(0)):
        features = tower(images)
        (found,) = torch.autograd.grad(features, row, pull)
        with torch.no_grad():
            plain = tower(images)
    torch.testing.assert_close(features, expected, atol=1e-11, rtol=0)
    torch.testing.assert_close(plain, expected, atol=1e-11, rtol=0)
    torch.testing.assert_close(found, wanted, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("looping", [("cpu",), ()])
def test_every_image_may_have_its_own_norms(looping: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms_module, "_LOOPING", looping)
    tower = make_tower()
    encode, images = write_out(tower), make_images(7)
    fold_activations(tower)
    bank = NormBank(tower)
    rows = (bank.start + 0.1 * torch.randn(3, bank.size, dtype=torch.float64)).requires_grad_()
    index = torch.tensor([2, 0, 1, 1, 0, 2, 2])
    expected = torch.cat([encode(images[k : k + 1], split_row(tower, rows[index[k]])) for k in range(7)])
    pull = torch.randn_like(expected)
    (wanted,) = torch.autograd.grad(expected, rows, pull)
    with bank.serve(rows, index):
        features = tower(images)
    (found,) = torch.autograd.grad(features, rows, pull)
    torch.testing.assert_close(features, expected, atol=1e-11, rtol=0)
    torch.testing.assert_close(found, wanted, atol=1e-11, rtol=1e-11)


def count_flops(work: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("streams", [1, 3])
def test_large_batches_keep_the_first_parts_and_run_the_rest_again(
    streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eleven images in parts of one and two, of which six are kept; the result is that of keeping all."""
    tower, images = make_tower(), make_images(11)
    fold_activations(tower)
    clip = lmr.ZeroShot(tower, torch.randn(3, tower.config.features).double())
    whole = AdaptedTower(clip)
    norms = whole.bank.start.repeat(streams, 1).requires_grad_()
    index = torch.arange(11) % streams
    pull = torch.randn(11, tower.config.features, dtype=images.dtype)
    again: list[int] = []

    def differentiate() -> tuple[Tensor, Tensor]:
        features = whole.encode(images, norms, Streams(torch.arange(streams), index))
        again.clear()
        return features.detach(), torch.autograd.grad(features, norms, pull)[0]

    wanted = differentiate()
    monkeypatch.setattr(vit, "_PART", 2 * 17 * tower.config.hidden)
    monkeypatch.setattr(adapted, "_KEPT_PARTS", 3)
    handle = tower.register_forward_pre_hook(lambda module, given: again.append(len(given[0])))
    found = differentiate()
    handle.remove()
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-12)
    assert sum(again) == 5  # the parts are 1, 2, 2, 2, 2, 2


@pytest.mark.parametrize("sure", [8, 0])
def test_step_costs_three_passes_or_one(sure: int) -> None:
    """Forward, backward (whose attention is not counted) and forward again; with no image past the gate one forward."""
    tower = make_tower()
    fold_activations(tower)
    images = make_images(8)
    with torch.no_grad():
        unit = nn.functional.normalize(tower(images), dim=-1)
    # A prototype at each image makes it certain; two equal ones near it leave each of them half, below tau.
    doubtful = [unit[sure:], unit[sure:]]
    clip = lmr.ZeroShot(tower, torch.cat([unit[:sure], *doubtful, -unit]), 1000.0)
    method = lmr.create("lmr(tau=0.6)", clip)
    with torch.no_grad():
        forward = count_flops(lambda: clip.features(images))
    total = count_flops(lambda: method.step(images))
    assert method.predict(images).logits.isfinite().all()
    heads = 2 * 8 * clip.classes * tower.config.features  # comparing with the prototypes is not the tower's
    if not sure:
        assert total == forward + heads
    else:
        assert 0.8 < (total - 2 * (forward + heads)) / forward < 1.35


def test_backward_keeps_few_tensors() -> None:
    """Of each block input, q, k, v, attention, what the second norm saw, and four widths before the activation."""
    tower, images = make_tower(hidden=192, depth=6), make_images(4)
    fold_activations(tower)
    frozen = {parameter.untyped_storage().data_ptr() for parameter in tower.parameters()}
    sizes: dict[int, int] = {}

    def keep(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in frozen:
            sizes[storage.data_ptr()] = storage.nbytes() // saved.element_size()
        return saved

    row = NormBank(tower).start.unsqueeze(0).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved), NormBank(tower).serve(row):
        tower(images)
    assert sum(sizes.values()) / (len(images) * 17 * tower.config.width) < 10.5 * 5 + 1 + 5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_ten_batches_of_lmr_equal_the_reference(part: int, dtype: torch.dtype) -> None:
    tower = make_tower()
    encode, start = write_out(tower), [(w.clone(), b.clone()) for w, b in list_norms(tower)]
    fold_activations(tower)
    torch.manual_seed(5)
    anchors = torch.randn(5, 3, 32, 32, dtype=torch.float64).repeat_interleave(4, 0)
    anchors += 0.3 * torch.randn_like(anchors)  # families of near classes: clear and doubtful images
    prototypes = encode(anchors, start)
    images = anchors[torch.randint(20, (57,))]
    images = images + torch.tensor([0.1, 0.6, 1.5])[torch.randint(3, (57, 1, 1, 1))] * torch.randn_like(images)
    method = lmr.create("lmr(preset='default', delta=0.1)", lmr.ZeroShot(tower.to(dtype), prototypes.to(dtype), 15.0))
    streams = lmr.create("lmr(preset='default', delta=0.1)", method.classifier, streams=2)
    reference = book.Reference(encode, start, prototypes, scale=15.0, delta=0.1)
    stepped, gates, near = 0, [], {"atol": 1e-4 if dtype == torch.float32 else 1e-9, "rtol": 0}
    for batch in images.to(dtype).split(6):
        answer, expected = method.step(batch), reference.step(batch)
        torch.testing.assert_close(answer.logits.double(), expected, **near)
        twice = streams.step(batch.repeat_interleave(2, 0), streams=[0, 1] * len(batch)).logits
        for k in (0, 1):
            torch.testing.assert_close(twice[k::2], answer.logits, **near)
        stepped += answer.info["stepped"]
        gates.append(answer.info["gate_share"])
    assert stepped == 10
    assert 0 < min(gates) < 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_weights_keep_whole_norms(dtype: torch.dtype) -> None:
    tower = make_tower().float()
    fold_activations(tower)
    images = make_images(4).float()
    half = VisionTower(tower.config)
    fold_activations(half)
    half.load_state_dict(tower.state_dict())
    for module in half.modules():
        if not isinstance(module, RowNorm):
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.to(dtype)
    half.requires_grad_(False)
    found = []
    for model in (tower, half):
        bank = NormBank(model)
        row = bank.start.unsqueeze(0).requires_grad_()
        with bank.serve(row):
            features = model(images.to(model.positions.dtype))
        (gradient,) = torch.autograd.grad(features.float().sum(), row)
        assert gradient.dtype == torch.float32
        found.append(gradient)
    assert torch.linalg.vector_norm(found[0] - found[1]) < 0.05 * torch.linalg.vector_norm(found[0])


def test_compiled_tower_is_the_tower_also_with_served_norms() -> None:
    """One graph for a batch of one stream, without a break; the backend is torch's own operations."""
    tower, images = make_tower(), make_images(3)
    fold_activations(tower)
    bank = NormBank(tower)
    row = (bank.start + 0.1 * torch.randn_like(bank.start)).unsqueeze(0)
    compiled: Any = torch.compile(tower, backend="eager", fullgraph=True)
    assert torch.equal(compiled(images), tower(images))
    with bank.serve(row):
        found, expected = compiled(images), tower(images)
    assert torch.equal(found, expected)
    assert not torch.equal(found, tower(images))


def test_tower_runs_under_autocast() -> None:
    tower, images = make_tower().float(), make_images(3).float()
    fold_activations(tower)
    bank = NormBank(tower)
    row = bank.start.unsqueeze(0).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16), bank.serve(row):
        features = tower(images)
    assert features.dtype == torch.bfloat16
    torch.testing.assert_close(features.float(), tower(images), atol=0.5, rtol=0.1)
    (gradient,) = torch.autograd.grad(features.float().sum(), row)
    assert gradient.dtype == torch.float32
    assert gradient.isfinite().all()
