"""CLIP checkpoints in every format against transformers, which reads and computes on its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import checkpoint_maker as maker
import lmr
from lmr.models.clip import Clip, random_clip


@pytest.fixture(scope="module", params=["quick_gelu", "gelu"])
def model(request: pytest.FixtureRequest) -> Any:
    return maker.make_model(request.param)


@pytest.fixture(scope="module")
def halved() -> Any:
    """QuickGELU, and weights that half precision holds exactly, as OpenAI's are."""
    return maker.make_model("quick_gelu", half=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with CLIP's own vocabulary, so that it reads texts."""
    return maker.write_huggingface(maker.make_model(words=49408), tmp_path_factory.mktemp("whole"))


def compare(backbone: lmr.Backbone, model: Any) -> None:
    """Both towers' raw features agree with transformers to 1e-5."""
    assert isinstance(backbone, Clip)
    images, tokens, end = maker.make_inputs(model)
    seen, read = maker.expect_features(model)
    torch.testing.assert_close(backbone.encoder(images), seen, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(backbone.text(tokens, end), read, atol=1e-5, rtol=1e-5)
    assert backbone.logit_scale == pytest.approx(float(model.logit_scale.exp()), rel=1e-6)
    assert backbone.input_shape == (3, maker.SIDE, maker.SIDE) or model.config.vision_config.image_size == 224


def test_the_two_activations_and_every_weight_matter(model: Any) -> None:
    """The comparison can fail: another activation, or one number of any tensor, moves the features."""
    seen, read = maker.expect_features(model)
    other = maker.expect_features(maker.make_model("gelu" if model.config.text_config.hidden_act != "gelu" else "relu"))
    assert (other[0] - seen).abs().max() > 1e-2
    assert (other[1] - read).abs().max() > 1e-3
    for name, weight in model.named_parameters():
        if "k_proj.bias" in name or name == "logit_scale" or "token_embedding" in name:
            continue  # a bias of the keys cancels in the softmax; not every word is read
        kept = weight.clone()
        weight.mul_(1.05)
        changed = maker.expect_features(model)
        weight.copy_(kept)
        assert max((changed[0] - seen).abs().max(), (changed[1] - read).abs().max()) > 1e-4, name


@pytest.mark.parametrize("kind", ["safetensors", "bin", "shards"])
def test_huggingface_folder(kind: str, model: Any, tmp_path: Path) -> None:
    folder = maker.write_huggingface(model, tmp_path / "model", kind)
    if kind == "shards":
        assert len(list(folder.glob("model-*.safetensors"))) > 2
    backbone = lmr.load(folder)
    compare(backbone, model)
    assert backbone.facts["activation"] == model.config.text_config.hidden_act
    assert backbone.facts["format"].startswith("Hugging Face")
    weights = next(folder.glob("*.bin" if kind == "bin" else "*.safetensors*"))
    compare(lmr.load(weights if kind != "shards" else folder / "model.safetensors.index.json"), model)


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
@pytest.mark.parametrize("prefix", ["", "text."])
def test_open_clip_folder(kind: str, prefix: str, model: Any, tmp_path: Path) -> None:
    backbone = lmr.load(maker.write_open_clip(model, tmp_path / "model", kind, prefix))
    compare(backbone, model)
    assert backbone.facts["format"].startswith("open_clip")


def test_openai_state_dict(halved: Any, tmp_path: Path) -> None:
    torch.save(maker.make_openai_state(halved), tmp_path / "state.pt")
    backbone = lmr.load(tmp_path / "state.pt")
    compare(backbone, halved)
    assert backbone.facts["format"] == "OpenAI (pickle)"
    assert backbone.facts["activation"] == "quick_gelu"
    assert {tensor.dtype for tensor in backbone.encoder.state_dict().values()} == {torch.float32}
    bare = {name: tensor.half() for name, tensor in maker.rename_to_openai(halved).items()}
    torch.save(bare, tmp_path / "ViT-B-32.pt")  # without the scalars, but half and under OpenAI's name
    compare(lmr.load(tmp_path / "ViT-B-32.pt"), halved)


CONTAINERS: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "plain": lambda state: state,
    "open_clip training": lambda state: {
        "epoch": 3,
        "name": "run",
        "state_dict": {f"module.{name}": tensor for name, tensor in state.items()},
        "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 1e-3}]},
    },
    "model": lambda state: {"model": state},
    "nested": lambda state: {"model": {"state_dict": {f"_orig_mod.module.{n}": t for n, t in state.items()}}},
    "wrapped": lambda state: {f"clip_model.{name}": tensor for name, tensor in state.items()},
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_named_architecture(container: str, model: Any, tmp_path: Path, tiny: str) -> None:
    """A weights file on its own, in open_clip's names, as training scripts leave it; GELU or QuickGELU by name."""
    torch.save(CONTAINERS[container](maker.rename_to_openai(model)), tmp_path / "epoch_3.pt")
    ending = "-quickgelu" if model.config.text_config.hidden_act == "quick_gelu" else ""
    backbone = lmr.load(tmp_path / "epoch_3.pt", architecture=tiny + ending)
    compare(backbone, model)
    assert backbone.facts["architecture"] == tiny + ending


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> str:
    """The small model's sizes as an architecture with a name."""
    from lmr.models.towers.architectures import ARCHITECTURES
    from lmr.models.towers.image import VisionConfig
    from lmr.models.towers.text import TextConfig

    m = maker
    image = VisionConfig(m.SIDE, m.PATCH, m.WIDTH, m.DEPTH, m.HEADS, m.FEATURES, m.HIDDEN, "gelu")
    heads, features, hidden = m.TEXT_HEADS, m.FEATURES, m.TEXT_HIDDEN
    text = TextConfig(m.CONTEXT, m.WORDS, m.TEXT_WIDTH, m.TEXT_DEPTH, heads, features, hidden, "gelu")
    monkeypatch.setitem(ARCHITECTURES, "ViT-tiny", (image, text))
    return "ViT-tiny"


def test_ambiguous_weights_ask_for_the_architecture(model: Any, tmp_path: Path, tiny: str) -> None:
    state = maker.rename_to_openai(model)
    save_file(state, tmp_path / "mine.safetensors")
    with pytest.raises(lmr.LmrError, match=r'Name the architecture.*architecture="ViT-B-32".*ViT-B-32-quickgelu'):
        lmr.load(tmp_path / "mine.safetensors")
    torch.save({name: tensor.half() for name, tensor in state.items()}, tmp_path / "mine.pt")
    with pytest.raises(lmr.LmrError, match="Name the architecture"):
        lmr.load(tmp_path / "mine.pt")
    save_file(model.state_dict(), tmp_path / "hugging.safetensors")
    with pytest.raises(lmr.LmrError, match=r"Hugging Face's names.*put config\.json beside"):
        lmr.load(tmp_path / "hugging.safetensors")
    if model.config.text_config.hidden_act == "gelu":
        compare(lmr.load(tmp_path / "hugging.safetensors", architecture=tiny), model)


def test_architecture_must_be_the_weights_own(halved: Any, tmp_path: Path, tiny: str) -> None:
    torch.save(maker.rename_to_openai(halved), tmp_path / "mine.pt")
    with pytest.raises(lmr.LmrError, match=r"does not match: .* of another shape \(visual\.") as caught:
        lmr.load(tmp_path / "mine.pt", architecture="ViT-S-32")
    assert "[128, 3, 8, 8] instead of [384, 3, 32, 32]" in str(caught.value)
    with pytest.raises(lmr.LmrError, match=r"There is no architecture 'ViT-B32'\. Did you mean 'ViT-B-32'"):
        lmr.load(tmp_path / "mine.pt", architecture="ViT-B32")
    torch.save(maker.make_openai_state(halved), tmp_path / "own.pt")
    compare(lmr.load(tmp_path / "own.pt", architecture=tiny), halved)
    with pytest.raises(lmr.LmrError, match="disagree: resolution of the image tower is 32 in the first and 224"):
        lmr.load(tmp_path / "own.pt", architecture="ViT-B-32")
    folder = maker.write_huggingface(halved, tmp_path / "folder")
    compare(lmr.load(folder, architecture=f"{tiny}-quickgelu"), halved)
    with pytest.raises(
        lmr.LmrError, match="disagree: activation of the image tower is quick_gelu in the first and gelu"
    ):
        lmr.load(folder, architecture=tiny)


@pytest.mark.parametrize(("shape", "half"), [("B", True), ("L", False)])
def test_real_shapes(shape: str, half: bool, tmp_path: Path) -> None:
    """ViT-B/16 in OpenAI's form and ViT-L/14 in Hugging Face's, but for their depth: a few blocks on either side."""
    text = {"max_position_embeddings": 77, "num_hidden_layers": 1, "hidden_size": 512 if shape == "B" else 768}
    text |= {"num_attention_heads": text["hidden_size"] // 64, "intermediate_size": 4 * text["hidden_size"]}
    width, patch = (768, 16) if shape == "B" else (1024, 14)
    vision = {"hidden_size": width, "num_hidden_layers": 3, "num_attention_heads": width // 64}
    vision |= {"intermediate_size": 4 * width, "image_size": 224, "patch_size": patch}
    model = maker.make_model(half=half, vision=vision, text=text)
    if shape == "B":
        torch.save(maker.make_openai_state(model), tmp_path / "state.pt")
        backbone = lmr.load(tmp_path / "state.pt")
    else:
        backbone = lmr.load(maker.write_huggingface(model, tmp_path))
    assert isinstance(backbone, Clip)
    images, tokens, end = (part[:1] for part in maker.make_inputs(model))
    with torch.no_grad():
        seen = model.visual_projection(model.vision_model(pixel_values=images).pooler_output)
        read = model.text_projection(model.text_model(input_ids=tokens).pooler_output)
    torch.testing.assert_close(backbone.encoder(images), seen, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(backbone.text(tokens, end), read, atol=1e-5, rtol=1e-5)
    assert backbone.input_shape == (3, 224, 224)


# Texts.


def test_texts_are_read_as_transformers_reads_their_tokens(whole: Path) -> None:
    from transformers import CLIPModel

    backbone = lmr.load(whole)
    texts = ["a photo of a cat.", "a very long photo of one small dog in the grass", "dog"]
    features = backbone.encode_text(texts)
    assert features.shape == (3, maker.FEATURES)
    assert not features.requires_grad
    ids = [[320, 1125, 539, 320, 2368, 269], [320, 1070, 1538, 1125, 539, 637, 2442, 1929, 530, 518, 5922], [1929]]
    padded = torch.full((3, maker.CONTEXT), 49407)
    for row, words in zip(padded, ids, strict=True):
        row[: len(words) + 2] = torch.tensor([49406, *words, 49407])
    other = CLIPModel.from_pretrained(whole)
    with torch.no_grad():
        read = other.text_projection(other.text_model(input_ids=padded).pooler_output)
    torch.testing.assert_close(features, torch.nn.functional.normalize(read, dim=-1), atol=1e-5, rtol=0)


def test_text_side_cuts_every_part_to_its_longest(whole: Path) -> None:
    backbone = lmr.load(whole)
    texts = ["dog", "a cat", "a photo of a very long dog in the grass", "a red fish"]
    side = backbone.text_side(texts)
    lengths: list[int] = []
    hook = side.tower.register_forward_pre_hook(lambda _, given: lengths.append(given[0].shape[1]))
    expected = backbone.encode_text(texts)
    for chunk in (1, 2, 4):
        torch.testing.assert_close(side.all_prototypes(chunk), expected, atol=1e-6, rtol=0)
    hook.remove()
    assert lengths == [12, 3, 4, 12, 5, 4, 12, 12]


def test_model_with_a_vocabulary_of_its_own_reads_no_texts(halved: Any, tmp_path: Path) -> None:
    backbone = lmr.load(maker.write_huggingface(halved, tmp_path))
    for read in (backbone.encode_text, backbone.text_side):
        with pytest.raises(lmr.LmrError, match="a vocabulary of 300 tokens, not CLIP's 49408"):
            read(["a dog", "a cat"])


# Adaptation, precision, modes.


@pytest.mark.parametrize("spec", ["lmr", "tent", "batclip"])
def test_loaded_model_adapts(spec: str, whole: Path) -> None:
    """The same stream through the loaded model and, for LMR, through transformers' image tower by autograd."""
    backbone = lmr.load(whole)
    clip = backbone.classifier(["cat", "dog", "red fish", "tall tree"], cache=False)
    method = lmr.create(spec, clip)
    images = [torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(k)) for k in range(3)]
    answers = [method.step(batch).logits for batch in images]
    assert all(answer.isfinite().all() for answer in answers)
    assert not torch.equal(method.predict(images[0]).logits, lmr.create("zeroshot", clip).predict(images[0]).logits)
    if spec != "lmr":
        return

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = maker.make_model(words=49408)

        def forward(self, x: Tensor) -> Tensor:
            features: Tensor = self.model.visual_projection(self.model.vision_model(pixel_values=x).pooler_output)
            return features

    plain = lmr.create(spec, lmr.ZeroShot(Plain(), clip.prototypes, clip.logit_scale))
    for batch, answer in zip(images, answers, strict=True):
        torch.testing.assert_close(plain.step(batch).logits, answer, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_precision_of_frozen_weights(dtype: torch.dtype, whole: Path) -> None:
    from PIL import Image

    exact = lmr.load(whole)
    backbone = lmr.load(whole, dtype=dtype)
    wide = torch.promote_types(dtype, torch.float32)
    for ours, full in ((backbone.encoder, exact.encoder), (backbone.text, exact.text)):
        for key, value in ours.state_dict().items():
            kept = wide if "ln_" in key else dtype
            assert value.dtype == kept, key
            torch.testing.assert_close(value, full.state_dict()[key].to(kept), atol=0, rtol=0 if "ln_" in key else 1e-6)
    image = backbone.preprocess(Image.new("RGB", (50, 40), (200, 30, 90)))
    assert image.dtype == dtype
    assert backbone.preprocess(torch.zeros(2, 9, 9, 3, dtype=torch.uint8)).dtype == dtype
    texts = ["a cat", "a dog"]
    assert backbone.encode_text(texts).dtype == wide
    coarse = {torch.bfloat16: 0.1, torch.float16: 0.01, torch.float64: 1e-6}[dtype]
    assert (backbone.encode_text(texts) - exact.encode_text(texts)).abs().max() < coarse
    ours = exact.classifier(texts, cache=False).features(image[None].float())
    features = backbone.classifier(texts, cache=False).features(image[None])
    torch.testing.assert_close(features.to(ours), ours, atol=coarse, rtol=0)


def test_odd_precision_gets_a_message(whole: Path) -> None:
    for dtype in (torch.int8, "float16"):
        with pytest.raises(lmr.LmrError, match=r"Expected one of torch\.float32"):
            lmr.load(whole, dtype=dtype)  # type: ignore[arg-type]


def test_modes_reach_the_tower(whole: Path) -> None:
    assert lmr.load(whole, memory="lean").encoder.memory == "lean"
    assert lmr.load(whole).encoder.memory == "fast"
    with pytest.raises(lmr.LmrError, match="'fast' or 'lean'"):
        lmr.load(whole, memory="tight")  # type: ignore[arg-type]


def test_weights_saved_as_parameters_are_the_same(model: Any, tmp_path: Path) -> None:
    folder = maker.write_huggingface(model, tmp_path, "bin")
    torch.save({key: torch.nn.Parameter(value) for key, value in model.state_dict().items()}, folder / "tuned.pt")
    compare(lmr.load(folder / "tuned.pt"), model)


def test_what_was_taken_off_is_told(model: Any, tmp_path: Path) -> None:
    folder = maker.write_huggingface(model, tmp_path)
    state = {f"module.clip_model.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3}, folder / "epoch.pt")
    assert lmr.load(folder / "epoch.pt").facts["unwrapped"] == "state_dict, module., clip_model."
    assert "unwrapped" not in lmr.load(folder).facts


def test_weights_belong_to_the_model_not_to_the_file(whole: Path, tmp_path: Path) -> None:
    """What happens to the file afterwards cannot reach the model; two loads share nothing."""
    weights = tmp_path / "model.safetensors"
    for name in ("config.json", "preprocessor_config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((whole / name).read_bytes())
    one, two = lmr.load(tmp_path), lmr.load(tmp_path)
    before = one.encode_text(["a cat"])
    with weights.open("r+b") as file:
        file.seek(20_000)
        file.write(b"\x77" * 5_000_000)
    assert torch.equal(one.encode_text(["a cat"]), before)
    two.text.words.weight.zero_()
    assert torch.equal(one.encode_text(["a cat"]), before)


# Random weights.


def test_random_model() -> None:
    one = random_clip("ViT-S-32", seed=3)
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    features = one.encoder(images)
    assert features.shape == (2, 384)
    assert features.isfinite().all()
    assert 0.1 < features.std() < 10
    assert one.facts["activation"] == "gelu"
    assert one.encode_text(["a dog", "a cat"]).isfinite().all()
    same, other = random_clip("ViT-S-32", seed=3), random_clip("ViT-S-32", seed=4)
    assert torch.equal(same.encoder.patches.weight, one.encoder.patches.weight)
    assert not torch.equal(other.encoder.patches.weight, one.encoder.patches.weight)
    with pytest.raises(lmr.LmrError, match="There is no architecture 'ViT-X'"):
        random_clip("ViT-X")
