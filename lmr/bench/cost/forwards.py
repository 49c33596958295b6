"""The arithmetic of a step in plain forwards: what a method costs per image, whatever the machine."""

from __future__ import annotations

from lmr.bench.cost.flops import count_passes_of_image, count_text
from lmr.core.blocks import find_blocks
from lmr.core.method import Method
from lmr.core.traits import Passes
from lmr.models.clip.image_tower import VisionTower
from lmr.models.clip.text_tower import TextTower


def count_forwards(method: Method, batch_size: int, past: float = 1.0) -> float | None:
    """The matrix products of one step per image, divided by those of a forward; None where they are not known.

    ``past`` is the share of the samples that could learn and pass the gate. Prompts are encoded once for a whole batch.
    In a tower that is not ours a backward counts as a forward, and every forward as a whole one.
    """
    most = method.count_passes()
    passes = None if most is None else method.count_passes(past * most.backwards if method.gated else 1.0)
    if passes is None:
        return None
    clip = method.classifier
    if not isinstance(clip.encoder, VisionTower):
        backward = 1.0 if passes.blocks is None else min(1.0, passes.blocks / find_blocks(clip.encoder)[1])
        texts = passes.text_forwards + passes.text_backwards
        return None if texts else passes.forwards + passes.backwards * backward
    one = count_passes_of_image(clip.encoder, Passes(forwards=1), clip.classes)
    total = count_passes_of_image(clip.encoder, passes, clip.classes)
    if passes.text_forwards or passes.text_backwards:
        if clip.text is None or clip.text.tokens is None or not isinstance(clip.text.tower, TextTower):
            return None
        prompt = count_text(clip.text.tower.config, clip.text.tokens)
        texts = passes.text_forwards * prompt.forward + passes.text_backwards * prompt.backward
        total += clip.classes * texts / batch_size
    return total / one
