"""The zero-shot classifier against plain formulas, and what it refuses."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lmr

DIM, CLASSES = 5, 4


@pytest.fixture
def encoder() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, DIM), nn.LayerNorm(DIM), nn.BatchNorm1d(DIM))


@pytest.fixture
def prototypes() -> Tensor:
    return 3 * torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def images() -> Tensor:
    return torch.randn(6, 3, 2, 2, generator=torch.Generator().manual_seed(4))


# What it computes.


def test_features_cosines_and_logits_are_the_plain_formulas(
    encoder: nn.Module, prototypes: Tensor, images: Tensor
) -> None:
    clip = lmr.ZeroShot(encoder, prototypes, 30.0, logit_bias=-2.0)
    with torch.no_grad():
        features = clip.features(images)
        cosines = clip.cosines(features)
        logits = clip.logits(cosines)
        raw = encoder(images)
    for i in range(6):
        length = math.sqrt(sum(float(v) ** 2 for v in raw[i]))
        for c in range(CLASSES):
            other = math.sqrt(sum(float(v) ** 2 for v in prototypes[c]))
            cosine = sum(float(a) * float(b) for a, b in zip(raw[i], prototypes[c], strict=True)) / length / other
            assert cosines[i, c].item() == pytest.approx(cosine, abs=1e-6)
            assert logits[i, c].item() == pytest.approx(30 * cosine - 2, abs=1e-4)
    torch.testing.assert_close(features.norm(dim=1), torch.ones(6))
    torch.testing.assert_close(clip.prototypes.norm(dim=1), torch.ones(CLASSES))
    assert clip.classes == CLASSES
    assert clip.names == ("0", "1", "2", "3")


def test_precomputed_features_need_no_encoder(prototypes: Tensor) -> None:
    clip = lmr.ZeroShot(nn.Identity(), prototypes, names=["a", "b", "c", "d"])
    answer = lmr.create("zeroshot", clip).step(7 * prototypes)
    assert answer.labels.tolist() == [0, 1, 2, 3]
    assert torch.allclose(answer.logits.diagonal(), torch.tensor(100.0))
    assert clip.dtype == torch.float32


def test_encoder_is_put_to_rest(encoder: nn.Module, prototypes: Tensor, images: Tensor) -> None:
    encoder.train()
    clip = lmr.ZeroShot(encoder, prototypes)
    assert not any(module.training for module in encoder.modules())
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    before = copy.deepcopy(encoder.state_dict())
    clip.features(images)
    assert all(torch.equal(value, before[key]) for key, value in encoder.state_dict().items())


@pytest.mark.parametrize(
    ("model", "text", "wide"),
    [
        (torch.float32, torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16, torch.float32),
        (torch.float16, torch.float16, torch.float32),
        (torch.float32, torch.float64, torch.float64),
        (torch.float64, torch.float64, torch.float64),
    ],
)
def test_cosines_are_never_below_float32(
    model: torch.dtype, text: torch.dtype, wide: torch.dtype, encoder: nn.Module, prototypes: Tensor, images: Tensor
) -> None:
    clip = lmr.ZeroShot(encoder.to(model), prototypes.to(text))
    assert clip.dtype == model
    features = clip.features(images.to(model))
    assert features.dtype == clip.prototypes.dtype == clip.cosines(features).dtype == wide


# What it refuses.


def spoil(prototypes: Tensor, value: float) -> Tensor:
    spoilt = prototypes.clone()
    spoilt[1, 2] = value
    return spoilt


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: spoil(p, math.nan), "finite and not zero"),
        (lambda p: torch.cat([p, 0 * p[:1]]), "finite and not zero"),
        (lambda p: p[0], r"\[classes, features\], got \[5\]"),
        (lambda p: p[:1], "at least two classes"),
        (lambda p: p.tolist(), "got list"),
    ],
)
def test_bad_prototypes_get_a_sentence(make: Any, words: str, encoder: nn.Module, prototypes: Tensor) -> None:
    with pytest.raises(lmr.LmrError, match=words):
        lmr.ZeroShot(encoder, make(prototypes))


@pytest.mark.parametrize(("scale", "bias"), [(0, 0), (math.nan, 0), (1, math.inf)])
def test_bad_scale_gets_a_sentence(scale: float, bias: float, encoder: nn.Module, prototypes: Tensor) -> None:
    with pytest.raises(lmr.LmrError, match="logit scale"):
        lmr.ZeroShot(encoder, prototypes, scale, logit_bias=bias)


class Giving(nn.Module):
    """Gives whatever it was told to give."""

    def __init__(self, give: Any) -> None:
        super().__init__()
        self.give = give

    def forward(self, images: Tensor) -> Any:
        return self.give(images)


@pytest.mark.parametrize(
    ("give", "came"),
    [
        (lambda x: torch.zeros(len(x), DIM + 1), r"got \[6, 6\]"),
        (lambda x: {"image_embeds": torch.zeros(len(x), DIM)}, "got dict"),
    ],
)
def test_encoder_that_gives_something_else_gets_a_sentence(
    give: Any, came: str, prototypes: Tensor, images: Tensor
) -> None:
    clip = lmr.ZeroShot(Giving(give), prototypes)
    with pytest.raises(lmr.LmrError, match=came):
        clip.features(images)


def test_error_of_the_machine_is_not_dressed_up(prototypes: Tensor, images: Tensor) -> None:
    def run_out(_: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("no memory")

    with pytest.raises(torch.OutOfMemoryError):
        lmr.ZeroShot(Giving(run_out), prototypes).features(images)


def test_images_whose_sum_is_not_finite_may_be(encoder: nn.Module, prototypes: Tensor, images: Tensor) -> None:
    large = torch.full_like(images, torch.finfo(images.dtype).max)
    assert large.sum().isinf()
    lmr.ZeroShot(encoder, prototypes).check(large)


# What it is known by.


def test_fingerprint_is_that_of_the_numbers(encoder: nn.Module, prototypes: Tensor) -> None:
    clip = lmr.ZeroShot(encoder, prototypes, 30.0)
    twin = lmr.ZeroShot(copy.deepcopy(encoder), prototypes.clone(), 30.0, names=list("abcd"), input_shape=(3, 2, 2))
    assert clip.fingerprint == twin.fingerprint
    assert all(len(digest) == 64 for digest in clip.fingerprint.values())


def test_fingerprint_changes_with_every_tensor_of_the_encoder(encoder: nn.Module, prototypes: Tensor) -> None:
    first = lmr.ZeroShot(encoder, prototypes).fingerprint
    seen = {first["backbone"]}
    keys = list(encoder.state_dict())
    assert "3.running_mean" in keys
    for key in keys:
        other = copy.deepcopy(encoder)
        tensor = other.state_dict()[key]
        if tensor.is_floating_point():
            tensor.view(-1)[-1] = torch.nextafter(tensor.view(-1)[-1], torch.tensor(99.0))
        else:
            tensor.add_(1)
        changed = lmr.ZeroShot(other, prototypes).fingerprint
        assert changed["classes"] == first["classes"]
        seen.add(changed["backbone"])
    assert len(seen) == len(keys) + 1


def test_fingerprint_tells_types_names_and_shapes_apart(prototypes: Tensor) -> None:
    class Holder(nn.Module):
        def __init__(self, **tensors: Tensor) -> None:
            super().__init__()
            for name, tensor in tensors.items():
                self.register_buffer(name, tensor)

    zeros = torch.zeros(4)
    holders = [
        Holder(a=zeros), Holder(b=zeros), Holder(a=zeros.view(2, 2)), Holder(a=zeros[:2], b=zeros[:2]),
        Holder(a=zeros[:2], b=zeros[:0]), Holder(a=torch.tensor(0.0)), Holder(a=zeros.int()), Holder(a=zeros.bool()),
        Holder(a=zeros.bfloat16()),
    ]  # fmt: skip
    digests = {lmr.ZeroShot(holder, prototypes).fingerprint["backbone"] for holder in holders}
    assert len(digests) == len(holders)
    turned = Holder(a=torch.arange(4.0).view(2, 2).T)
    straight = Holder(a=torch.tensor([[0.0, 2.0], [1.0, 3.0]]))
    assert lmr.ZeroShot(turned, prototypes).fingerprint == lmr.ZeroShot(straight, prototypes).fingerprint


def test_fingerprint_changes_with_prototypes_scale_and_bias(encoder: nn.Module, prototypes: Tensor) -> None:
    first = lmr.ZeroShot(encoder, prototypes, 30.0).fingerprint
    others = [
        lmr.ZeroShot(encoder, spoil(prototypes, 0.5), 30.0),
        lmr.ZeroShot(encoder, prototypes.flip(0), 30.0),
        lmr.ZeroShot(encoder, prototypes[:-1], 30.0),
        lmr.ZeroShot(encoder, prototypes.double(), 30.0),
        lmr.ZeroShot(encoder, prototypes, math.nextafter(30.0, 31)),
        lmr.ZeroShot(encoder, prototypes, 30.0, logit_bias=1e-9),
    ]
    assert len({first["classes"], *(other.fingerprint["classes"] for other in others)}) == 7
    assert {other.fingerprint["backbone"] for other in others} == {first["backbone"]}


def test_where_it_is_known_what_prototypes_were_made_from_that_counts(encoder: nn.Module, prototypes: Tensor) -> None:
    """Another machine computes other last digits; the state of an adapted model is the same there."""
    first = lmr.ZeroShot(encoder, prototypes, 30.0, identity="tower and prompts")
    nearly = lmr.ZeroShot(
        encoder, prototypes * (1 + 1e-6 * torch.rand_like(prototypes)), 30.0000001, identity="tower and prompts"
    )
    assert not torch.equal(first.prototypes, nearly.prototypes)
    method = lmr.create("lmr", nearly)
    method.load_state_dict(lmr.create("lmr", first).state_dict())
    for other in (
        lmr.ZeroShot(encoder, prototypes, 30.0, identity="tower and other prompts"),
        lmr.ZeroShot(encoder, prototypes, 31.0, identity="tower and prompts"),
        lmr.ZeroShot(encoder, prototypes, 30.0, logit_bias=1.0, identity="tower and prompts"),
        lmr.ZeroShot(encoder, prototypes, 30.0),
    ):
        with pytest.raises(lmr.LmrError, match="other classes or prompts"):
            method.load_state_dict(lmr.create("lmr", other).state_dict())


def test_fingerprint_does_not_change_with_adaptation(encoder: nn.Module, prototypes: Tensor, images: Tensor) -> None:
    clip = lmr.ZeroShot(encoder, prototypes)
    first = dict(clip.fingerprint)
    method = lmr.create("lmr(tau=0.0)", clip)
    assert method.step(images).info["stepped"]
    clip._fingerprint = None
    assert clip.fingerprint == first


def test_equal_names_are_taken() -> None:
    """ImageNet has two classes called "missile"."""
    assert lmr.ZeroShot(nn.Identity(), torch.randn(2, 8), names=["missile", "missile"]).names == ("missile", "missile")


def test_paths_pixels_and_repeated_names_get_a_message() -> None:
    backbone = lmr.load()
    with pytest.raises(lmr.LmrError, match="once; 'cat'"):
        backbone.classifier(["cat", "dog", "cat"])
    method = lmr.create("lmr", backbone.classifier(["cat", "dog"]))
    for paths in ("a.png", ["a.png", "b.png"]):
        with pytest.raises(TypeError, match="preprocess"):
            method.step(paths)  # type: ignore[arg-type]
    with pytest.raises(lmr.LmrError, match="0 to 255"):
        method.step(torch.randint(0, 256, (2, 3, 32, 32)).float())
