"""NormBank against deep copies of the tower that have the row's numbers written into them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import lmr
from lmr.core.norms import NormBank
from lmr.models.towers.image import VisionConfig, VisionTower

BATCH, TOKENS, WIDTH = 5, 5, 8  # as many tokens as images: only the right axis gives the right answer
INDEX = torch.tensor([0, 2, 2, 1, 0])


class Encoder(nn.Module):
    """PyTorch's own transformer encoder, which has a fused path of its own: [B, tokens, width] to [B, width]."""

    def __init__(self, batch_first: bool, norm_first: bool, bias: bool = True) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            WIDTH, 2, 16, dropout=0.0, batch_first=batch_first, norm_first=norm_first, bias=bias
        )
        self.batch_first = batch_first
        self.blocks = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.batch_first:
            return self.blocks(x)[:, 0]
        return self.blocks(x.transpose(0, 1))[0]


class TokensFirst(nn.Module):
    """Norms see [tokens, batch, width] and, after pooling, [batch, width], as in OpenAI's own code."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.mix, self.outer = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        x = x + self.mix(self.inner(x)).tanh()
        return self.outer(x[0] * x[1])


class Assorted(nn.Module):
    """Norms without a bias, without any numbers, over two axes at once, one on the channels of a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.no_bias = nn.LayerNorm(WIDTH, bias=False)
        self.bare = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.nested = nn.LayerNorm((TOKENS, WIDTH))
        self.deep = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bare(self.mix(self.no_bias(x)).tanh())
        x = self.nested(x + 1).unsqueeze(2).expand(-1, -1, 3, -1)  # [B, tokens, 3, width]
        return self.mix(self.deep(x)).sin().sum((1, 2))


class Shared(nn.Module):
    """One norm in two places, which see tensors of the same rank or (``pooled``) of different ranks."""

    def __init__(self, pooled: bool) -> None:
        super().__init__()
        self.pooled = pooled
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.alias = self.norm

    def forward(self, x: Tensor) -> Tensor:
        x = self.mix(self.norm(x)).tanh()
        return self.alias(x[:, 0]) if self.pooled else self.alias(x)[:, 0]


class Folded(nn.Module):
    """The batch is folded into the tokens: no axis of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.flatten(0, 1)).unflatten(0, x.shape[:2]).sum(1)


TOWERS: dict[str, Callable[[], nn.Module]] = {
    "vision": lambda: VisionTower(VisionConfig(16, 8, WIDTH, depth=2, heads=2, features=6, hidden=4 * WIDTH)),
    "post-norm": lambda: Encoder(batch_first=True, norm_first=False),
    "pre-norm": lambda: Encoder(batch_first=True, norm_first=True),
    "post-norm, tokens first": lambda: Encoder(batch_first=False, norm_first=False),
    "pre-norm, tokens first": lambda: Encoder(batch_first=False, norm_first=True),
    "encoder without biases": lambda: Encoder(batch_first=True, norm_first=True, bias=False),
    "tokens first": TokensFirst,
    "assorted": Assorted,
    "shared": lambda: Shared(pooled=False),
    "shared, pooled": lambda: Shared(pooled=True),
}


class Recorder(TorchDispatchMode):
    """Keeps the name of every operation that computes something; views only rename memory."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []

    def __torch_dispatch__(self, function: Any, kinds: Any, given: Any = (), named: Any = None) -> Any:
        returned = function._schema.returns
        if not any(r.alias_info is not None and not r.alias_info.is_write for r in returned):
            self.operations.append(str(function))
        return function(*given, **(named or {}))


def build(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor]:
    """A frozen tower with numbers of its own in every norm, and images for it."""
    torch.manual_seed(5)
    tower = TOWERS[name]().to(dtype).eval().requires_grad_(False)
    for parameter in tower.parameters():
        parameter += 0.1 * torch.randn_like(parameter)
    shape = (BATCH, 3, 16, 16) if name == "vision" else (BATCH, TOKENS, WIDTH)
    return tower, torch.randn(shape, dtype=dtype)


def make_rows(bank: NormBank, count: int) -> Tensor:
    torch.manual_seed(6)
    return bank.start + 0.3 * torch.randn(count, bank.size, dtype=bank.start.dtype)


def list_numbers(tower: nn.Module) -> list[nn.Parameter]:
    """The trainable numbers, in the order of a row: norm by norm, weight before bias."""
    norms = [module for module in tower.modules() if isinstance(module, nn.LayerNorm)]
    return [p for norm in norms for p in (norm.weight, norm.bias) if p is not None]


def copy_with(tower: nn.Module, row: Tensor) -> nn.Module:
    """A tower of its own that has the row's numbers in its norms, ready to be trained."""
    other = copy.deepcopy(tower)
    place = 0
    for parameter in list_numbers(other):
        parameter.copy_(row[place : place + parameter.numel()].view(parameter.shape))
        parameter.requires_grad_()
        place += parameter.numel()
    assert place == len(row)
    return other


def remember(tower: nn.Module) -> list[Any]:
    numbers = [(key, value.clone(), value.data_ptr()) for key, value in tower.state_dict().items()]
    return [numbers, [list(vars(module)) for module in tower.modules()], torch.backends.mha.get_fastpath_enabled()]


def check_untouched(tower: nn.Module, before: list[Any]) -> None:
    numbers, inside, fast = before
    state = tower.state_dict()
    assert list(state) == [key for key, _, _ in numbers]
    assert all(torch.equal(state[key], value) and state[key].data_ptr() == place for key, value, place in numbers)
    assert [list(vars(module)) for module in tower.modules()] == inside
    assert torch.backends.mha.get_fastpath_enabled() == fast
    assert not any(parameter.requires_grad for parameter in tower.parameters())


@pytest.fixture(autouse=True)
def _without_gradient() -> Iterator[None]:
    """Building and writing need no gradient; the tests that do say so. A served norm has no fused encoder layer."""
    torch.backends.mha.set_fastpath_enabled(False)
    with torch.no_grad():
        yield
    torch.backends.mha.set_fastpath_enabled(True)


@pytest.fixture(params=TOWERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_start_is_the_parameters_of_the_tower(name: str) -> None:
    tower, images = build(name)
    bank = NormBank(tower)
    assert bank.start.shape == (bank.size,)
    assert torch.equal(bank.start, torch.cat([p.flatten() for p in list_numbers(tower)]))
    plain = tower(images)
    with bank.serve(bank.start.unsqueeze(0)):
        assert torch.equal(tower(images), plain)


def test_one_row_is_the_tower_with_these_numbers(name: str) -> None:
    tower, images = build(name)
    bank = NormBank(tower)
    before = remember(tower)
    row = make_rows(bank, 1)
    other = copy_with(tower, row[0])
    with torch.enable_grad():
        expected = other(images)
        with bank.serve(row.requires_grad_()):
            assert torch.equal(tower(images), expected)
    check_untouched(tower, before)
    assert not torch.equal(tower(images), expected)


def test_each_sample_is_served_by_its_row(name: str) -> None:
    tower, images = build(name)
    bank = NormBank(tower)
    before = remember(tower)
    rows = make_rows(bank, 3)
    expected = torch.stack([copy_with(tower, rows[k])(images)[sample] for sample, k in enumerate(INDEX)])
    bank.locate_batch(images)
    check_untouched(tower, before)
    with bank.serve(rows, INDEX):
        served = tower(images)
    torch.testing.assert_close(served, expected, rtol=0, atol=1e-11)
    check_untouched(tower, before)


@pytest.mark.parametrize("count", [1, 3])
def test_gradient_of_a_row_is_that_of_the_norms(name: str, count: int) -> None:
    tower, images = build(name)
    bank = NormBank(tower)
    rows = make_rows(bank, count).requires_grad_()
    index = INDEX if count > 1 else torch.zeros_like(INDEX)
    with torch.enable_grad():
        bank.locate_batch(images)
        with bank.serve(rows, index):
            tower(images).sin().sum().backward()
        for k in range(count):
            other = copy_with(tower, rows[k].detach())
            other(images)[index == k].sin().sum().backward()
            gradient = torch.cat([parameter.grad.flatten() for parameter in list_numbers(other)])
            assert gradient.abs().max() > 0.01
            torch.testing.assert_close(rows.grad[k], gradient, rtol=1e-8, atol=1e-11)
    assert all(parameter.grad is None for parameter in tower.parameters())


# PyTorch's fused encoder layer.


def test_fused_layer_is_left_aside() -> None:
    """It reads the norm's own parameters."""
    torch.backends.mha.set_fastpath_enabled(True)
    tower, images = build("pre-norm", torch.float32)
    fused = "aten._transformer_encoder_layer_fwd.default"
    bank = NormBank(tower)
    rows = make_rows(bank, 3)
    with Recorder() as plain:
        tower(images)
    assert plain.operations.count(fused) == 2  # otherwise this test says nothing
    with Recorder() as one, bank.serve(rows[:1]):
        served = tower(images)
    assert one.operations.count(fused) == 0
    expected = copy_with(tower, rows[0]).requires_grad_(False)(images)
    torch.testing.assert_close(served, expected, rtol=0, atol=1e-5)
    with Recorder() as several, bank.serve(rows, INDEX):
        served = tower(images)
    assert several.operations.count(fused) == 0
    each = [copy_with(tower, rows[k]).requires_grad_(False)(images)[sample] for sample, k in enumerate(INDEX)]
    torch.testing.assert_close(served, torch.stack(each), rtol=0, atol=1e-5)
    assert torch.backends.mha.get_fastpath_enabled()


# Precision.


@pytest.mark.parametrize("streams", [1, 3])
def test_step_smaller_than_the_precision_of_the_tower_is_served(streams: int) -> None:
    tower, images = build("tokens first", torch.bfloat16)
    bank = NormBank(tower)
    bank.locate_batch(images)
    index = INDEX if streams > 1 else None
    rows = bank.start.repeat(streams, 1)
    moved = rows + 1e-3 * rows.sign()
    lost = moved.bfloat16() == rows.bfloat16()
    assert lost.any()
    with bank.serve(rows, index):
        before = tower(images)
    with bank.serve(torch.where(lost, moved, rows), index):
        assert not torch.equal(tower(images), before)


def test_subclass_with_a_forward_of_its_own_runs_it() -> None:
    class Half(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            return 0.5 * super().forward(x)

    tower, images = nn.Sequential(nn.Linear(6, 6), Half(6)).eval(), torch.randn(4, 6)
    bank = NormBank(tower)
    rows = bank.start.repeat(2, 1)
    rows[1] += 1
    plain = tower(images)
    with bank.serve(rows[:1]):
        assert torch.equal(tower(images), plain)
    with bank.serve(rows, torch.tensor([0, 1, 0, 1])):
        served = tower(images)
    with bank.serve(rows[1:]):
        assert torch.equal(served[1::2], tower(images)[1::2])
    assert torch.equal(served[::2], plain[::2])


def test_norms_with_the_same_parameters_adapt_as_one() -> None:
    tower, images = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.LayerNorm(6)).eval(), torch.randn(4, 6)
    tower[2].weight, tower[2].bias = tower[0].weight, tower[0].bias
    bank = NormBank(tower)
    row = make_rows(bank, 1)
    assert bank.size == 12
    with bank.serve(row):
        served = tower(images)
    tower[0].weight.copy_(row[0, :6])
    tower[0].bias.copy_(row[0, 6:])
    assert torch.equal(served, tower(images))


# What cannot be served.


@pytest.mark.parametrize("tower", [nn.Identity(), nn.Sequential(nn.LayerNorm(3, elementwise_affine=False))])
def test_tower_without_norms_gets_a_sentence(tower: nn.Module) -> None:
    with pytest.raises(lmr.LmrError, match=rf"{type(tower).__name__} has no nn.LayerNorm .* that adapts no weights"):
        NormBank(tower)


def test_folded_batch_serves_one_row_and_refuses_several() -> None:
    tower, images = Folded().double(), torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.float64)
    bank = NormBank(tower)
    row = make_rows(bank, 1)
    with bank.serve(row):
        assert torch.equal(tower(images), copy_with(tower, row[0])(images))
    with pytest.raises(lmr.LmrError, match=r"Cannot tell which axis .* 'norm'.*one stream per method"):
        bank.locate_batch(images)


def test_shared_norm_that_sees_the_batch_on_two_axes_is_refused() -> None:
    class Turning(Shared):
        def forward(self, x: Tensor) -> Tensor:
            return self.alias(self.norm(x.transpose(0, 1)).sin().transpose(0, 1))[:, 0]

    tower, images = Turning(pooled=False), torch.randn(BATCH, TOKENS, WIDTH)
    with pytest.raises(lmr.LmrError, match=r"Cannot tell which axis .* 'norm'.*one stream per method"):
        NormBank(tower).locate_batch(images)
