"""Weights files: what is whole is read exactly, what is not gives a message, and nothing in a file is ever run."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import checkpoint_maker as maker
import lmr
from lmr.models.formats.weights import list_shards, read_weights

STATE = {
    "visual.conv1.weight": torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(0)).half(),
    "visual.proj": torch.arange(6.0).view(2, 3),
    "logit_scale": torch.tensor(2.5),
    "deep.0.ln_1.bias": torch.zeros(5, dtype=torch.bfloat16),
    "wide": torch.ones(2, dtype=torch.float64),
    "input_resolution": torch.tensor(224),
}


def write(kind: str, path: Path) -> Path:
    """The state in a container of this kind, named as its kind is."""
    if kind == "safetensors":
        save_file(STATE, path.with_suffix(".safetensors"))
        return path.with_suffix(".safetensors")
    torch.save(STATE, path.with_suffix(".bin"), _use_new_zipfile_serialization=kind == "pickle")
    return path.with_suffix(".bin")


KINDS = ["safetensors", "pickle", "old pickle"]


def check_same(tensors: dict[str, Tensor]) -> None:
    assert set(tensors) == set(STATE)
    for name, tensor in tensors.items():
        assert tensor.dtype == STATE[name].dtype
        assert torch.equal(tensor, STATE[name])
        assert tensor.device.type == "cpu"


@pytest.mark.parametrize("kind", KINDS)
def test_read_is_exact(kind: str, tmp_path: Path) -> None:
    weights = read_weights(write(kind, tmp_path / "weights"))
    check_same(weights.tensors)
    assert weights.container == {"old pickle": "pickle"}.get(kind, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_cut_file_gets_a_message(kind: str, tmp_path: Path) -> None:
    path = write(kind, tmp_path / "weights")
    content = path.read_bytes()
    for size in [1, 8, 100, len(content) // 2, len(content) - 1]:
        path.write_bytes(content[:size])
        with pytest.raises(lmr.LmrError, match="is not a complete weights file"):
            read_weights(path)
    path.write_bytes(b"")
    with pytest.raises(lmr.LmrError, match="is empty; a download may have failed"):
        read_weights(path)


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_bytes_give_weights_or_a_message(kind: str, tmp_path: Path) -> None:
    """Whatever a few wrong bytes do to a reader, no other error comes out."""
    path = write(kind, tmp_path / "weights")
    content = path.read_bytes()
    chance = random.Random(3)
    refused = 0
    for _ in range(100):
        changed = bytearray(content)
        for _ in range(chance.choice([1, 3, 10])):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        path.write_bytes(changed)
        try:
            read_weights(path)
        except lmr.LmrError:
            refused += 1
    assert refused > 20


@pytest.mark.parametrize("suffix", [".pt", ".bin", ".safetensors"])
@pytest.mark.parametrize("content", [b"<!DOCTYPE html><p>404</p>", b"version https://git-lfs.github.com/spec/v1\n" * 3])
def test_something_else_gets_a_message(suffix: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"weights{suffix}"
    path.write_bytes(content)
    with pytest.raises(lmr.LmrError, match=r"is not a complete weights file .* Fetch it again") as caught:
        read_weights(path)
    assert "weights_only" not in str(caught.value)


def test_missing_file_and_folder_get_a_message(tmp_path: Path) -> None:
    with pytest.raises(lmr.LmrError, match="found nothing"):
        read_weights(tmp_path / "nowhere.pt")
    with pytest.raises(lmr.LmrError, match="found a folder"):
        read_weights(tmp_path)


class Trap:
    """A pickle that writes a file when it is loaded without care."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.path}'",)


def test_pickle_never_runs_code(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    for name, content in {
        "trap": {"state_dict": STATE, "extra": Trap(sprung)},
        "settings": {"state_dict": STATE, "settings": argparse.Namespace(lr=1e-3)},
        "module": torch.nn.Linear(2, 2),
    }.items():
        torch.save(content, tmp_path / f"{name}.pt")
        with pytest.raises(
            lmr.LmrError, match=r"holds Python objects \(.+\) besides weights, and loading these"
        ) as caught:
            read_weights(tmp_path / f"{name}.pt")
        assert "weights_only" not in str(caught.value)
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(Trap(sprung)))
    with pytest.raises(lmr.LmrError):
        read_weights(tmp_path / "bare.pt")
    assert not sprung.exists()


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, {}, {"state_dict": {}}, {3: torch.ones(2)}, "text"])
def test_pickle_without_weights_gets_a_message(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "weights.pt")
    with pytest.raises(lmr.LmrError, match=r"holds no weights|Expected a table of named tensors"):
        read_weights(tmp_path / "weights.pt")


def test_endless_container_gets_a_message(tmp_path: Path) -> None:
    content: dict[str, Any] = {}
    content["model"] = content
    torch.save(content, tmp_path / "weights.pt")
    with pytest.raises(lmr.LmrError, match="Expected a table of named tensors"):
        read_weights(tmp_path / "weights.pt")


UNUSUAL = {
    "sparse": (lambda t: t.flatten(1).to_sparse(), r"is not dense \(sparse_coo\).*to_dense"),
    "csr": (lambda t: t.flatten(1).to_sparse_csr(), r"is not dense \(sparse_csr\).*to_dense"),
    "meta": (lambda t: t.to("meta"), "has no values"),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("kind", UNUSUAL)
def test_tensor_that_is_not_dense_is_refused(kind: str, tmp_path: Path) -> None:
    change, words = UNUSUAL[kind]
    torch.save(STATE | {"visual.conv1.weight": change(STATE["visual.conv1.weight"])}, tmp_path / "weights.pt")
    with pytest.raises(lmr.LmrError, match=rf"The tensor visual\.conv1\.weight in .*weights\.pt' {words}"):
        read_weights(tmp_path / "weights.pt")


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("kind", UNUSUAL)
@pytest.mark.parametrize("key", ["visual.conv1.weight", "visual.proj", "logit_scale"])
def test_checkpoint_with_such_a_tensor_is_refused(kind: str, key: str, tmp_path: Path) -> None:
    state = maker.make_openai_state(maker.make_model())
    tensor = state[key] if state[key].ndim else state[key].view(1, 1)
    torch.save(state | {key: UNUSUAL[kind][0](tensor)}, tmp_path / "ViT-tiny.pt")
    with pytest.raises(lmr.LmrError, match=f"The tensor {key} in"):
        lmr.load(tmp_path / "ViT-tiny.pt")


@pytest.mark.parametrize("scale", [torch.tensor(1 + 2j), torch.tensor(3), torch.ones(2)])
def test_logit_scale_of_another_kind_is_refused(scale: Tensor, tmp_path: Path) -> None:
    state = maker.make_openai_state(maker.make_model())
    torch.save(state | {"logit_scale": scale}, tmp_path / "ViT-tiny.pt")
    with pytest.raises(lmr.LmrError, match="one finite number as logit_scale"):
        lmr.load(tmp_path / "ViT-tiny.pt")


# Shards.


def write_shards(folder: Path) -> Path:
    names = list(STATE)
    parts = {"a.safetensors": names[:3], "b.safetensors": names[3:]}
    for file, own in parts.items():
        save_file({name: STATE[name] for name in own}, folder / file)
    index = {"weight_map": {name: file for file, own in parts.items() for name in own}}
    maker.write_json(index, folder / "model.safetensors.index.json")
    return folder / "model.safetensors.index.json"


def test_shards_are_one_file(tmp_path: Path) -> None:
    index = write_shards(tmp_path)
    weights = read_weights(index)
    check_same(weights.tensors)
    assert weights.container == "safetensors in 2 files"
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(lmr.LmrError, match=r"names 2 files, of which 1 are missing: b\.safetensors"):
        read_weights(index)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": "../../etc/weights.bin"}}', '{"weight_map": {"a": 3}}',
     '{"weight_map": {"a": "/etc/passwd"}}', '{"weight_map": {"a": "notes.txt"}}'],
)  # fmt: skip
def test_odd_index_gets_a_message(content: str, tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(content or " ")
    for read in (list_shards, read_weights):
        with pytest.raises(lmr.LmrError, match="is not the index of a checkpoint in several files"):
            read(index)


def test_torchscript_archive_is_refused_and_never_run(tmp_path: Path) -> None:
    """OpenAI's original files are such archives; the message says how to get the same model as safetensors."""
    path = tmp_path / "ViT-B-16.pt"
    maker.save_torchscript(STATE, path)
    with pytest.raises(lmr.LmrError, match=r"is a TorchScript archive.*openai/clip-vit-base-patch16.*save_file"):
        read_weights(path)
    with pytest.raises(lmr.LmrError, match=r"is a TorchScript archive"):
        lmr.load(path)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "other.pt", "w") as new:
        for entry in old.infolist():  # a damaged program in another root folder: still named, not run
            content = b"no program at all (" if "/code/" in entry.filename else old.read(entry)
            new.writestr(f"some name/{entry.filename.partition('/')[2]}", content)
    with pytest.raises(lmr.LmrError, match=r"is a TorchScript archive"):
        read_weights(tmp_path / "other.pt")


def test_index_content_is_json(tmp_path: Path) -> None:
    assert [path.name for path in list_shards(write_shards(tmp_path))] == ["a.safetensors", "b.safetensors"]
    assert set(json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]) == set(STATE)
