"""Exact savings on the text side: prompts cut to the longest, gradients in chunks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.core.norms import NormBank
from lmr.core.text import TextSide, differentiate_towers
from lmr.models.embedded import EmbeddedConfig
from lmr.models.towers.image import VisionTower
from lmr.models.towers.text import TextTower
from pocket import load_pocket

tokenize = load_pocket().tokenizer
CONFIG = EmbeddedConfig(
    resolution=8,
    patch=4,
    width=12,
    depth=2,
    heads=2,
    text_width=16,
    text_heads=2,
    context=20,
    vocabulary=len(tokenize.words),
    features=10,
)
NAMES = ["red circle", "blue ring", "small green star", "heart", "striped purple diamond", "plain cross", "big square"]
PROMPTS = [f"a photo of a {name}." for name in NAMES]


def make_towers() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(3)
    image, text = VisionTower(CONFIG.image).double(), TextTower(CONFIG.text).double()
    with torch.no_grad():
        text.words.weight.mul_(50)
        for module in [*image.modules(), *text.modules()]:
            if isinstance(module, nn.LayerNorm):
                module.weight.add_(0.3 * torch.randn_like(module.weight))
                module.bias.add_(0.3 * torch.randn_like(module.bias))
    return image, text


def make_text(tower: nn.Module, padded: bool = False) -> TextSide:
    """The prompts cut to the longest, as tokenize gives them, or padded to the whole context."""
    tokens, end = tokenize(PROMPTS, CONFIG.context)
    if padded:
        tokens = F.pad(tokens, (0, CONFIG.context - tokens.shape[1]))
    return TextSide(tower, lambda tower, part: tower(tokens[part], end[part]), len(tokens))


def judge(raw: Tensor, prototypes: Tensor) -> Tensor:
    """Any smooth function of both sides in which classes and samples meet."""
    p = (5 * F.normalize(raw, dim=1) @ prototypes.T).softmax(1)
    return (p.square().sum(1) * raw.norm(dim=1)).mean() - (prototypes @ prototypes.T).pow(3).sum()


def run_plainly(image: nn.Module, text: nn.Module, images: Tensor, padded: bool = False) -> tuple[Tensor, Tensor]:
    """One graph over everything, on the towers' own norm parameters, no library code on the way."""
    image, text = copy.deepcopy(image).requires_grad_(False), copy.deepcopy(text).requires_grad_(False)
    norms = [m for tower in (image, text) for m in tower.modules() if isinstance(m, nn.LayerNorm)]
    numbers = [number.requires_grad_() for norm in norms for number in (norm.weight, norm.bias)]
    tokens, end = tokenize(PROMPTS, CONFIG.context)
    if padded:
        tokens = F.pad(tokens, (0, CONFIG.context - tokens.shape[1]))
    features = text(tokens, end)
    value = judge(image(images), features / features.norm(dim=1, keepdim=True))
    value.backward()
    return value.detach(), torch.cat([number.grad for number in numbers])


def run_chunked(
    image: Callable[[Tensor], Tensor], side: TextSide, images: Tensor, chunk: int, tower: nn.Module | None = None
) -> tuple[Tensor, Tensor, list[str]]:
    """Value, gradient and the calls of the loss; ``tower`` where the image encoder is a function around it."""
    bank = NormBank(nn.ModuleList([tower or image, side.tower]))
    rows = bank.start.unsqueeze(0).clone().requires_grad_()
    calls: list[str] = []

    def loss(raw: Tensor, prototypes: Tensor) -> tuple[Tensor, str]:
        calls.append("loss")
        assert prototypes.shape == (len(PROMPTS), CONFIG.features)
        return judge(raw, prototypes), "by-product"

    with bank.serve(rows):
        value, rest, gradient = differentiate_towers(loss, lambda: image(images), rows, side, chunk)
    assert rest == "by-product"
    assert gradient.shape == rows.shape
    assert not value.requires_grad
    assert not gradient.requires_grad
    return value, gradient[0], calls


@pytest.fixture
def images() -> Tensor:
    return torch.randn(6, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


# Chunks.


@pytest.mark.parametrize("chunk", [1, 3, 7, 1000])
def test_chunked_gradient_is_the_plain_one(chunk: int, images: Tensor) -> None:
    image, text = make_towers()
    expected, slope = run_plainly(image, text, images)
    value, gradient, calls = run_chunked(image, make_text(text), images, chunk)
    assert calls == ["loss"]
    assert slope.abs().max() > 0.1
    torch.testing.assert_close(value, expected, atol=1e-10, rtol=0)
    torch.testing.assert_close(gradient, slope, atol=1e-10, rtol=0)


@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_no_more_than_a_chunk_is_in_a_graph(chunk: int, images: Tensor) -> None:
    image, text = make_towers()
    seen: list[tuple[int, bool]] = []
    text.register_forward_hook(lambda _, given, out: seen.append((len(given[0]), out.requires_grad)))
    run_chunked(image, make_text(text), images, chunk)
    with_gradient = [size for size, needed in seen if needed]
    assert sum(with_gradient) == len(PROMPTS)
    assert max(with_gradient) <= chunk
    assert sum(size for size, needed in seen if not needed) == (0 if chunk >= len(PROMPTS) else len(PROMPTS))


def test_graph_of_a_chunk_is_freed_before_the_next(images: Tensor) -> None:
    image, text = make_towers()
    side, alive, most = make_text(text), 0, 0

    class Watch(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            nonlocal alive, most
            alive += 1
            most = max(most, alive)
            ctx.token = Token()
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient

    class Token:
        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def encode(tower: nn.Module, part: slice) -> Tensor:
        out = side.encode(tower, part)
        return Watch.apply(out) if out.requires_grad else out

    run_chunked(image, TextSide(text, encode, side.classes), images, 2)
    assert most == 1
    assert alive == 0


# Prompts.


def test_padding_after_the_end_changes_nothing(images: Tensor) -> None:
    image, text = make_towers()
    short, long = make_text(text), make_text(text, padded=True)
    tokens, end = tokenize(PROMPTS, CONFIG.context)
    assert tokens.shape[1] == int(end.max()) + 1 < CONFIG.context
    assert len(set(end.tolist())) > 2
    torch.testing.assert_close(short.all_prototypes(7), long.all_prototypes(7), atol=1e-10, rtol=0)
    expected, slope = run_plainly(image, text, images, padded=True)
    for chunk in (2, 7):
        for side in (short, long):
            value, gradient, _ = run_chunked(image, side, images, chunk)
            torch.testing.assert_close(value, expected, atol=1e-10, rtol=0)
            torch.testing.assert_close(gradient, slope, atol=1e-10, rtol=0)


def test_prompts_are_cut_to_the_longest() -> None:
    backbone = load_pocket()
    side = backbone.classifier(NAMES).text
    widths: list[int] = []
    handle = side.tower.register_forward_pre_hook(lambda _, given: widths.append(given[0].shape[1]))
    try:
        side.all_prototypes(3)
    finally:
        handle.remove()
    assert widths == [2 + max(len(prompt.split()) for prompt in PROMPTS[k : k + 3]) for k in range(0, len(PROMPTS), 3)]
    assert widths[0] < 20


# The tower.


def test_prototypes_are_unit_and_never_below_float32() -> None:
    _, text = make_towers()
    side = make_text(text)
    for dtype, expected in ((torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64,) * 2):
        text.to(dtype)
        unit = side.all_prototypes(3)
        assert unit.dtype == expected
        torch.testing.assert_close(unit.norm(dim=1), torch.ones(7, dtype=expected))
