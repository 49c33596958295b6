"""Counted operations against torch's own counter on transformers' towers, and on a last block written out by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import lmr
from lmr.bench.flops import count_comparison, count_forwards, count_image, count_passes_of_image, count_text
from lmr.core.classifier import ZeroShot
from lmr.core.passes import Passes, count_passes
from lmr.models.towers.image import VisionConfig, VisionTower
from lmr.models.towers.stem import StemTower
from lmr.models.towers.text import TextConfig

IMAGE = VisionConfig(resolution=24, patch=8, width=16, depth=3, heads=2, features=12, hidden=40)
TEXT = TextConfig(context=11, vocabulary=30, width=16, depth=2, heads=4, features=12, hidden=24)


def build(config: VisionConfig) -> VisionTower:
    """A tower of these sizes without memory for its weights."""
    with torch.device("meta"):
        return VisionTower(config)


def count(work: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def name_sizes(config: VisionConfig | TextConfig) -> dict[str, object]:
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "intermediate_size": config.hidden,
        "projection_dim": config.features,
        "attn_implementation": "eager",  # the counter does not see inside fused attention on a CPU
    }


def train_norms(model: nn.Module) -> None:
    model.eval().requires_grad_(False)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.requires_grad_(True)


def test_image_tower_is_counted_as_torch_counts_it() -> None:
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    model = CLIPVisionModelWithProjection(CLIPVisionConfig(image_size=24, patch_size=8, **name_sizes(IMAGE)))
    train_norms(model)
    images, outputs = torch.randn(5, 3, 24, 24), []
    counted = count_image(build(IMAGE), whole=True) * 5
    assert count(lambda: outputs.append(model(pixel_values=images).image_embeds)) == counted.forward
    assert count(lambda: outputs[0].sum().backward()) == counted.backward


def test_text_tower_is_counted_as_torch_counts_it() -> None:
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    sizes = CLIPTextConfig(vocab_size=30, max_position_embeddings=11, eos_token_id=29, **name_sizes(TEXT))
    model = CLIPTextModelWithProjection(sizes)
    train_norms(model)
    tokens, outputs = torch.randint(1, 29, (3, 7)), []
    tokens[:, -1] = 29
    counted = count_text(TEXT, 7, whole=True) * 3
    assert count(lambda: outputs.append(model(input_ids=tokens).text_embeds)) == counted.forward
    assert count(lambda: outputs[0].sum().backward()) == counted.backward


def run_last_block(x: Tensor, config: VisionConfig) -> Tensor:
    """Keys and values of all tokens [L, w], everything else of the first."""
    width, head = config.width, config.width // config.heads
    layer = {name: torch.randn(width, width) for name in ("q", "k", "v", "out")}
    q, k, v = x[:1] @ layer["q"], x @ layer["k"], x @ layer["v"]
    heads = [(part[:, i : i + head] for part in (q, k, v)) for i in range(0, width, head)]
    mixed = torch.cat([(a @ b.T).softmax(-1) @ c for a, b, c in heads], dim=1)
    y = x[:1] + mixed @ layer["out"]
    return y + torch.relu(y @ torch.randn(width, config.hidden)) @ torch.randn(config.hidden, width)


def test_last_block_is_counted_for_the_one_token_that_goes_on() -> None:
    single = dataclasses.replace(IMAGE, depth=1)
    x = torch.randn(10, 16, requires_grad=True)
    projection, outputs = torch.randn(16, 12), []
    embedding = 2 * 9 * 3 * 8 * 8 * 16
    counted = count_image(build(single))
    assert count(lambda: outputs.append(run_last_block(x, single) @ projection)) == counted.forward - embedding
    assert count(lambda: outputs[0].sum().backward()) == counted.backward
    whole, cut = count_image(build(IMAGE), whole=True), count_image(build(IMAGE))
    assert whole.forward - cut.forward == count_image(build(single), whole=True).forward - counted.forward > 0


def test_vit_b_16_needs_what_is_known_of_it() -> None:
    """17.6 billion multiply-adds (Dosovitskiy et al. 2021 and many tables), of which the last block's cut saves 6 %."""
    whole, cut = count_image(build(VisionConfig()), whole=True), count_image(build(VisionConfig()))
    assert whole.forward / 2 == pytest.approx(17.56e9, rel=0.01)
    assert 0.92 < cut.forward / whole.forward < 0.95
    assert 1.0 < cut.backward / cut.forward < 1.1


def test_comparison_is_one_product() -> None:
    assert count(lambda: torch.randn(3, 12) @ torch.randn(7, 12).T) == (count_comparison(12, 7) * 3).forward


def test_stem_is_counted_as_torch_counts_it() -> None:
    config = VisionConfig(resolution=32, patch=8, width=192, depth=4, heads=6, features=128, hidden=768)
    tower = StemTower(config, (32, 64, 128)).eval()
    images = torch.randn(2, 3, 32, 32)
    assert count(lambda: tower.stem(images)) == 2 * 2 * tower.count_embedding()
    patched = build(tower.config)
    assert count_image(tower).backward == count_image(patched).backward  # there is no norm in the stem
    more = tower.count_embedding() - patched.count_embedding()
    assert count_image(tower).forward - count_image(patched).forward == 2 * more


@pytest.mark.parametrize("spec", ["zeroshot", "tent", "lmr", "mint"])
def test_an_expensive_embedding_is_counted_once_as_torch_counts_it(spec: str) -> None:
    """The convolutions of a real step are those of one embedding."""
    backbone = lmr.load("photo")
    tower, clip = backbone.encoder, backbone.classifier(["cat", "dog", "ship"])
    assert isinstance(tower, StemTower)
    method = lmr.create(spec, clip)
    with FlopCounterMode(display=False) as counter:
        method.step(torch.randn(2, 3, 32, 32))
    found = counter.get_flop_counts()["Global"][torch.ops.aten.convolution]
    assert found == 2 * 2 * tower.count_embedding()
    passes = count_passes(method, 2)
    assert passes is not None
    once = count_passes_of_image(tower, passes, 3, needs_images=False)
    every = count_passes_of_image(tower, passes, 3, needs_images=True)
    assert every - once == (passes.forwards - 1) * 2 * tower.count_embedding()
    assert count_forwards(method, 2) == once / count_passes_of_image(tower, Passes(forwards=1), 3, needs_images=False)


def test_a_cheap_embedding_is_counted_in_every_pass() -> None:
    tower = build(IMAGE)
    for needed in (False, True):
        twice = count_passes_of_image(tower, Passes(forwards=2), 3, needs_images=needed)
        assert twice == 2 * (count_image(tower).forward + count_comparison(tower.config.features, 3).forward)


# Methods, against sums by hand.


@pytest.fixture(scope="module")
def clip() -> ZeroShot:
    return lmr.load("pocket").classifier(["red star", "blue ring", "green square"], ["a {}"])


def test_our_tower(clip: ZeroShot) -> None:
    tower = clip.encoder
    assert isinstance(tower, VisionTower)
    image, seen = count_image(tower), count_comparison(tower.config.features, 3)
    one = image.forward + seen.forward
    expected = {
        "zeroshot": one,
        "lmr": 2 * one + image.backward + seen.backward,
        "lmr(share=0.25)": 1.25 * one + 0.25 * (image.backward + seen.backward),
        "lmr(share=0.25, emit='before')": one + 0.25 * (image.backward + seen.backward),
    }
    for spec, flops in expected.items():
        assert count_forwards(lmr.create(spec, clip), 64) == pytest.approx(flops / one), spec
    half = count_forwards(lmr.create("lmr(share=0.5)", clip), 64, selected=0.5)
    assert half == pytest.approx((1.5 * one + 0.25 * (image.backward + seen.backward)) / one)


def test_prompts_are_shared_by_the_batch(clip: ZeroShot) -> None:
    assert clip.text is not None
    assert clip.text.tokens is not None
    tower = clip.encoder
    assert isinstance(tower, VisionTower)
    image, seen = count_image(tower), count_comparison(tower.config.features, 3)
    prompt = count_text(clip.text.tower.config, clip.text.tokens)  # type: ignore[arg-type]
    alone = image.forward + image.backward + seen.forward + seen.backward
    expected = (alone + 3 * (prompt.forward + prompt.backward) / 16) / (image.forward + seen.forward)
    assert count_forwards(lmr.create("batclip", clip), 16) == pytest.approx(expected)


def test_a_module_that_is_not_ours() -> None:
    blocks = nn.Sequential(*(nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 5)) for _ in range(4)))
    clip = ZeroShot(blocks, torch.randn(3, 5))
    costs = {"lmr": 3, "tent": 2, "lmr(share=0.25)": 1.5}
    for spec, expected in costs.items():
        assert count_forwards(lmr.create(spec, clip), 8) == expected, spec
