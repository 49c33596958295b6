"""Loading of models by name: the embedded ones, and with transformers those in folders and on the hub."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

from lmr.core.classifier import leave_inference_mode
from lmr.core.errors import LmrError, MissingFile, WrongType
from lmr.core.placement import Device, check_device, choose_dtype
from lmr.core.registry import load_function
from lmr.core.spec import suggest
from lmr.models.backbone import Backbone
from lmr.models.catalog import DEFAULT_MODEL, KNOWN_MODELS, OPENAI_MODELS, OPENAI_SPELLINGS

GROUP = "lmr.models"  # of entry points: functions without arguments that return a backbone

__all__ = ["Backbone", "list_models", "load"]


def list_models() -> dict[str, str]:
    """Return the names that ``load`` knows, each with a line of description.

    Examples:
        >>> import lmr
        >>> lmr.list_models()["ViT-B-16"]
        'OpenAI CLIP ViT-B/16, the same as openai/clip-vit-base-patch16'
    """
    return dict(KNOWN_MODELS)


def load(
    name_or_path: str | os.PathLike[str] = DEFAULT_MODEL,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str | None = None,
) -> Backbone:
    """Load a vision-language model with the preprocessing and tokenizer that belong to it.

    ``name_or_path`` is "photo", which comes with lmr, a folder in the layout of the Hugging Face hub, a hub
    id ("openai/clip-vit-base-patch16") or a short name of OpenAI's models ("ViT-B-16"). All but "photo" are read
    by transformers; files that are on this machine are not fetched again. A path object is always a folder.
    "./tower.py:load" is the backbone that the function ``load`` of your own file returns (see ``wrap_module``). A
    package registers such functions under names, with entry points in the group ``lmr.models``.
    ``dtype`` is that of the frozen weights (default: float32), also by its name ("float64"); norms are never below
    float32.

    Examples:
        >>> import lmr
        >>> backbone = lmr.load("photo")  # "openai/clip-vit-base-patch16" for CLIP
        >>> backbone
        Backbone('photo', 3x32x32, cpu, float32)
        >>> backbone.classifier(["cat", "dog", "ship"]).names
        ('cat', 'dog', 'ship')
    """
    if not isinstance(name_or_path, str | os.PathLike):
        raise LmrError(f"Expected the name or the path of a model, got {name_or_path!r}.")
    kind = None if dtype is None else choose_dtype(dtype)
    check_device(device)
    with leave_inference_mode():
        return _find_backbone(name_or_path, device, kind)


def _find_backbone(name_or_path: str | os.PathLike[str], device: Device, dtype: torch.dtype | None) -> Backbone:
    if name_or_path == DEFAULT_MODEL:
        from lmr.models.embedded import Embedded

        return Embedded().to(device, dtype)
    name, path = os.fspath(name_or_path), Path(name_or_path).expanduser()
    hub_id = None
    if isinstance(name_or_path, str):
        is_id = not path.exists() and re.fullmatch(r"\w[\w.-]*/[\w.-]+", name)
        hub_id = OPENAI_MODELS.get(OPENAI_SPELLINGS.get(name, name), name if is_id else None)
    if hub_id is not None or path.is_dir():
        from lmr.models.from_transformers import load_folder, load_from_hub  # slow to import

        backbone = load_folder(str(path), device, dtype) if hub_id is None else load_from_hub(hub_id, device, dtype)
        backbone.name = name
        return backbone
    if own := load_function(name, GROUP, "model"):
        made = own[0]()
        if not isinstance(made, Backbone):
            kind = type(made).__name__
            raise WrongType(f"Expected a Backbone from {name!r}, such as wrap_module returns, got {kind}.")
        made.name = name
        return made.to(device, dtype)
    if path.exists():
        raise LmrError(
            f"Expected a folder in the layout of the Hugging Face hub, got the file {name!r}. Load a single weights "
            "file with the library that wrote it and give the model to lmr.from_transformers or lmr.from_open_clip."
        )
    if path.name != name or not isinstance(name_or_path, str):
        raise MissingFile(f"There is no folder {name!r}; give the path of a model's folder.")
    raise LmrError(
        f"There is no model {name!r}.{suggest(name, KNOWN_MODELS)} There are: {', '.join(KNOWN_MODELS)}; and other hub "
        "ids and folders of CLIP and SigLIP models."
    )
