"""The floating-point operations of a step: matrix products counted by formula, two for each multiply-add.

The count is what the result needs, not what an implementation happens to do. Features come from one token, so the
last block needs keys and values of all tokens and everything else of that token alone. Weights are frozen, so backward
is one product per linear layer, to its input, and four per attention (to values, probabilities, queries and keys) where
forward has two. Norms, activations, softmax and the optimiser are not counted, because they are not matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lmr.bench.inputs import AnyMethod, strip_watch
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


def count_image(tower: VisionTower, *, whole: bool = False) -> Flops:
    """Count one image through its tower; ``whole``: as if the last block were computed for all tokens."""
    blocks = count_blocks(tower, whole=whole)
    # There is no norm before the tokens, so the backward ends there.
    return Flops(2 * tower.count_embedding() + blocks.forward, blocks.backward)


def count_blocks(tower: VisionTower, *, whole: bool = False) -> Flops:
    """Count the tokens of one image through all blocks, and what comes after."""
    return _count_tower(len(tower.positions), tower.config, whole)


def count_passes_of_image(tower: VisionTower, passes: Passes, classes: int, *, needs_images: bool) -> float:
    """Count the passes of one image through its tower, and its comparisons with all classes.

    A tower that keeps tokens embeds an image once in a step, unless the method ``needs_images`` for every pass.
    """
    blocks, seen = count_blocks(tower), count_comparison(tower.config.features, classes)
    embeddings = min(1.0, passes.forwards) if tower.keeps_tokens and not needs_images else passes.forwards
    forwards = passes.forwards * (blocks.forward + seen.forward) + embeddings * 2 * tower.count_embedding()
    return forwards + passes.backwards * (blocks.backward + seen.backward)


def count_text(config: TextConfig, tokens: int, *, whole: bool = False, shared: int = 0) -> Flops:
    """Count one prompt through its tower, without ``shared`` tokens that all prompts begin with.

    Masked products are counted, as kernels compute them.
    """
    return _count_tower(tokens, config, whole, shared)


def count_passes_of_prompt(config: TextConfig, tokens: int, passes: Passes, *, shared: int = 0) -> float:
    """Count the passes of the prompt of one class in a step."""
    prompt = count_text(config, tokens, shared=shared)
    return passes.text_forwards * prompt.forward + passes.text_backwards * prompt.backward


def count_comparison(features: int, classes: int) -> Flops:
    """Count the cosines of one image with all classes."""
    return Flops(2 * features * classes, 2 * features * classes)


def count_forwards(method: AnyMethod, batch_size: int, selected: float = 1.0) -> float | None:
    """Return the cost of a step per image, in plain forwards, whatever the machine; None where it is not known.

    ``selected`` is the share of the samples past the gate of a method that has one: only these have a backward. In a
    tower that is not ours a backward counts as a forward.
    """
    passes = count_passes(strip_watch(method), batch_size)
    if passes is None:
        return None
    passes = replace(passes, backwards=selected * passes.backwards)
    clip = method.classifier
    if not isinstance(clip.encoder, VisionTower):
        texts = passes.text_forwards + passes.text_backwards
        return None if texts else passes.forwards + passes.backwards
    one = count_passes_of_image(clip.encoder, Passes(forwards=1), clip.classes, needs_images=False)
    total = count_passes_of_image(clip.encoder, passes, clip.classes, needs_images=method.needs_images)
    if passes.text_forwards or passes.text_backwards:
        if clip.text is None or clip.text.tokens is None or not isinstance(clip.text.tower, TextTower):
            return None
        prompt = count_passes_of_prompt(clip.text.tower.config, clip.text.tokens, passes)
        total += clip.classes * prompt / batch_size
    return total / one


def _count_tower(tokens: int, config: VisionConfig | TextConfig, whole: bool, shared: int = 0) -> Flops:
    own = tokens - shared
    blocks = [_count_block(tokens, own, own, config.width, config.hidden) for _ in range(config.depth - 1)]
    blocks.append(_count_block(tokens, own, own if whole else 1, config.width, config.hidden))
    projection = 2 * config.width * config.features
    forward = sum(block.forward for block in blocks) + projection
    return Flops(forward, sum(block.backward for block in blocks) + projection)


def _count_block(tokens: int, own: int, queried: int, width: int, hidden: int) -> Flops:
    """Count one block in which ``own`` tokens need keys and values, and ``queried`` of them everything else."""
    linear = 2 * own * width * 2 * width  # keys, values
    linear += 2 * queried * width * (2 * width + 2 * hidden)  # queries, output, the two layers of the perceptron
    attention = 2 * 2 * queried * tokens * width
    return Flops(linear + attention, linear + 2 * attention)
