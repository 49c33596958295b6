"""The image tower against CLIP's definition written out in float64, and against the slow reference of LMR."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import lmr
import lmr_reference as book
from lmr.core.norms import NormBank, RowNorm
from lmr.models.towers import block as steps
from lmr.models.towers import buffers
from lmr.models.towers import image as vit
from lmr.models.towers.block import fold_activations
from lmr.models.towers.buffers import Arena
from lmr.models.towers.image import VisionTower
from vision_reference import Norms, list_norms, make_images, make_tower, write_out


def split_row(tower: VisionTower, row: Tensor) -> Norms:
    """The norms of one row of the bank, in the order of the tower."""
    pieces = row.split(tower.config.width)
    return list(zip(pieces[::2], pieces[1::2], strict=True))


@pytest.fixture(params=[("fast", 10**9, 10**9), ("fast", 3 * 17 * 96, 1), ("lean", 10**9, 10**9), ("lean", 1, 1)])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every way to compute a step: all images at once, in parts, one by one; keeping much and keeping little."""
    memory, part, scores = request.param
    monkeypatch.setattr(vit, "_PART", part)
    monkeypatch.setattr(vit, "_FORWARD_PART", part)
    monkeypatch.setattr(steps, "_SCORES", scores)
    return str(memory)


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("fold", [False, True])
def test_features_and_gradient_are_those_of_the_definition(mode: str, activation: str, fold: bool) -> None:
    tower = make_tower(activation)
    encode, images = write_out(tower), make_images(7)
    if fold:
        fold_activations(tower)
    tower.set_memory(mode)
    bank = NormBank(tower)
    row = (bank.start + 0.1 * torch.randn_like(bank.start)).requires_grad_()
    expected = encode(images, split_row(tower, row))
    pull = torch.randn_like(expected)
    pull[[2, 5]] = 0
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
def test_every_image_may_have_its_own_norms(
    mode: str, looping: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "_LOOPING", looping)
    tower = make_tower()
    encode, images = write_out(tower), make_images(7)
    fold_activations(tower)
    tower.set_memory(mode)
    bank = NormBank(tower)
    rows = (bank.start + 0.1 * torch.randn(3, bank.size, dtype=torch.float64)).requires_grad_()
    index = torch.tensor([2, 0, 1, 1, 0, 2, 2])
    expected = torch.cat([encode(images[k : k + 1], split_row(tower, rows[index[k]])) for k in range(7)])
    pull = torch.randn_like(expected)
    pull[3] = 0
    (wanted,) = torch.autograd.grad(expected, rows, pull)
    with bank.serve(rows, index):
        features = tower(images)
        (found,) = torch.autograd.grad(features, rows, pull)
    torch.testing.assert_close(features, expected, atol=1e-11, rtol=0)
    torch.testing.assert_close(found, wanted, atol=1e-11, rtol=1e-11)


def test_whoever_wants_all_gradients_gets_them() -> None:
    tower = make_tower()
    encode, images = write_out(tower), make_images(3).requires_grad_()
    features = tower(images)
    (found,) = torch.autograd.grad(features.sum(), images)
    (wanted,) = torch.autograd.grad(encode(images, list_norms(tower)).sum(), images)
    torch.testing.assert_close(found, wanted, atol=1e-11, rtol=1e-11)
    tower.requires_grad_(True)
    tower(images.detach()).sum().backward()
    assert all(parameter.grad is not None for parameter in tower.parameters())


def test_graph_can_be_walked_twice() -> None:
    tower = make_tower()
    row = NormBank(tower).start.unsqueeze(0).requires_grad_()
    with NormBank(tower).serve(row):
        features = tower(make_images(3))
    first = torch.autograd.grad(features.sum(), row, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(features.sum(), row)[0])


def count_flops(work: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def test_images_without_gradient_cost_no_backward() -> None:
    tower = make_tower()
    fold_activations(tower)
    bank = NormBank(tower)
    row = bank.start.unsqueeze(0).requires_grad_()
    images = make_images(8)
    with bank.serve(row):
        features = tower(images)
    costs = []
    for kept in (8, 4, 1, 0):
        pull = torch.zeros_like(features)
        pull[:kept] = 1
        costs.append(count_flops(lambda pull=pull: torch.autograd.grad(features, row, pull, retain_graph=True)))
    assert costs[0] == 2 * costs[1] == 8 * costs[2] > 0
    assert costs[3] == 0


def test_large_batches_keep_what_has_room_and_run_the_rest_again(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eleven images in parts of one and two, with room for six: five are kept; the result is that of keeping all."""
    tower, images = make_tower(), make_images(11)
    fold_activations(tower)
    tower.set_memory(mode)
    bank = NormBank(tower)
    rows, index = bank.start.repeat(3, 1).requires_grad_(), torch.arange(11) % 3
    pull = torch.randn(11, tower.config.features, dtype=images.dtype)
    pull[[1, 6, 10]] = 0

    def differentiate() -> tuple[Tensor, Tensor, int]:
        with bank.serve(rows, index):
            features = tower(images)
        again: list[int] = []

        def run(images: Tensor, *rest: Any, **named: Any) -> Any:
            again.append(len(images))
            return VisionTower.run(tower, images, *rest, **named)

        with monkeypatch.context() as patch:
            patch.setattr(tower, "run", run)
            gradient = torch.autograd.grad(features, rows, pull)[0]
        return features.detach(), gradient, sum(again)

    wanted = differentiate()
    monkeypatch.setattr(vit, "_PART", 2 * 17 * tower.config.hidden)
    monkeypatch.setattr(vit, "_KEPT", 6 * tower.count_kept())
    found = differentiate()
    torch.testing.assert_close(found[:2], wanted[:2], atol=1e-12, rtol=1e-12)
    assert wanted[2] == 0
    assert found[2] == 4  # of the six that were not kept, two have no gradient


@pytest.mark.parametrize("share", [1.0, 0.5, 0.0])
def test_step_costs_what_the_gate_lets_through(share: float) -> None:
    """Forward, backward of the confident images, forward again; and with none of them the forward alone."""
    tower = make_tower()
    fold_activations(tower)
    images = make_images(8)
    with torch.no_grad():
        unit = nn.functional.normalize(tower(images), dim=-1)
    # A prototype at each image makes it certain; two equal ones near it leave each of them half, below tau.
    sure = int(8 * share)
    doubtful = [unit[sure:], unit[sure:]]
    clip = lmr.ZeroShot(tower, torch.cat([unit[:sure], *doubtful, -unit]), 1000.0)
    method = lmr.create("lmr(tau=0.6)", clip)
    forward = count_flops(lambda: clip.features(images))
    total = count_flops(lambda: method.step(images))
    assert method.predict(images).logits.isfinite().all()
    heads = 2 * 8 * clip.classes * tower.config.features  # comparing with the prototypes is not the tower's
    if share == 0:
        assert total == forward + heads
    else:
        backward = total - 2 * (forward + heads)
        assert 0.9 * share < backward / forward < 1.35 * share


def count_kept(tower: VisionTower, images: Tensor) -> float:
    """Numbers kept for a backward, per token and width; views of one tensor count once."""
    numbers = [(norm.weight, norm.bias) for norm in tower.modules() if isinstance(norm, RowNorm)]
    _, kept = tower.run(images, numbers, keep=True)
    sizes: dict[int, int] = {}

    def visit(part: Any) -> None:
        if isinstance(part, Arena | None):
            return
        if isinstance(part, Tensor):
            sizes[part.untyped_storage().data_ptr()] = part.untyped_storage().nbytes() // part.element_size()
        else:
            for piece in part:
                visit(piece)

    visit((kept.blocks, kept.post))  # the images are the caller's
    return sum(sizes.values()) / (len(images) * 17 * tower.config.width)


def test_backward_keeps_few_tensors() -> None:
    tower = make_tower(hidden=192, depth=6)
    # Each block but the last: input, q, k, v, what the second norm saw, four widths before the activation.
    fast = count_kept(tower, make_images(4))
    assert fast < 9 * 5 + 1 + 3 + 2
    tower.set_memory("lean")
    assert count_kept(tower, make_images(4)) < 6 + 1 + 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_ten_batches_of_lmr_equal_the_reference(mode: str, dtype: torch.dtype) -> None:
    tower = make_tower()
    encode, start = write_out(tower), [(w.clone(), b.clone()) for w, b in list_norms(tower)]
    fold_activations(tower)
    tower.set_memory(mode)
    torch.manual_seed(5)
    anchors = torch.randn(5, 3, 32, 32, dtype=torch.float64).repeat_interleave(4, 0)
    anchors += 0.3 * torch.randn_like(anchors)  # families of near classes: clear and doubtful images
    prototypes = encode(anchors, start)
    images = anchors[torch.randint(20, (57,))]
    images = images + torch.tensor([0.1, 0.6, 1.5])[torch.randint(3, (57, 1, 1, 1))] * torch.randn_like(images)
    method = lmr.create("lmr(delta=0.1)", lmr.ZeroShot(tower.to(dtype), prototypes.to(dtype), 15.0))
    streams = lmr.create("lmr(delta=0.1)", method.classifier, streams=2)
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
    assert 0 < min(gates) < 1  # some images were left out of a backward


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


def test_memory_is_used_again_and_belongs_to_one_tower(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second step allocates nothing large; a graph that lives keeps its memory to itself; copies have their own."""
    tower, images = make_tower(), make_images(3)
    fold_activations(tower)
    bank = NormBank(tower)
    row = bank.start.unsqueeze(0).requires_grad_()

    def differentiate(model: VisionTower, graph: list[Tensor] | None = None) -> Tensor:
        with NormBank(model).serve(row):
            features = model(images)
        (graph if graph is not None else []).append(features)
        return torch.autograd.grad(features.sum(), row, retain_graph=graph is not None)[0]

    first = differentiate(tower)
    (stretch,) = tower._pool._buffers
    assert torch.equal(differentiate(tower), first)
    assert tower._pool._buffers == [stretch]
    living: list[Tensor] = []
    differentiate(tower, living)
    assert torch.equal(differentiate(tower), first)
    assert torch.equal(torch.autograd.grad(living[0].sum(), row)[0], first)
    living.clear()
    assert len(tower._pool._buffers) == 2
    monkeypatch.setattr(buffers, "_HELD", stretch.nbytes)
    tower.set_memory("fast")
    differentiate(tower, living)
    differentiate(tower)
    living.clear()
    assert len(tower._pool._buffers) == 1
    other = copy.deepcopy(tower)
    assert other._pool._buffers == []
    assert torch.equal(differentiate(other), first)
    assert pickle.loads(pickle.dumps(tower))._pool._buffers == []


def test_memory_of_inference_mode_serves_gradients_too() -> None:
    tower, images = make_tower(), make_images(3)
    with torch.inference_mode():
        tower(images)
    row = NormBank(tower).start.unsqueeze(0).requires_grad_()
    with NormBank(tower).serve(row):
        assert torch.autograd.grad(tower(images).sum(), row)[0].isfinite().all()


def test_images_without_a_number_meet_the_gradient_of_that() -> None:
    tower = make_tower()
    bank = NormBank(tower)
    row = bank.start.unsqueeze(0).requires_grad_()
    with bank.serve(row):
        features = tower(make_images(3))
    pull = torch.zeros_like(features)
    pull[1, 0] = math.nan
    assert torch.autograd.grad(features, row, pull)[0].isnan().any()


def test_wrong_images_and_words_get_a_message() -> None:
    tower = make_tower()
    for shape in ((2, 3, 32), (2, 1, 32, 32), (2, 3, 64, 64)):
        with pytest.raises(lmr.LmrError, match=r"Expected images \['B', 3, 32, 32\], got"):
            tower(torch.zeros(shape, dtype=torch.float64))
    with pytest.raises(lmr.LmrError, match="'fast' or 'lean', got 'small'"):
        tower.set_memory("small")
