import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.models.towers import products
from lmr.models.towers.products import multiply


@pytest.fixture(autouse=True)
def _slow_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this processor be one on which oneDNN is used."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("torch has no oneDNN here")
    monkeypatch.setattr(products, "has_slow_products", lambda: True)
    monkeypatch.setattr(products, "_FEWEST_ROWS", 1)


def make_problem(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, bias = torch.randn(*shape, generator=generator), torch.randn(24, generator=generator)
    return x, torch.randn(24, shape[-1], generator=generator) / shape[-1] ** 0.5, bias


def uses_onednn(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Return whether oneDNN is called."""
    with torch.profiler.profile() as profile:
        multiply(x, weight, bias)
    return any(event.key == "mkldnn::_linear_pointwise" for event in profile.key_averages())


@pytest.mark.parametrize("shape", [(3, 5, 16), (4, 16), (2, 3, 4, 16)])
def test_product_of_onednn_is_that_of_torch(shape: tuple[int, ...]) -> None:
    x, weight, bias = make_problem(*shape)
    assert uses_onednn(x, weight, bias)
    torch.testing.assert_close(multiply(x, weight, bias), F.linear(x, weight, bias), atol=1e-5, rtol=1e-5)


def test_gradient_is_that_of_torch_also_of_other_layouts() -> None:
    x, weight, bias = make_problem(3, 5, 16)
    x, change = x.transpose(0, 1).requires_grad_(), torch.randn(24, 5, 3).permute(1, 2, 0)
    (found,) = torch.autograd.grad(multiply(x, weight, bias), x, change)
    (expected,) = torch.autograd.grad(F.linear(x, weight, bias), x, change)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_graph_keeps_no_activation() -> None:
    x, weight, bias = make_problem(3, 5, 16)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        multiply(x.requires_grad_(), weight, bias)
    assert [tensor.data_ptr() for tensor in kept] == [weight.data_ptr()]


def test_few_rows_use_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_FEWEST_ROWS", 13)
    for shape, used in (((2, 6, 16), False), ((0, 6, 16), False), ((13, 16), True)):
        assert uses_onednn(*make_problem(*shape)) == used


def test_other_types_and_autocast_use_torch() -> None:
    x, weight, bias = make_problem(3, 16)
    for dtype in (torch.float64, torch.bfloat16):
        assert not uses_onednn(x.to(dtype), weight.to(dtype), bias.to(dtype))
    assert not uses_onednn(x[0], weight, bias)
    with torch.autocast("cpu", torch.bfloat16):
        assert not uses_onednn(x, weight, bias)
        assert multiply(x, weight, bias).dtype == torch.bfloat16


def test_compiled_layer_uses_torch() -> None:
    x, weight, bias = make_problem(3, 16)
    torch.compiler.reset()
    compiled = torch.compile(multiply, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x, weight, bias), F.linear(x, weight, bias))


def test_torch_without_onednn_is_no_slow_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    products.has_slow_products.cache_clear()
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    try:
        x, weight, bias = make_problem(3, 16)
        assert not products.has_slow_products()
        assert torch.equal(nn.functional.linear(x, weight, bias), multiply(x, weight, bias))
    finally:
        products.has_slow_products.cache_clear()
