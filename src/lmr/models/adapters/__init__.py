"""Adapters: a classifier from a model that is in memory already, of transformers or of open_clip's form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lmr.models.prompts import DEFAULT_TEMPLATES, list_names, write_prompts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import Tensor

    from lmr.core.classifier import ZeroShot
    from lmr.core.placement import Device
    from lmr.models.backbone import Backbone
    from lmr.models.prompts import Templates

__all__ = ["from_open_clip", "from_transformers", "wrap_transformers"]


def from_transformers(
    model: Any,
    processor: Any,
    names: Sequence[str],
    templates: Templates = DEFAULT_TEMPLATES,
    *,
    device: Device | None = None,
    dtype: torch.dtype | None = None,
) -> ZeroShot:
    """A classifier for these class names from a CLIPModel, SiglipModel or Siglip2Model of transformers.

    ``processor`` is the model's own, as AutoProcessor gives it: it says how images and texts are read. The weights are
    copied, so the model is never changed, and memory must hold it twice. ``device`` and ``dtype`` are those of the
    model unless given. Images come from ``wrap_transformers(model, processor).preprocess``; those of the processor
    (``pixel_values``) are the same up to rounding, except for a Siglip2Model, whose patches must be packed.

    Examples:
        With ``folder``, the path or the hub id of a CLIP model:

        >>> import lmr, torch
        >>> from transformers import CLIPModel, CLIPProcessor
        >>> model, processor = CLIPModel.from_pretrained(folder), CLIPProcessor.from_pretrained(folder)
        >>> clip = lmr.from_transformers(model, processor, ["cat", "dog", "ship"])
        >>> lmr.create("lmr", clip).step(torch.rand(4, *clip.input_shape)).logits.shape
        torch.Size([4, 3])
    """
    names = list_names(names)
    write_prompts(names, templates)  # a mistake here shows before the weights are copied
    return wrap_transformers(model, processor, device=device, dtype=dtype).classifier(names, templates)


def wrap_transformers(
    model: Any, processor: Any, *, device: Device | None = None, dtype: torch.dtype | None = None
) -> Backbone:
    """The backbone behind ``from_transformers``: ``preprocess`` for images, ``classifier`` for class names.

    Examples:
        With ``folder``, the path or the hub id of a CLIP model:

        >>> import lmr
        >>> from PIL import Image
        >>> from transformers import CLIPModel, CLIPProcessor
        >>> model, processor = CLIPModel.from_pretrained(folder), CLIPProcessor.from_pretrained(folder)
        >>> backbone = lmr.wrap_transformers(model, processor)
        >>> images = backbone.preprocess([Image.new("RGB", (320, 200), "red"), Image.new("RGB", (90, 90), "blue")])
        >>> backbone.classifier(["cat", "dog"]).features(images).shape[0]
        2
    """
    from lmr.models.adapters.transformers_models import build_backbone

    return build_backbone(model, processor, device, dtype)


def from_open_clip(
    model: Any,
    tokenizer: Callable[[list[str]], Tensor],
    names: Sequence[str],
    templates: Templates = DEFAULT_TEMPLATES,
) -> ZeroShot:
    """A classifier for these class names from a model of open_clip's form, also OpenAI's.

    That is any ``nn.Module`` with ``encode_image``, ``encode_text`` and ``logit_scale`` (the logarithm of the scale, as
    open_clip and OpenAI store it), optionally with ``logit_bias`` and with its image tower as ``visual``. ``tokenizer``
    maps a list of texts to token ids [N, L]. Images are what ``encode_image`` takes: prepare them with open_clip's own
    ``preprocess``. The model itself is used, not a copy. It is put in evaluation mode and frozen; its parameters are
    never changed.

    Examples:
        With open_clip: ``model, _, preprocess = open_clip.create_model_and_transforms("ViT-B-16", "openai")`` and
        ``tokenizer = open_clip.get_tokenizer("ViT-B-16")``. Any module of that form will do:

        >>> import lmr, torch
        >>> from torch import nn
        >>> class Small(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.visual = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.LayerNorm(8))
        ...         self.words = nn.Sequential(nn.Embedding(128, 8), nn.LayerNorm(8))
        ...         self.logit_scale = nn.Parameter(torch.tensor(4.6))
        ...     def encode_image(self, images):
        ...         return self.visual(images)
        ...     def encode_text(self, tokens):
        ...         return self.words(tokens).mean(1)
        >>> def tokenizer(texts):
        ...     return torch.tensor([[ord(letter) for letter in text.ljust(24)] for text in texts])
        >>> clip = lmr.from_open_clip(Small(), tokenizer, ["cat", "dog"])
        >>> lmr.create("lmr", clip).step(torch.rand(4, 3, 4, 4)).labels.shape
        torch.Size([4])
    """
    from lmr.models.adapters.open_clip_models import build_classifier

    return build_classifier(model, tokenizer, list_names(names), templates)
