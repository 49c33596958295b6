"""Where the files of a model are: a path, the local caches, and only then the Hugging Face hub."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from lmr.backbones.archives import SUFFIXES, list_shards
from lmr.backbones.configs import HF_CONFIG, OPEN_CLIP_CONFIG, read_json
from lmr.backbones.keys import ANYTHING
from lmr.backbones.preprocessing_configs import PREPROCESSOR, PROCESSOR
from lmr.core.errors import LmrError

Get = Callable[[str], Path | None]  # a file of the model by its name, or None where the model has none of that name

SIGLIP = ("siglip", "siglip2")
_HF_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_OPEN_CLIP_WEIGHTS = (
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.safetensors",
    "open_clip_pytorch_model.bin",
)
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "spiece.model", "tokenizer.model")
_HUB_ID = re.compile(r"(?:hf-hub:)?([\w.-]+/[\w.-]+)")

# OpenAI's models: the names open_clip and OpenAI give them, their hub ids, and their files in OpenAI's own cache.
OPENAI_MODELS = {
    "ViT-B-32": ("openai/clip-vit-base-patch32", "ViT-B-32.pt"),
    "ViT-B-16": ("openai/clip-vit-base-patch16", "ViT-B-16.pt"),
    "ViT-L-14": ("openai/clip-vit-large-patch14", "ViT-L-14.pt"),
    "ViT-L-14-336": ("openai/clip-vit-large-patch14-336", "ViT-L-14-336px.pt"),
}
_SPELLINGS = {
    "ViT-B/32": "ViT-B-32",
    "ViT-B/16": "ViT-B-16",
    "ViT-L/14": "ViT-L-14",
    "ViT-L/14@336px": "ViT-L-14-336",
    "ViT-L-14-336px": "ViT-L-14-336",
}


@dataclass(frozen=True)
class Files:
    """The files of a model: its weights (or their index), what lies beside them, and the kind its config names."""

    weights: Path
    model_type: str = "clip"

    @property
    def folder(self) -> Path:
        """Where the configuration lies."""
        return self.weights.parent


def find_model(name: str | os.PathLike[str]) -> Files | None:
    """The files of a model by path, by OpenAI's short name or by hub id; None where the name is none of these."""
    text = os.fspath(name)
    short = _SPELLINGS.get(text, text)
    if short in OPENAI_MODELS:
        return _find_openai(short)
    path = Path(text).expanduser()
    if path.exists():
        return find_in_folder(path) if path.is_dir() else _find_file(path)
    hub_id = _HUB_ID.fullmatch(text)
    if hub_id and not text.startswith((".", "~", "/")) and not text.endswith(SUFFIXES):
        return _find_in_cache(hub_id[1]) or _fetch(hub_id[1])
    if not isinstance(name, str) or "/" in text or os.sep in text or text.endswith(SUFFIXES):
        raise LmrError(f"There is no file or folder {text!r}; give the path of a model's folder or weights file.")
    return None


def find_in_folder(folder: Path) -> Files:
    """The files of a model in a folder: Hugging Face's layout, open_clip's, or a single weights file."""

    def get(name: str) -> Path | None:
        return folder / name if (folder / name).is_file() else None

    found = _pick(get, str(folder))
    if found:
        return found
    weights = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file())
    if len(weights) == 1:
        return _find_file(weights[0])
    came = f"{len(weights)} ({', '.join(path.name for path in weights[:5])})" if weights else "none"
    raise LmrError(
        f"Expected one model in the folder {str(folder)!r}: {HF_CONFIG} with {_HF_WEIGHTS[0]} or {_HF_WEIGHTS[2]}, "
        f"{OPEN_CLIP_CONFIG} with {_OPEN_CLIP_WEIGHTS[0]} or {_OPEN_CLIP_WEIGHTS[2]}, or a single weights file; found "
        f"{came}. Give the path of the file."
    )


def _find_file(path: Path) -> Files:
    """A weights file; one of Hugging Face's names belongs to the config.json beside it."""
    config = path.parent / HF_CONFIG
    if path.name in _HF_WEIGHTS and config.is_file():
        return Files(path, _check_type(read_json(config).get("model_type", "clip"), str(config)))
    return Files(path)


def _pick(get: Get, origin: str) -> Files | None:
    """Choose among what ``get`` finds, and get what belongs to the choice; None where the weights are missing."""
    config = get(HF_CONFIG)
    model_type = read_json(config).get("model_type") if config else None
    if model_type == "clip" or model_type in SIGLIP:
        weights = _get_first(get, _HF_WEIGHTS)
        if weights:
            _get_first(get, (PREPROCESSOR, PROCESSOR))
            for name in _TOKENIZER if model_type in SIGLIP else ():
                get(name)
            return _get_shards(get, Files(weights, model_type))
    if get(OPEN_CLIP_CONFIG):
        weights = _get_first(get, _OPEN_CLIP_WEIGHTS)
        if weights:
            return _get_shards(get, Files(weights))
    if model_type is not None:
        _check_type(model_type, origin)
    return None


def _check_type(model_type: object, origin: str) -> str:
    if model_type == "clip" or model_type in SIGLIP:
        return str(model_type)
    raise LmrError(f"{origin!r} is a model of type {model_type!r}; clip, siglip and siglip2 can be loaded. {ANYTHING}")


def _get_first(get: Get, names: Iterable[str]) -> Path | None:
    return next((path for path in map(get, names) if path), None)


def _get_shards(get: Get, files: Files) -> Files | None:
    if not files.weights.name.endswith(".index.json"):
        return files
    return files if all(get(shard.name) for shard in list_shards(files.weights)) else None


def _find_openai(short: str) -> Files:
    """One of OpenAI's models: from Hugging Face's cache, from the cache of OpenAI's own package, or fetched."""
    hub_id, file = OPENAI_MODELS[short]
    own = Path("~/.cache/clip").expanduser() / file
    cached = _find_in_cache(hub_id)
    if cached or own.is_file():
        return cached or Files(own)
    return _fetch(hub_id)


def _find_in_cache(hub_id: str) -> Files | None:
    """The model in Hugging Face's cache, if everything it needs is there."""
    cached = _import_hub().try_to_load_from_cache
    unsure: list[str] = []

    def get(name: str) -> Path | None:
        path = cached(hub_id, name)  # a path, None, or a mark that the hub has no such file
        if path is None:
            unsure.append(name)
        return Path(path) if isinstance(path, str) else None

    found = _pick(get, hub_id)
    if found is None or hub_id.startswith("openai/"):  # whose preprocessing is known without its file
        return found
    return None if _lacks_settings(found, unsure) else found


def _lacks_settings(found: Files, unsure: list[str]) -> bool:
    """Whether a file that decides what the model sees or reads was perhaps never fetched."""
    has_tokenizer = any((found.folder / name).is_file() for name in _TOKENIZER if name not in unsure)
    if found.model_type in SIGLIP and not has_tokenizer:
        return True
    has_settings = any((found.folder / name).is_file() for name in (PREPROCESSOR, PROCESSOR, OPEN_CLIP_CONFIG))
    return not has_settings and PREPROCESSOR in unsure


def _fetch(hub_id: str) -> Files:
    """Fetch what is needed from the hub; where it cannot be reached, say what is missing and where it may be put."""
    hub = _import_hub()
    errors = hub.errors
    wanted: list[str] = []

    def get(name: str) -> Path | None:
        if wanted[-1:] != [name]:
            wanted.append(name)
        try:
            return Path(hub.hf_hub_download(hub_id, name))
        except errors.LocalEntryNotFoundError:  # the hub did not answer; it is a kind of the next one
            raise
        except errors.EntryNotFoundError:
            return None

    try:
        found = _pick(get, hub_id)
    except LmrError:
        raise
    except (errors.RepositoryNotFoundError, errors.GatedRepoError, errors.HFValidationError) as error:
        raise LmrError(
            f"There is no model {hub_id!r} on the Hugging Face hub that is open to you, and no folder of that name "
            "here. Check the name; for a private or gated model log in with `hf auth login` first."
        ) from error
    except Exception as error:  # whatever the network, its library or the disk comes up with
        raise _describe_missing(hub_id, wanted[-1], error) from error
    if found is None:
        raise LmrError(
            f"The model {hub_id!r} has no weights that can be loaded: neither {HF_CONFIG} with {_HF_WEIGHTS[0]} or "
            f"{_HF_WEIGHTS[2]} nor {OPEN_CLIP_CONFIG} with {_OPEN_CLIP_WEIGHTS[0]}. {ANYTHING}"
        )
    return found


def _describe_missing(hub_id: str, wanted: str, error: Exception) -> LmrError:
    """Name the files that are still missing when the file ``wanted`` could not be had."""
    groups = [HF_CONFIG, f"{_HF_WEIGHTS[0]} (or {_HF_WEIGHTS[2]})", PREPROCESSOR]
    if wanted in _HF_WEIGHTS:
        groups = groups[1:]
    elif wanted != HF_CONFIG:
        groups = [wanted]
    reason = f"{type(error).__name__}: {error}".partition("\n")[0][:160]
    return LmrError(
        f"The model {hub_id!r} is not on this machine and the Hugging Face hub cannot be reached ({reason}). Missing: "
        f"{', '.join(groups)}. Put these files into a folder and give its path, or run `hf download {hub_id}` on a "
        "machine with a connection and copy its cache (~/.cache/huggingface, or HF_HOME) here."
    )


def _import_hub() -> ModuleType:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError as error:
        raise LmrError(
            "Loading a model by name needs the package huggingface_hub (pip install huggingface_hub); a folder or file "
            "of weights loads without it."
        ) from error
    return huggingface_hub
