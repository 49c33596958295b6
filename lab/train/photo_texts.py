"""The texts that the photo model is trained on: 110 class names in templates, and their vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from lmr.data.names import read_list
from lmr.models.tokenizers import END, PAD, START, WordTokenizer, split_words

NAMES: tuple[str, ...] = (*read_list("cifar10"), *read_list("cifar100"))

# CLIP's 18 templates for CIFAR and its 7 best for ImageNet (openai/CLIP: data/prompts.md and the notebook on prompts),
# then plain ones. The first is the default of every command.
TEMPLATES: tuple[str, ...] = tuple(dict.fromkeys((
    "a photo of a {}.", "a photo of the {}.", "a blurry photo of a {}.", "a blurry photo of the {}.",
    "a black and white photo of a {}.", "a black and white photo of the {}.", "a low contrast photo of a {}.",
    "a low contrast photo of the {}.", "a high contrast photo of a {}.", "a high contrast photo of the {}.",
    "a bad photo of a {}.", "a bad photo of the {}.", "a good photo of a {}.", "a good photo of the {}.",
    "a photo of a small {}.", "a photo of the small {}.", "a photo of a big {}.", "a photo of the big {}.",
    "itap of a {}.", "a origami {}.", "a photo of the large {}.", "a {} in a video game.", "art of the {}.",
    "{}", "a {}.", "an {}.", "the {}.", "one {}.", "a photo of an {}.", "a photo of one {}.", "a photo of my {}.",
    "a photo of {}.", "a picture of a {}.", "a picture of the {}.", "an image of a {}.", "an image of the {}.",
    "a snapshot of a {}.", "a close up of a {}.", "a close up photo of the {}.", "a cropped photo of a {}.",
    "a bright photo of a {}.", "a dark photo of a {}.", "this is a {}.", "this is a photo of a {}.",
    "there is a {} in the image.", "i see a {}.", "my {}.", "it is a {} here.",
)))  # fmt: skip

_AROUND = sorted({word for template in TEMPLATES for word in split_words(template)})
_OF_NAMES = sorted({word for name in NAMES for word in split_words(name)})
WORDS: tuple[str, ...] = (PAD, START, END, *_AROUND, *_OF_NAMES)
assert not set(_AROUND) & set(_OF_NAMES), "a word around names must not be part of one"
CONTEXT = 16


def tokenize_prompts() -> tuple[Tensor, Tensor]:
    """Return every name in every template: ids [templates, names, longest] and ends [templates, names]."""
    texts = [template.format(name) for template in TEMPLATES for name in NAMES]
    tokens, end = WordTokenizer("photo", WORDS, NAMES)(texts, CONTEXT)
    shape = (len(TEMPLATES), len(NAMES))
    return tokens.view(*shape, -1), end.view(shape)


def draw_prompts(tokens: Tensor, end: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw a random template for every name, cut to the longest prompt: ids [names, L] and ends [names]."""
    names = torch.arange(tokens.shape[1])
    chosen = torch.randint(len(tokens), (len(names),), generator=random)
    ends = end[chosen, names]
    return tokens[chosen, names, : int(ends.max()) + 1], ends
