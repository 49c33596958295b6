"""The files of a model: from a path, from the local caches, and only then from the Hugging Face hub."""

from __future__ import annotations

import contextlib
import os
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from lmr.core.errors import LmrError
from lmr.core.log import LOGGER, quiet_loggers
from lmr.models.catalog import OPENAI_MODELS, OPENAI_SPELLINGS, OTHER_MODELS
from lmr.models.formats.configs import HF_CONFIG, OPEN_CLIP_CONFIG, PREPROCESSOR, PROCESSOR, read_json
from lmr.models.formats.weights import SUFFIXES, list_shards
from lmr.models.tokenizers import TOKENIZER_JSON

Get = Callable[[str], Path | None]  # a file of the model by its name, or None where there is none

SIGLIP = ("siglip", "siglip2")
_INDEX = ".index.json"  # of weights in several files
HF_WEIGHTS = tuple(name + end for name in ("model.safetensors", "pytorch_model.bin") for end in ("", _INDEX))
_OPEN_CLIP_WEIGHTS = tuple(
    f"open_clip_{name}" for name in ("model.safetensors", "pytorch_model.safetensors", "pytorch_model.bin")
)
_VOCABULARIES = ("tokenizer.json", "spiece.model", "tokenizer.model")
_TOKENIZER = (*_VOCABULARIES, "tokenizer_config.json", "special_tokens_map.json")
_EARLY_TOKENIZER = ("vocab.json", "merges.txt", "tokenizer_config.json", "special_tokens_map.json")
_HUB_ID = re.compile(r"(?:hf-hub:)?([\w.-]+/[\w.-]+)")


@dataclass(frozen=True)
class ModelFiles:
    """The weights file of a model (or its index), and the model type that its config names."""

    weights: Path
    model_type: str = "clip"


def find_model(name: str | os.PathLike[str]) -> ModelFiles | None:
    """Find the files of a model by path, by OpenAI's short name or by hub id; return None for any other name."""
    text = os.fspath(name)
    short = OPENAI_SPELLINGS.get(text, text)
    if isinstance(name, str) and short in OPENAI_MODELS:
        refuse_twin(name)
        return _find_in_cache(OPENAI_MODELS[short]) or _fetch(OPENAI_MODELS[short])
    path = Path(text).expanduser()
    if path.exists():
        return find_in_folder(path) if path.is_dir() else _find_file(path)
    hub_id = _HUB_ID.fullmatch(text)
    if hub_id and not text.startswith((".", "~", "/")) and not text.endswith(SUFFIXES):
        return _find_in_cache(hub_id[1]) or _fetch(hub_id[1])
    if not isinstance(name, str) or "/" in text or os.sep in text or text.endswith(SUFFIXES):
        raise LmrError(f"There is no file or folder {text!r}; give the path of a model's folder or weights file.")
    return None


def refuse_twin(name: str) -> None:
    """Refuse a short name where a folder of the same name holds a model, as it is ambiguous."""
    folder = Path(name)
    if folder.is_dir() and any(path.suffix in SUFFIXES for path in folder.iterdir()):
        raise LmrError(
            f"{name!r} is the name of a model and of a folder with weights here. For the folder give './{name}' (in "
            "Python also a Path); for the model rename the folder or change to another directory."
        )


def find_in_folder(folder: Path) -> ModelFiles:
    """Find the files of a model in a folder: Hugging Face's layout, open_clip's, or a single weights file."""

    def get(name: str) -> Path | None:
        return folder / name if (folder / name).is_file() else None

    found = _pick(get, str(folder))
    if found:
        return found
    index = _get_first(get, (name for name in HF_WEIGHTS if name.endswith(_INDEX)))
    if index:
        return _find_file(index)  # some of the files it names are missing; the reader names them
    weights = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file())
    if len(weights) == 1:
        return _find_file(weights[0])
    came = f"{len(weights)} ({', '.join(path.name for path in weights[:5])})" if weights else "none"
    raise LmrError(
        f"Expected one model in the folder {str(folder)!r}: {HF_CONFIG} with {HF_WEIGHTS[0]} or {HF_WEIGHTS[2]}, "
        f"{OPEN_CLIP_CONFIG} with {_OPEN_CLIP_WEIGHTS[0]} or {_OPEN_CLIP_WEIGHTS[2]}, or a single weights file; found "
        f"{came}. Give the path of the file."
    )


def _find_file(path: Path) -> ModelFiles:
    """Return a weights file of any name with the model type that config.json in its folder tells."""
    config = path.parent / HF_CONFIG
    model_type = read_json(config).get("model_type", "clip") if config.is_file() else "clip"
    if path.name in HF_WEIGHTS:
        _check_type(model_type, str(config))
    return ModelFiles(path, model_type if model_type in SIGLIP else "clip")


def _pick(get: Get, origin: str) -> ModelFiles | None:
    """Choose the weights and get the files that belong to them; None where there are no weights."""
    config = get(HF_CONFIG)
    model_type = read_json(config).get("model_type") if config else None
    if model_type == "clip" or model_type in SIGLIP:
        weights = _get_first(get, HF_WEIGHTS)
        if weights:
            _get_first(get, (PREPROCESSOR, PROCESSOR))
            if model_type in SIGLIP:
                for name in _TOKENIZER:
                    get(name)
            elif not _has_known_preprocessing(origin):
                for name in _TOKENIZER if get(TOKENIZER_JSON) else _EARLY_TOKENIZER:
                    get(name)
            return _get_shards(get, ModelFiles(weights, model_type))
    if get(OPEN_CLIP_CONFIG):
        weights = _get_first(get, _OPEN_CLIP_WEIGHTS)
        if weights:
            return _get_shards(get, ModelFiles(weights))
    if model_type is not None:
        _check_type(model_type, origin)
    return None


def _check_type(model_type: object, origin: str) -> None:
    if model_type not in ("clip", *SIGLIP):
        raise LmrError(
            f"{origin!r} is a model of type {model_type!r}; clip, siglip and siglip2 can be loaded. {OTHER_MODELS}"
        )


def _get_first(get: Get, names: Iterable[str]) -> Path | None:
    return next((path for path in map(get, names) if path), None)


def _get_shards(get: Get, files: ModelFiles) -> ModelFiles | None:
    if not files.weights.name.endswith(_INDEX):
        return files
    return files if all(get(shard.name) for shard in list_shards(files.weights)) else None


def _find_in_cache(hub_id: str) -> ModelFiles | None:
    """Find the model in Hugging Face's cache; return None if it is not complete."""
    from huggingface_hub import errors

    unsure: list[str] = []

    def get(name: str) -> Path | None:
        return _look_in_cache(hub_id, name, unsure)

    try:
        found = _pick(get, hub_id)
    except errors.HFValidationError:  # not a valid name on the hub, so not in its cache
        return None
    if found is None or _has_known_preprocessing(hub_id):
        return found
    return None if _lacks_settings(found, unsure) else found


def _look_in_cache(hub_id: str, name: str, unsure: list[str] | None = None) -> Path | None:
    """Find a file in Hugging Face's cache. A name joins ``unsure`` if the hub may have it."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(hub_id, name)  # a path, None, or a mark that the hub has no such file
    if path is None and unsure is not None:
        unsure.append(name)
    return Path(path) if isinstance(path, str) else None


def _has_known_preprocessing(hub_id: str) -> bool:
    """Return True if the preprocessing is known without its file."""
    return hub_id.startswith("openai/")


def _lacks_settings(found: ModelFiles, unsure: list[str]) -> bool:
    """Return True if the files of the preprocessing or of the tokenizer may never have been fetched."""
    has_vocabulary = any((found.weights.parent / name).is_file() for name in _VOCABULARIES if name not in unsure)
    if found.model_type in SIGLIP and not has_vocabulary:
        return True
    has_settings = any((found.weights.parent / name).is_file() for name in (PREPROCESSOR, PROCESSOR, OPEN_CLIP_CONFIG))
    return not has_settings and PREPROCESSOR in unsure


def _fetch(hub_id: str) -> ModelFiles:
    """Fetch the needed files from the hub; if it cannot be reached, name the missing files and where to put them."""
    LOGGER.info("Asking the Hugging Face hub for %s", hub_id)
    import huggingface_hub as hub
    from huggingface_hub import errors

    def get(name: str) -> Path | None:
        try:
            return Path(hub.hf_hub_download(hub_id, name))
        except errors.LocalEntryNotFoundError:  # the hub did not answer; a subclass of the next error
            raise
        except errors.EntryNotFoundError:
            return None

    try:
        with quiet_loggers("huggingface_hub"):  # but not its progress bars; what matters is in our own messages
            with contextlib.suppress(errors.EntryNotFoundError):  # one request, as a download would retry for long
                hub.get_hf_file_metadata(hub.hf_hub_url(hub_id, HF_CONFIG))
            found = _pick(get, hub_id)
    except LmrError:
        raise
    except (errors.RepositoryNotFoundError, errors.GatedRepoError, errors.HFValidationError) as error:
        raise LmrError(
            f"There is no model {hub_id!r} on the Hugging Face hub that you can access, and no folder of that "
            "name here. Check the name; for a private or gated model log in with `hf auth login` first."
        ) from error
    except Exception as error:  # any error of the network, its library or the disk
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 160, placeholder=" ...")
        missing = ", ".join(_list_missing(hub_id))
        raise LmrError(
            f"The model {hub_id!r} is not on this machine, there is no folder of that name here, and the Hugging Face "
            f"hub cannot be reached ({reason}). Missing: {missing}. Put the model's files into a folder and give its "
            f"path, or run `hf download {hub_id}` on a machine with a connection and copy its cache "
            "(~/.cache/huggingface, or HF_HOME) here."
        ) from error
    if found is None:
        raise LmrError(
            f"The model {hub_id!r} has no weights that can be loaded: neither {HF_CONFIG} with {HF_WEIGHTS[0]} or "
            f"{HF_WEIGHTS[2]} nor {OPEN_CLIP_CONFIG} with {_OPEN_CLIP_WEIGHTS[0]}. {OTHER_MODELS}"
        )
    return found


def _list_missing(hub_id: str) -> list[str]:
    """List the files of a model that its cache lacks; the cached files and the name tell its type."""

    def get(name: str) -> Path | None:
        return _look_in_cache(hub_id, name)

    config = get(HF_CONFIG)
    model_type = read_json(config).get("model_type") if config else None
    if model_type is None and _get_first(get, (OPEN_CLIP_CONFIG, *_OPEN_CLIP_WEIGHTS)):
        weights = _get_first(get, _OPEN_CLIP_WEIGHTS)
        needs = {OPEN_CLIP_CONFIG: get(OPEN_CLIP_CONFIG), " or ".join(_OPEN_CLIP_WEIGHTS[::2]): weights}
    else:
        weights = _get_first(get, HF_WEIGHTS)
        needs = {HF_CONFIG: config, " or ".join(HF_WEIGHTS[::2]): weights}
        if not _has_known_preprocessing(hub_id):
            needs[PREPROCESSOR] = _get_first(get, (PREPROCESSOR, PROCESSOR))
        if model_type in SIGLIP or (model_type is None and "siglip" in hub_id.lower()):
            needs[f"{' or '.join(_VOCABULARIES[:2])} with tokenizer_config.json"] = _get_first(get, _VOCABULARIES)
    if weights and weights.name.endswith(_INDEX):
        needs |= {shard.name: get(shard.name) for shard in list_shards(weights)}
    return [name for name, path in needs.items() if path is None]
