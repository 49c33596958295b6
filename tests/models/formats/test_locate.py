"""Where models are found: paths, caches, the hub; no test here reaches a network."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import checkpoint_maker as maker
import lmr
from lmr.models.formats.locate import ModelFiles, find_model

ID = "laion/CLIP-tiny"


class Hub:
    """A hub in a folder: what is asked of it is written down, and it may be out of reach."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder, self.cache = folder, cache
        self.asked: list[str] = []
        self.error: Exception | None = None

    def serve(self, hub_id: str, name: str) -> str:
        from huggingface_hub.errors import EntryNotFoundError

        self.asked.append(name)
        if self.error is not None:
            raise self.error
        if not (self.folder / name).is_file():
            raise EntryNotFoundError(f"404: {name}")
        self.keep(hub_id, name)
        return str(self.snapshot(hub_id) / name)

    def answer(self, url: str) -> None:
        """The one question before anything is fetched."""
        from huggingface_hub.errors import EntryNotFoundError

        if self.error is not None:
            raise self.error
        if not (self.folder / Path(url).name).is_file():
            raise EntryNotFoundError(f"404: {url}")

    def snapshot(self, hub_id: str) -> Path:
        return self.cache / f"models--{hub_id.replace('/', '--')}" / "snapshots" / ("a" * 40)

    def keep(self, hub_id: str, *names: str) -> None:
        """Put files into the cache, in the layout of huggingface_hub."""
        snapshot = self.snapshot(hub_id)
        snapshot.mkdir(parents=True, exist_ok=True)
        refs = snapshot.parent.parent / "refs"
        refs.mkdir(exist_ok=True)
        (refs / "main").write_text("a" * 40)
        for name in names:
            shutil.copy(self.folder / name, snapshot / name)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    model, root = maker.make_model(half=True), tmp_path_factory.mktemp("models")
    found = {kind: maker.write_huggingface(model, root / kind, kind) for kind in ("safetensors", "bin", "shards")}
    found["open_clip"] = maker.write_open_clip(model, root / "open_clip")
    return found


@pytest.fixture
def hub(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A hub that holds the small model in safetensors, with an empty cache and an empty home."""
    folder = tmp_path / "hub"
    shutil.copytree(folders["safetensors"], folder)
    own = Hub(folder, tmp_path / "cache")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(own.cache))
    monkeypatch.setattr("huggingface_hub.hf_hub_download", own.serve)
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", own.answer)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return own


# Folders and files.


@pytest.mark.parametrize("kind", ["safetensors", "bin", "shards", "open_clip"])
def test_folder(kind: str, folders: dict[str, Path], hub: Hub) -> None:
    expected = {
        "safetensors": "model.safetensors",
        "bin": "pytorch_model.bin",
        "shards": "model.safetensors.index.json",
        "open_clip": "open_clip_model.safetensors",
    }[kind]
    assert find_model(folders[kind]) == find_model(str(folders[kind])) == ModelFiles(folders[kind] / expected)
    assert hub.asked == []


def test_relative_paths_and_home(folders: dict[str, Path], hub: Hub, tmp_path: Path) -> None:
    shutil.copytree(folders["safetensors"], tmp_path / "openai" / "mine")
    shutil.copytree(folders["safetensors"], tmp_path / "home" / "mine")
    for path in ("openai/mine", "./openai/mine", "openai/mine/", "~/mine"):
        found = find_model(path)
        assert found is not None
        assert found.weights.name == "model.safetensors"
    assert hub.asked == []


def test_folder_of_both_layouts_and_of_timm(folders: dict[str, Path], tmp_path: Path) -> None:
    both = tmp_path / "both"
    shutil.copytree(folders["open_clip"], both)
    shutil.copytree(folders["safetensors"], both, dirs_exist_ok=True)
    assert find_model(both) == ModelFiles(both / "model.safetensors")
    maker.write_json({"architecture": "vit_base_patch16_clip_224", "num_classes": 512}, both / "config.json")
    # timm's model.safetensors is half a model
    assert find_model(both) == ModelFiles(both / "open_clip_model.safetensors")
    assert lmr.load(both).facts["format"].startswith("open_clip")


def test_folder_with_a_single_file(folders: dict[str, Path], tmp_path: Path) -> None:
    shutil.copy(folders["open_clip"] / "open_clip_model.safetensors", tmp_path / "mine.safetensors")
    shutil.copy(folders["open_clip"] / "open_clip_config.json", tmp_path)
    assert find_model(tmp_path) == ModelFiles(tmp_path / "mine.safetensors")
    assert lmr.load(tmp_path).facts["sizes from"] == "open_clip_config.json"
    (tmp_path / "other.pt").write_bytes(b"x")
    with pytest.raises(lmr.LmrError, match=r"Expected one model .*; found 2 \(mine\.safetensors, other\.pt\)"):
        find_model(tmp_path)


def test_folder_without_weights_gets_a_message(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(lmr.LmrError, match=r"config\.json with model\.safetensors .*; found none"):
        find_model(tmp_path)
    shutil.copy(folders["safetensors"] / "config.json", tmp_path)
    with pytest.raises(lmr.LmrError, match="found none"):
        find_model(tmp_path)


def test_missing_shard_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["shards"], tmp_path / "copy")
    missing = sorted(folder.glob("model-*.safetensors"))[1]
    missing.unlink()
    with pytest.raises(lmr.LmrError, match=rf"of which 1 are missing: {missing.name}\. Put them into the same folder"):
        lmr.load(folder)


@pytest.mark.parametrize("path", ["./nowhere", "/no/where", "~/nowhere", "nowhere/model.pt", "a/b/c", "model.pt"])
def test_missing_path_gets_a_message(path: str, hub: Hub) -> None:
    with pytest.raises(lmr.LmrError, match="There is no file or folder"):
        lmr.load(path)
    with pytest.raises(lmr.LmrError, match="There is no file or folder 'x'"):
        lmr.load(Path("x"))
    assert hub.asked == []


def test_other_model_types_get_a_message(folders: dict[str, Path], tmp_path: Path) -> None:
    shutil.copy(folders["safetensors"] / "model.safetensors", tmp_path)
    for model_type in ("blip", "clip_vision_model", 7):
        maker.write_json({"model_type": model_type}, tmp_path / "config.json")
        for path in (tmp_path, tmp_path / "model.safetensors"):
            with pytest.raises(lmr.LmrError, match=rf"of type {model_type!r}; clip, siglip and .*lmr\.ZeroShot"):
                find_model(path)


def test_siglip_is_told_by_its_config(folders: dict[str, Path], tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    shutil.copy(folders["safetensors"] / "model.safetensors", weights)
    for model_type in ("siglip", "siglip2"):
        maker.write_json({"model_type": model_type}, tmp_path / "config.json")
        assert find_model(tmp_path) == find_model(weights) == ModelFiles(weights, model_type)
        tuned = shutil.copy(weights, tmp_path / "tuned.safetensors")
        assert find_model(tuned) == ModelFiles(tuned, model_type)
    maker.write_json({"model_type": "gpt2"}, tmp_path / "config.json")  # not of a file that has another name
    assert find_model(tuned) == ModelFiles(tuned)


# Hub ids.


def test_cached_model_is_not_fetched(hub: Hub) -> None:
    hub.keep(ID, "config.json", "model.safetensors", "preprocessor_config.json")
    assert find_model(ID) == find_model(f"hf-hub:{ID}") == ModelFiles(hub.snapshot(ID) / "model.safetensors")
    assert hub.asked == []
    assert lmr.load(ID).name == ID


def test_fetch_takes_only_what_is_needed(hub: Hub, folders: dict[str, Path]) -> None:
    (hub.folder / "pytorch_model.bin").write_bytes(b"x")
    (hub.folder / "flax_model.msgpack").write_bytes(b"x")
    assert find_model(ID) == ModelFiles(hub.snapshot(ID) / "model.safetensors")
    settings = ["preprocessor_config.json", "tokenizer.json"]
    early = ["vocab.json", "merges.txt", "tokenizer_config.json", "special_tokens_map.json"]
    assert hub.asked == ["config.json", "model.safetensors", *settings, *early]
    hub.asked.clear()
    assert find_model(ID) == ModelFiles(hub.snapshot(ID) / "model.safetensors")
    assert hub.asked == []


@pytest.mark.parametrize("kind", ["shards", "bin", "open_clip"])
def test_fetch_of_other_layouts(kind: str, hub: Hub, folders: dict[str, Path]) -> None:
    hub.folder = folders[kind]
    count = len(list(hub.folder.glob("model-*.safetensors")))
    expected = {
        "shards": f"Hugging Face (safetensors in {count} files)",
        "bin": "Hugging Face (pickle)",
        "open_clip": "open_clip (safetensors)",
    }[kind]
    assert lmr.load(ID).facts["format"] == expected
    assert sum(name.startswith("model-") for name in hub.asked) == count


def test_incomplete_cache_is_completed(hub: Hub) -> None:
    hub.keep(ID, "config.json")
    assert find_model(ID) == ModelFiles(hub.snapshot(ID) / "model.safetensors")
    shutil.rmtree(hub.cache)
    hub.keep(ID, "config.json", "model.safetensors")  # transformers' models alone fetch no preprocessing
    hub.asked.clear()
    find_model(ID)
    assert "preprocessor_config.json" in hub.asked


def test_repository_without_usable_weights_gets_a_message(hub: Hub) -> None:
    (hub.folder / "model.safetensors").unlink()
    with pytest.raises(lmr.LmrError, match=rf"The model '{ID}' has no weights that can be loaded"):
        find_model(ID)
    maker.write_json({"model_type": "bert"}, hub.folder / "config.json")
    shutil.rmtree(hub.cache)
    with pytest.raises(lmr.LmrError, match=rf"'{ID}' is a model of type 'bert'"):
        find_model(ID)


UNREACHABLE = [OSError("no route to host"), RuntimeError("broken pipe"), PermissionError("cache is read-only")]


@pytest.mark.parametrize("error", UNREACHABLE, ids=lambda error: type(error).__name__)
def test_unreachable_hub_names_what_is_missing(error: Exception, hub: Hub) -> None:
    hub.error = error
    everything = r"Missing: config\.json, model\.safetensors or pytorch_model\.bin, preprocessor_config\.json"
    no_folder = "there is no folder of that name here"
    with pytest.raises(lmr.LmrError, match=rf"{no_folder}.*{error}.*{everything}\. Put .* `hf download {ID}`.*HF_HOME"):
        find_model(ID)
    assert hub.asked == []


def test_long_reason_is_cut_between_words(hub: Hub) -> None:
    hub.error = OSError(f"{'word ' * 40}\nsecond line")
    with pytest.raises(lmr.LmrError, match=r"\(OSError: (word )+\.\.\.\)\. Missing"):
        find_model(ID)


@pytest.fixture
def offline(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The real functions of the hub, told to stay offline."""
    from huggingface_hub import file_download

    monkeypatch.setattr("huggingface_hub.hf_hub_download", file_download.hf_hub_download)
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", file_download.get_hf_file_metadata)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return hub


def list_missing(hub_id: str) -> list[str]:
    """What the sentence says is missing."""
    with pytest.raises(lmr.LmrError, match=r"cannot be reached .* Missing: .*\. Put ") as caught:
        find_model(hub_id)
    return str(caught.value).partition("Missing: ")[2].partition(". Put ")[0].split(", ")


def test_what_the_cache_has_is_not_missing(offline: Hub) -> None:
    weights = "model.safetensors or pytorch_model.bin"
    assert list_missing(ID) == ["config.json", weights, "preprocessor_config.json"]
    offline.keep(ID, "preprocessor_config.json")
    assert list_missing(ID) == ["config.json", weights]
    offline.keep(ID, "config.json")
    assert list_missing(ID) == [weights]
    offline.keep(ID, "model.safetensors")
    assert find_model(ID) == ModelFiles(offline.snapshot(ID) / "model.safetensors")
    (offline.snapshot(ID) / "preprocessor_config.json").unlink()
    assert list_missing(ID) == ["preprocessor_config.json"]
    assert list_missing("openai/clip-vit-base-patch16") == ["config.json", weights]  # whose preprocessing is known


def test_missing_shards_are_named(offline: Hub, folders: dict[str, Path]) -> None:
    offline.folder = folders["shards"]
    first, *others = sorted(path.name for path in offline.folder.glob("model-*.safetensors"))
    offline.keep(ID, "config.json", "preprocessor_config.json", "model.safetensors.index.json", first)
    assert list_missing(ID) == others


def test_missing_files_of_open_clip_and_siglip(offline: Hub, folders: dict[str, Path]) -> None:
    offline.folder = folders["open_clip"]
    offline.keep(ID, "open_clip_config.json")
    assert list_missing(ID) == ["open_clip_model.safetensors or open_clip_pytorch_model.bin"]
    tokenizer = "tokenizer.json or spiece.model with tokenizer_config.json"
    assert list_missing("google/siglip-base-patch16-224")[-1] == tokenizer
    offline.folder = folders["safetensors"]
    names = ["config.json", "model.safetensors", "preprocessor_config.json"]
    offline.keep("some/model", *names)
    snapshot = offline.snapshot("some/model")
    maker.write_json({"model_type": "siglip"}, snapshot / "config.json")
    maker.write_json({}, snapshot / "tokenizer_config.json")  # which says how to read a vocabulary, and holds none
    assert list_missing("some/model") == [tokenizer]
    (snapshot / "spiece.model").write_bytes(b"x")
    assert find_model("some/model") == ModelFiles(snapshot / "model.safetensors", "siglip")


def test_hub_out_of_reach_is_asked_once_and_says_nothing_itself(
    offline: Hub, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The hub's own download asks six times, half a minute long, and reports every time."""
    from huggingface_hub.utils import get_session, logging

    network = sys.modules[type(get_session()).__module__.partition(".")[0]]
    error = getattr(network, "ConnectError", None) or network.ConnectionError  # in httpx or, earlier, in requests
    asked: list[str] = []

    def refuse(*args: Any, **options: Any) -> None:
        asked.append(str(args or options))
        logging.get_logger("huggingface_hub.utils._http").warning("Retrying in 8s")
        raise error("Name or service not known")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(type(get_session()), "request", refuse)
    level = logging.get_verbosity()
    with pytest.raises(lmr.LmrError, match=rf"cannot be reached \({error.__name__}: Name or service not known\)"):
        find_model(ID)
    assert len(asked) == 1
    assert capfd.readouterr().err == ""
    assert logging.get_verbosity() == level


@pytest.mark.parametrize("name", ["runs/exp--1", "runs/-exp", "runs/exp."])
def test_names_the_hub_does_not_allow_get_a_message(name: str, offline: Hub) -> None:
    with pytest.raises(lmr.LmrError, match=rf"There is no model '{name}' .* no folder of that name here"):
        lmr.load(name)


def test_unknown_repository_gets_a_message(hub: Hub) -> None:
    from huggingface_hub.errors import HFValidationError

    hub.error = HFValidationError("no such name")
    with pytest.raises(lmr.LmrError, match=r"no model 'openai/clip-vit-base' .* `hf auth login`"):
        find_model("openai/clip-vit-base")


# OpenAI's short names.


@pytest.mark.parametrize("name", ["ViT-B-16", "ViT-B/16"])
def test_short_name_is_the_hub_id(name: str, hub: Hub) -> None:
    hub_id = "openai/clip-vit-base-patch16"
    assert find_model(name) == ModelFiles(hub.snapshot(hub_id) / "model.safetensors")
    hub.asked.clear()
    hub.error = OSError("gone")
    (hub.snapshot(hub_id) / "preprocessor_config.json").unlink()  # whose content is known
    assert find_model(name) == ModelFiles(hub.snapshot(hub_id) / "model.safetensors")
    assert hub.asked == []


def test_short_name_out_of_reach(hub: Hub) -> None:
    hub.error = OSError("no route to host")
    with pytest.raises(lmr.LmrError, match=r"'openai/clip-vit-large-patch14' is not on this machine"):
        lmr.load("ViT-L-14")


def test_names_that_are_nothing(hub: Hub) -> None:
    assert find_model("nothing") is None
    assert hub.asked == []


def test_no_network_is_left_in_these_tests(hub: Hub) -> None:
    import huggingface_hub

    used: Any = huggingface_hub.hf_hub_download
    assert used == hub.serve
    assert huggingface_hub.get_hf_file_metadata == hub.answer
    assert os.path.expanduser("~") == os.environ["HOME"]
