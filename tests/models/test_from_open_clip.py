"""Modules of open_clip's form, written here: logits, both towers adapted, and what is refused with nothing changed."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lmr

WORDS, WIDTH, CONTEXT = 60, 16, 8
NAMES = ["cat", "dog", "bird", "ship"]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 24), nn.GELU(), nn.Dropout(0.5), nn.Linear(24, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        seen = self.ln_1(x)
        x = x + self.attn(seen, seen, seen, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class Vision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTH, 4, 4)
        self.block = Block()
        self.ln_post = nn.LayerNorm(WIDTH)
        self.proj = nn.Parameter(torch.randn(WIDTH, 12))

    def forward(self, images: Tensor) -> Tensor:
        return self.ln_post(self.block(self.conv1(images).flatten(2).mT)).mean(1) @ self.proj


class Model(nn.Module):
    """As open_clip's CLIP: the image tower is ``visual``, the text tower lies in the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.visual = Vision()
        self.token_embedding = nn.Embedding(WORDS, WIDTH)
        self.positional_embedding = nn.Parameter(torch.randn(CONTEXT, WIDTH))
        self.transformer = Block()
        self.ln_final = nn.LayerNorm(WIDTH)
        self.text_projection = nn.Parameter(torch.randn(WIDTH, 12))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(30.0)))
        self.register_buffer("attn_mask", torch.zeros(CONTEXT, CONTEXT), persistent=False)

    def encode_image(self, image: Tensor, normalize: bool = False) -> Tensor:
        features: Tensor = self.visual(image)
        return F.normalize(features, dim=-1) if normalize else features

    def encode_text(self, text: Tensor, normalize: bool = False) -> Tensor:
        x = self.token_embedding(text) + self.positional_embedding + self.attn_mask.sum()
        x = self.ln_final(self.transformer(x))
        features = x[torch.arange(len(x)), text.argmax(-1)] @ self.text_projection
        return F.normalize(features, dim=-1) if normalize else features


class Custom(nn.Module):
    """The same with another place for the text tower, a scale [1] and a bias."""

    def __init__(self) -> None:
        super().__init__()
        inner = Model()
        self.visual = inner.visual
        self.reader = inner
        del inner.visual
        self.logit_scale = nn.Parameter(inner.logit_scale.detach().view(1))
        self.logit_bias = nn.Parameter(torch.tensor(-4.0))

    def encode_image(self, image: Tensor) -> Tensor:
        return self.visual(image)

    def encode_text(self, text: Tensor) -> Tensor:
        return self.reader.encode_text(text)


def tokenize(texts: list[str], words: int = WORDS) -> Tensor:
    """One id per word, from its letters; the highest id ends a text."""
    rows = [[1 + sum(map(ord, word)) % (words - 3) for word in text.split()][: CONTEXT - 1] for text in texts]
    return torch.tensor([row + [words - 1] + [0] * (CONTEXT - 1 - len(row)) for row in rows])


def make(kind: type[nn.Module] = Model) -> Any:
    torch.manual_seed(0)
    model = kind()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 0 and parameter.numel() > 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


@pytest.fixture
def images() -> Tensor:
    return torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("kind", [Model, Custom])
def test_logits_are_those_of_the_model(kind: type[nn.Module], images: Tensor) -> None:
    model = make(kind)
    clip = lmr.from_open_clip(model, tokenize, NAMES, ["a photo of a {}", "one {}"])
    model = copy.deepcopy(model).eval()
    with torch.no_grad():
        seen = F.normalize(model.encode_image(images), dim=-1)
        texts = [[f"a photo of a {name}", f"one {name}"] for name in NAMES]
        read = torch.stack([F.normalize(model.encode_text(tokenize(own)), dim=-1).mean(0) for own in texts])
        bias = float(getattr(model, "logit_bias", torch.zeros(())))
        expected = model.logit_scale.exp() * seen @ F.normalize(read, dim=-1).T + bias
    torch.testing.assert_close(lmr.create("zeroshot", clip).step(images).logits, expected, rtol=0, atol=1e-4)
    assert clip.logit_scale == pytest.approx(30)
    assert clip.text is None  # it needs one prompt per class


@pytest.mark.parametrize("kind", [Model, Custom])
def test_both_towers_adapt_as_with_plain_autograd(kind: type[nn.Module], images: Tensor) -> None:
    """The gradient of a loss of both towers along all norms, against torch's own on a copy of the model."""
    model = make(kind)
    clip = lmr.from_open_clip(model, tokenize, NAMES)
    assert clip.text is not None
    method: Any = lmr.create("batclip(lr=0.01,chunk=3)", clip)
    assert method.trainable == 6 * 2 * WIDTH
    plain = copy.deepcopy(model)
    norms = [module for module in (*clip.encoder.modules(), *model.modules()) if isinstance(module, nn.LayerNorm)]
    places = {id(module): name for name, module in model.named_modules()}
    ordered = [plain.get_submodule(places[id(norm)]) for norm in dict.fromkeys(norms)]
    parameters = [p.requires_grad_() for norm in ordered for p in (norm.weight, norm.bias)]
    seen = F.normalize(plain.encode_image(images), dim=-1)
    read = F.normalize(plain.encode_text(tokenize([f"a photo of a {name}." for name in NAMES])), dim=-1)
    weights = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    expected = torch.cat([g.flatten() for g in torch.autograd.grad((seen @ read.T * weights).sum(), parameters)])

    def objective(raw: Tensor, prototypes: Tensor, logits: Tensor) -> tuple[Tensor, None]:
        return (F.normalize(raw, dim=-1) @ prototypes.T * weights).sum(), None

    streams = lmr.Streams(torch.tensor([0]), torch.zeros(len(images), dtype=torch.int64))
    gradient = method._differentiate(images, method.state["norms"], streams, objective)[3]
    torch.testing.assert_close(gradient[0], expected, rtol=0, atol=1e-5)
    first = method.step(images).logits
    assert (method.step(images).logits - first).abs().max() > 1e-3


def test_classifier_moves_with_all_its_parts(images: Tensor) -> None:
    model = make()
    clip = lmr.from_open_clip(model, tokenize, NAMES)
    method = lmr.create("batclip(lr=0.01)", clip)
    expected = lmr.create("batclip(lr=0.01)", copy.deepcopy(clip)).step(images).logits
    method.to(torch.float64)
    assert {t.dtype for t in (*model.parameters(), *model.buffers())} == {torch.float64}
    assert method.state["norms"].dtype == torch.float64
    torch.testing.assert_close(method.step(images.double()).logits.float(), expected, rtol=0, atol=1e-4)


def test_what_does_not_fit_is_refused() -> None:
    wrong = make()
    del wrong.logit_scale
    wrong.logit_scale = 100.0
    for model, tokenizer, names, words in (
        (nn.Linear(2, 2), tokenize, NAMES, "It has no visual, encode_image, encode_text, logit_scale"),
        (wrong, tokenize, NAMES, "logarithm of the scale"),
        (make(), lambda texts: tokenize(texts).float(), NAMES, "to map 4 texts to ids"),
        (make(), tokenize, ["cat", ""], "is empty"),
    ):
        with pytest.raises(lmr.LmrError, match=words):
            lmr.from_open_clip(model, tokenizer, names)  # type: ignore[arg-type]
