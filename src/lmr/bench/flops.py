"""How many floating-point operations a step needs: matrix products counted by formula, two for each multiply-add.

The count is what the result needs, not what an implementation happens to do. Features come from one token, so the
last block needs keys and values of all tokens and everything else of that token alone. Weights are frozen, so backward
is one product per linear layer, to its input, and four per attention (to values, probabilities, queries and keys) where
forward has two. Norms, activations, softmax and the optimiser are not counted: they are no matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmr.core.method import Method
from lmr.core.passes import Passes, count_passes
from lmr.models.towers.image import VisionConfig, VisionTower
from lmr.models.towers.text import TextConfig, TextTower


@dataclass(frozen=True)
class Flops:
    """Operations of a forward pass and of the backward pass from the features to the first norm."""

    forward: int
    backward: int

    def __mul__(self, times: int) -> Flops:
        return Flops(times * self.forward, times * self.backward)


def count_image(tower: VisionTower, last: int | None = None, *, whole: bool = False) -> Flops:
    """One image through its tower, or through the ``last`` blocks of it and what comes after.

    ``whole``: as if the last block were computed for all tokens.
    """
    blocks = count_blocks(tower, last, whole=whole)
    if last is not None:
        return blocks
    # There is no norm before the tokens, so the backward ends there.
    return Flops(2 * tower.count_embedding() + blocks.forward, blocks.backward)


def count_blocks(tower: VisionTower, last: int | None = None, *, whole: bool = False) -> Flops:
    """The tokens of one image through all blocks, or through the ``last`` of them, and what comes after."""
    return _count_tower(len(tower.positions), tower.config, whole, last)


def count_passes_of_image(tower: VisionTower, passes: Passes, classes: int, *, needs_images: bool) -> float:
    """The passes of one image through its tower, and its comparisons with all classes.

    A tower that keeps tokens embeds an image once in a step, unless the method ``needs_images`` for every pass.
    """
    blocks, seen = count_blocks(tower), count_comparison(tower.config.features, classes)
    embeddings = min(1.0, passes.forwards) if tower.keeps_tokens and not needs_images else passes.forwards
    forwards = passes.forwards * (blocks.forward + seen.forward) + embeddings * 2 * tower.count_embedding()
    return forwards + passes.backwards * (blocks.backward + seen.backward)


def count_text(config: TextConfig, tokens: int, *, whole: bool = False, shared: int = 0) -> Flops:
    """One prompt through its tower, without ``shared`` tokens that other prompts have too.

    Masked products are counted, as kernels compute them.
    """
    return _count_tower(tokens, config, whole, shared=shared)


def count_texts(config: TextConfig, tokens: int, passes: Passes, batch_size: int) -> float:
    """All passes of one class's prompt in a step on so many images."""
    prompt = count_text(config, tokens)
    return passes.text_forwards * prompt.forward + passes.text_backwards * prompt.backward


def count_comparison(features: int, classes: int) -> Flops:
    """The cosines of one image with all classes."""
    return Flops(2 * features * classes, 2 * features * classes)


def count_forwards(method: Method, batch_size: int, past: float = 1.0) -> float | None:
    """What a step of a method costs per image, in plain forwards, whatever the machine; None where it is not known.

    ``past`` is the share of the samples that could learn and pass the gate. Prompts are encoded once for a whole batch,
    and a share of the images that learns is rounded up in it. In a tower that is not ours a backward counts as a
    forward, and every forward as a whole one.
    """
    passes = count_passes(method, batch_size)
    if passes is None:
        return None
    clip = method.classifier
    if not isinstance(clip.encoder, VisionTower):
        texts = passes.text_forwards + passes.text_backwards
        return None if texts else passes.forwards + passes.backwards
    one = count_passes_of_image(clip.encoder, Passes(forwards=1), clip.classes, needs_images=False)
    total = count_passes_of_image(clip.encoder, passes, clip.classes, needs_images=method.needs_images)
    if passes.text_forwards or passes.text_backwards:
        if clip.text is None or clip.text.tokens is None or not isinstance(clip.text.tower, TextTower):
            return None
        total += clip.classes * count_texts(clip.text.tower.config, clip.text.tokens, passes, batch_size) / batch_size
    return total / one


def _count_tower(
    tokens: int, config: VisionConfig | TextConfig, whole: bool, last: int | None = None, shared: int = 0
) -> Flops:
    own = tokens - shared
    blocks = [_count_block(tokens, own, own, config.width, config.hidden) for _ in range(config.depth - 1)]
    blocks.append(_count_block(tokens, own, own if whole else 1, config.width, config.hidden))
    blocks = blocks if last is None else blocks[-last:]
    projection = 2 * config.width * config.features
    forward = sum(block.forward for block in blocks) + projection
    return Flops(forward, sum(block.backward for block in blocks) + projection)


def _count_block(tokens: int, own: int, asked: int, width: int, hidden: int) -> Flops:
    """One block in which ``own`` of the tokens need keys and values, and ``asked`` of them more than that."""
    linear = 2 * own * width * 2 * width  # keys, values
    linear += 2 * asked * width * (2 * width + 2 * hidden)  # queries, output, the two layers of the perceptron
    attention = 2 * 2 * asked * tokens * width
    return Flops(linear + attention, linear + 2 * attention)
