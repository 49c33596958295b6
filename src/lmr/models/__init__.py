"""Loading of models: the only package that knows their formats."""

from __future__ import annotations

import os

import torch

from lmr.core.classifier import leave_inference_mode
from lmr.core.errors import LmrError
from lmr.core.log import LOGGER
from lmr.core.placement import check_device, choose_dtype
from lmr.core.spec import suggest
from lmr.models.backbone import Backbone
from lmr.models.catalog import DEFAULT_MODEL, EMBEDDED_MODELS, KNOWN_MODELS
from lmr.models.towers.image import Memory, check_memory

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
    architecture: str | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    memory: Memory = "fast",
) -> Backbone:
    """Load a vision-language model with the activation, preprocessing and tokenizer that belong to it.

    ``name_or_path`` is "photo" or "pocket", which come with lmr, a folder or weights file (Hugging Face, open_clip, a
    state dict of OpenAI's, or a file that ``lab.train`` wrote), a short name of OpenAI's models ("ViT-B-16") or a hub
    id ("openai/clip-vit-base-patch16"). Files that are on this machine are never fetched.
    ``architecture``, one of open_clip's names ("ViT-B-32-quickgelu"), is needed only where the weights do not tell it.
    ``dtype`` is that of the frozen weights; norms are never below float32. ``memory``
    chooses how a step is computed, see ``VisionTower.set_memory``; only CLIP's towers use it. A path object is never
    read as a short name.
    A short name is refused where a folder of the same name holds a model, as it is ambiguous.

    Examples:
        >>> import lmr
        >>> backbone = lmr.load("photo")  # "openai/clip-vit-base-patch16" for CLIP
        >>> backbone
        Backbone('photo', width 192, 32x32 -> 128 features, cpu, float32)
        >>> backbone.classifier(["cat", "dog", "ship"]).names
        ('cat', 'dog', 'ship')
    """
    if not isinstance(name_or_path, str | os.PathLike):
        raise LmrError(f"Expected the name or the path of a model, got {name_or_path!r}.")
    check_memory(memory)  # before anything large is read
    choose_dtype(dtype)
    from lmr.models.embedded import Embedded, find_embedded
    from lmr.models.formats.locate import SIGLIP, find_model, refuse_twin

    name = os.fspath(name_or_path)
    with leave_inference_mode():
        if name_or_path in EMBEDDED_MODELS:
            refuse_twin(name)
            if architecture is not None:
                raise LmrError(f"The model {name!r} has its own architecture; omit architecture.")
            check_device(device)
            embedded = Embedded(name)
            embedded.encoder.set_memory(memory)
            return embedded.to(device, dtype)
        check_device(device)
        files = find_model(name_or_path)
        if files is None:
            raise LmrError(
                f"There is no model {name!r}.{suggest(name, KNOWN_MODELS)} There are: {', '.join(KNOWN_MODELS)}; and "
                "any folder or weights file of a CLIP model, and other hub ids."
            )
        LOGGER.info("Loading %r from %s", name, files.weights)
        if (form := find_embedded(files.weights)) is not None:
            own = Embedded(form, files.weights)
            own.encoder.set_memory(memory)
            return own.to(device, dtype)
        if files.model_type in SIGLIP:
            from lmr.models.siglip import load_siglip

            if architecture is not None:
                raise LmrError(f"{name!r} is a SigLIP model, whose config names its architecture; omit architecture.")
            return load_siglip(files.weights, name, device=device, dtype=dtype)
        from lmr.models.clip import load_clip

        clip = load_clip(files.weights, name, architecture=architecture, device=device, dtype=dtype)
        clip.encoder.set_memory(memory)
        return clip
