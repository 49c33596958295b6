"""Checkpoints that do not fit are named and refused as a whole; those of other models say why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import checkpoint_maker as maker
import lmr
from lmr.models.formats.checkpoints import detect_naming, infer_sizes
from lmr.models.towers.image import VisionConfig
from lmr.models.towers.text import TextConfig

State = dict[str, Tensor]


@pytest.fixture(scope="module")
def model() -> Any:
    return maker.make_model(half=True)


def write_changed(model: Any, family: str, folder: Path, change: Callable[[State], Any]) -> Path:
    """A checkpoint of this family, its tensors changed before they are written."""
    if family == "openai":
        state = maker.make_openai_state(model)
        change(state)
        torch.save(state, folder / "model.pt")
        return folder / "model.pt"
    write, name = {
        "huggingface": (maker.write_huggingface, "model.safetensors"),
        "open_clip": (maker.write_open_clip, "open_clip_model.safetensors"),
    }[family]
    write(model, folder)
    state = load_file(folder / name)
    change(state)
    save_file(state, folder / name)
    return folder


FAMILIES = ["huggingface", "open_clip", "openai"]
NAMES = {  # of the class token, of a text weight and of a norm
    "huggingface": (
        "vision_model.embeddings.class_embedding",
        "text_model.encoder.layers.1.mlp.fc1.weight",
        "vision_model.post_layernorm.bias",
    ),
    "open_clip": ("visual.class_embedding", "transformer.resblocks.1.mlp.c_fc.weight", "visual.ln_post.bias"),
}
NAMES["openai"] = NAMES["open_clip"]


@pytest.mark.parametrize("family", FAMILIES)
def test_missing_keys_are_named(family: str, model: Any, tmp_path: Path) -> None:
    missing = NAMES[family]
    path = write_changed(model, family, tmp_path, lambda state: [state.pop(name) for name in missing])
    with pytest.raises(lmr.LmrError, match=r"of \d+ keys 3 missing \(.*Nothing was loaded") as caught:
        lmr.load(path)
    assert all(name in str(caught.value) for name in missing)


def test_half_matching_checkpoint_counts_what_it_does_not_name(model: Any, tmp_path: Path) -> None:
    def change(state: State) -> None:
        for key in [key for key in state if key.startswith("text_model.encoder.layers.2.")]:
            state[key.replace("text_model", "text_tower")] = state.pop(key)

    path = write_changed(model, "huggingface", tmp_path, change)
    with pytest.raises(lmr.LmrError, match=r"16 missing \((\S+, ){4}\.\.\.\); 16 unexpected \((\S+, ){4}\.\.\.\)"):
        lmr.load(path)


@pytest.mark.parametrize("family", FAMILIES)
def test_odd_keys_are_named(family: str, model: Any, tmp_path: Path) -> None:
    path = write_changed(model, family, tmp_path, lambda state: state.update({"visual.ls_1.gamma": torch.ones(3)}))
    with pytest.raises(lmr.LmrError, match=r"keys 1 unexpected \(visual\.ls_1\.gamma\)"):
        lmr.load(path)


@pytest.mark.parametrize("family", FAMILIES)
def test_wrong_shapes_are_named(family: str, model: Any, tmp_path: Path) -> None:
    name = NAMES[family][1]
    path = write_changed(model, family, tmp_path, lambda state: state.update({name: state[name][:, :-1].contiguous()}))
    with pytest.raises(lmr.LmrError, match=r"1 of another shape \(\S+ \[256, 63\] instead of \[256, 64\]\)"):
        lmr.load(path)


def test_cut_positions_are_named(model: Any, tmp_path: Path) -> None:
    """Resolutions that are no square of patches cannot slip through where sizes come from the weights."""
    name = "visual.positional_embedding"
    path = write_changed(model, "openai", tmp_path, lambda state: state.update({name: state[name][:-1].clone()}))
    with pytest.raises(lmr.LmrError, match=r"visual\.positional_embedding \[16, 128\] instead of \[10, 128\]"):
        lmr.load(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("family", FAMILIES)
def test_broken_numbers_are_named(family: str, value: float, model: Any, tmp_path: Path) -> None:
    name = NAMES[family][1]

    def change(state: State) -> None:
        state[name] = state[name].clone()
        state[name][5, 7] = value

    with pytest.raises(lmr.LmrError, match=rf"NaN or infinite values in 1 tensors \({name}\)"):
        lmr.load(write_changed(model, family, tmp_path, change))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.float8_e4m3fn])
def test_quantised_weights_are_refused(dtype: torch.dtype, model: Any, tmp_path: Path) -> None:
    name = NAMES["huggingface"][1]
    path = write_changed(model, "huggingface", tmp_path, lambda state: state.update({name: state[name].to(dtype)}))
    with pytest.raises(lmr.LmrError, match=f"found {dtype} in {name}; quantised"):
        lmr.load(path)


@pytest.mark.parametrize("value", [torch.tensor(float("nan")), torch.ones(2), torch.tensor(1e4)])
def test_odd_logit_scale_is_refused(value: Tensor, model: Any, tmp_path: Path) -> None:
    path = write_changed(model, "open_clip", tmp_path, lambda state: state.update(logit_scale=value))
    with pytest.raises(lmr.LmrError, match="Expected one finite number as logit_scale"):
        lmr.load(path)
    path = write_changed(model, "open_clip", tmp_path, lambda state: state.pop("logit_scale"))
    with pytest.raises(lmr.LmrError, match=r"1 missing \(logit_scale\)"):
        lmr.load(path)


def test_logit_bias_is_carried(model: Any, tmp_path: Path) -> None:
    """open_clip's models trained with a sigmoid loss have one; a scale may be stored as [1]."""
    extra = {"logit_bias": torch.tensor(-12.5), "logit_scale": torch.tensor([2.0]), "attn_mask": torch.zeros(16, 16)}
    backbone = lmr.load(write_changed(model, "open_clip", tmp_path, lambda state: state.update(extra)))
    assert backbone.logit_bias == -12.5
    assert backbone.logit_scale == pytest.approx(7.389056)


def test_openai_file_that_lost_its_last_blocks_is_no_smaller_model() -> None:
    """The sizes of OpenAI's models are known, so that blocks missing at the end are missed."""
    with torch.device("meta"):
        state = {
            "visual.conv1.weight": torch.empty(768, 3, 32, 32),
            "visual.positional_embedding": torch.empty(50, 768),
            "visual.proj": torch.empty(768, 512),
            "visual.transformer.resblocks.0.mlp.c_fc.weight": torch.empty(3072, 768),
            "visual.transformer.resblocks.10.ln_1.weight": torch.empty(768),
            "positional_embedding": torch.empty(77, 512),
            "token_embedding.weight": torch.empty(49408, 512),
            "text_projection": torch.empty(512, 512),
            "transformer.resblocks.0.mlp.c_fc.weight": torch.empty(2048, 512),
            "transformer.resblocks.11.ln_1.weight": torch.empty(512),
        }
    assert infer_sizes(state, "x") == (VisionConfig(patch=32), TextConfig())
    state["visual.positional_embedding"] = torch.empty(65, 768, device="meta")  # 256 pixels: no model of OpenAI's...
    assert infer_sizes(state, "x")[0] == VisionConfig(patch=32, resolution=256)  # ... but a size that is known
    state["visual.proj"] = torch.empty(768, 100, device="meta")
    assert infer_sizes(state, "x")[0].depth == 11
    state["visual.conv1.weight"] = torch.empty(768, 3, device="meta")
    with pytest.raises(lmr.LmrError, match="do not have the shapes of a CLIP model"):
        infer_sizes(state, "x")
    del state["token_embedding.weight"]
    with pytest.raises(lmr.LmrError, match=r"is not a complete checkpoint: \S+ is missing|do not have the shapes"):
        infer_sizes(state, "x")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["visual.trunk.blocks.0.norm1.weight", "text.ln_final.weight"], "its image tower is a timm model"),
        (["visual.layer1.0.conv1.weight", "visual.attnpool.q_proj.weight"], "its image tower is a ResNet"),
        (["visual.conv1.weight", "text_decoder.resblocks.0.ln_1.weight"], "it is a CoCa model"),
        (["visual.conv1.weight", "text.transformer.embeddings.word.weight"], "a Hugging Face language model"),
        (["vision_model.head.probe"], "it is a SigLIP model"),
        (["visual.blocks.0.attn.q_proj.weight"], "an EVA model"),
        (["conv1.weight", "layer1.0.conv1.weight"], "its first names are conv1.weight, layer1.0.conv1.weight"),
    ],
)
def test_other_models_say_which_part_is_not_supported(keys: list[str], words: str, tmp_path: Path) -> None:
    save_file({key: torch.ones(2) for key in keys}, tmp_path / "other.safetensors")
    with pytest.raises(lmr.LmrError, match=rf"other\.safetensors'.*{words}.*lmr\.ZeroShot\(encoder, prototypes\)"):
        lmr.load(tmp_path / "other.safetensors")


def test_names_in_the_way_of_a_wrapper_are_told(model: Any, tmp_path: Path) -> None:
    """As Lightning saves a module with the model and something else in it."""
    state = {f"model.{name}": tensor for name, tensor in maker.rename_to_openai(model).items()}
    foreign = {"criterion.weight": torch.ones(3), "accuracy.total": torch.zeros(1)}
    torch.save({"state_dict": state | foreign, "epoch": 3}, tmp_path / "last.ckpt")
    words = (
        r"begin with 'model\.', but not those of 2 other tensors \(criterion\.weight, accuracy\.total\)\. Save only the"
    )
    with pytest.raises(lmr.LmrError, match=words):
        lmr.load(tmp_path / "last.ckpt")
    torch.save({name.replace("model", "net"): tensor for name, tensor in state.items()}, tmp_path / "net.pt")
    with pytest.raises(lmr.LmrError, match=r"net\.pt' begin with 'net\.'\. Save only the model's weights:"):
        lmr.load(tmp_path / "net.pt")


@pytest.mark.parametrize("side", ["vision_config", "text_config"])
def test_depth_no_file_can_fill_is_refused_at_once(side: str, model: Any, tmp_path: Path) -> None:
    folder = maker.write_huggingface(model, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config[side]["num_hidden_layers"] = 10_000_000
    maker.write_json(config, folder / "config.json")
    with pytest.raises(lmr.LmrError, match=r"A tower of 10000000 blocks .* holds \d\d tensors.*Nothing was loaded"):
        lmr.load(folder)


def test_names_tell_the_family() -> None:
    for keys, family in (
        (["text_model.x"], "Hugging Face's"),
        (["visual.conv1.weight", "ln_final.bias"], "OpenAI's or open_clip's"),
        (["visual.conv1.weight", "text.ln_final.bias"], "open_clip's"),
    ):
        assert detect_naming(keys, "x").family == family
