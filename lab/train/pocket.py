"""Train the pocket model from random weights and write it to a file: ``python -m lab.train pocket``.

Contrastive training on images of the pocket world with varied captions. A caption is a positive for every image of the
batch that it is true of (two images of a red star share their captions), so the targets of a row are spread evenly over
its true captions. The logit scale rises on a fixed schedule from CLIP's start (1/0.07) to exactly 100. No corrupted
image is shown and no adaptation method takes part.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from lmr.core.progress import show_progress
from lmr.data.pocket_world import CLASSES, Scene, draw
from lmr.models.embedded import EmbeddedConfig, EmbeddedTowers
from lmr.models.tokenizers import END, PAD, START, WordTokenizer

TRAIN_SEED, TEST_SEED = 20260, 7  # two worlds: no test image is trained on
MEAN, STD = 0.45, 0.25

WORDS: tuple[str, ...] = tuple(
    f"{PAD} {START} {END} a an the of in on at with and this that one is here there it see i my "
    "photo picture image drawing snapshot sketch painting view rendering shot "
    "red orange green blue purple striped plain "
    "circle ring crescent square diamond cross triangle pentagon star heart shape "
    "small large little big left right top bottom side corner centre middle "
    "blurry bright dark noisy clean good bad close up background cluttered scene some coloured".split()
)
tokenize = WordTokenizer("pocket", WORDS)

OPENINGS = (
    "a photo of a {}", "a picture of a {}", "an image of a {}", "a drawing of a {}", "a snapshot of a {}",
    "a sketch of a {}", "a painting of a {}", "a rendering of a {}", "a view of a {}", "a shot of a {}",
    "a photo of the {}", "a picture of the {}", "a photo of one {}", "this is a {}", "here is a {}", "there is a {}",
    "i see a {}", "it is a {}", "my photo of a {}", "a good photo of a {}", "a bad photo of a {}", "a close up of a {}",
    "a {}", "the {}", "{}", "a clean picture of a {}", "a bright photo of a {}", "a dark photo of a {}",
    "a blurry photo of a {}", "a noisy photo of a {}", "a {} on a cluttered background", "a {} in a cluttered scene",
    "a {} with some background", "a photo of a {} shape",
)  # fmt: skip
SIZE_WORDS = (("small", "little"), ("large", "big"))
PLACE_PHRASES = ("on the left", "on the right", "at the top", "at the bottom")


def caption(scene: Scene, random: np.random.Generator) -> tuple[list[str], NDArray[np.bool_]]:
    """Write one caption for every image, and say which images each is true of: bool [N images, N captions]."""
    count = len(scene.label)
    says_size = (random.random(count) < 0.3) & (scene.size >= 0)
    says_place = (random.random(count) < 0.3) & (scene.place >= 0)
    says_plain = random.random(count) < 0.2
    texts = []
    for k in range(count):
        name = CLASSES[scene.label[k]]
        if says_plain[k] and "striped" not in name:
            name = f"plain {name}"
        if says_size[k]:
            name = f"{random.choice(SIZE_WORDS[scene.size[k]])} {name}"
        text = str(random.choice(OPENINGS)).format(name)
        texts.append(f"{text} {PLACE_PHRASES[scene.place[k]]}" if says_place[k] else text)
    true = scene.label[:, None] == scene.label[None]
    true &= ~says_size[None] | (scene.size[:, None] == scene.size[None])
    true &= ~says_place[None] | (scene.place[:, None] == scene.place[None])
    return texts, true


def contrast(images: Tensor, texts: Tensor, true: Tensor, scale: float) -> Tensor:
    """Return the cross-entropy in both directions against targets spread over all true pairs."""
    logits = scale * F.normalize(images, dim=-1) @ F.normalize(texts, dim=-1).T
    rows = -(true / true.sum(1, keepdim=True) * logits.log_softmax(1)).sum(1).mean()
    columns = -(true / true.sum(0, keepdim=True) * logits.log_softmax(0)).sum(0).mean()
    return (rows + columns) / 2


def to_tensor(pixels: NDArray[np.uint8]) -> Tensor:
    """Convert uint8 [N, H, W, 3] to normalised float [N, 3, H, W]."""
    return (torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255 - MEAN) / STD


@torch.no_grad()
def accuracy(model: EmbeddedTowers, count: int = 5000, seed: int = TEST_SEED) -> float:
    """Return the clean zero-shot accuracy with the template "a photo of a {}." on a world that was not trained on."""
    tokens, end = tokenize([f"a photo of a {name}." for name in CLASSES], model.config.context)
    prototypes = F.normalize(model.text(tokens, end), dim=-1)
    right = 0
    for first in range(0, count, 500):
        pixels, scene = draw(range(first, min(first + 500, count)), seed)
        logits = F.normalize(model.image(to_tensor(pixels)), dim=-1) @ prototypes.T
        right += int((logits.argmax(1).numpy() == scene.label).sum())
    return right / count


def train(steps: int, batch: int, lr: float, out: Path, config: EmbeddedConfig) -> None:
    """Train for ``steps`` batches and write ``out`` (weights in safetensors with the configuration as metadata)."""
    from safetensors.torch import save_file

    torch.manual_seed(0)
    random = np.random.default_rng(0)
    model = EmbeddedTowers(config)
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98))
    started = time.perf_counter()
    with show_progress("", steps, "batches") as bar:
        for step in range(steps):
            warm = min(1.0, (step + 1) / 500)
            for group in optimizer.param_groups:
                group["lr"] = lr * warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * step / steps)))
            scale = math.exp(math.log(1 / 0.07) + (math.log(100) - math.log(1 / 0.07)) * min(1.0, step / (0.7 * steps)))
            pixels, scene = draw(range(step * batch, (step + 1) * batch), TRAIN_SEED)
            texts, true = caption(scene, random)
            tokens, end = tokenize(texts, config.context)
            features = model.image(to_tensor(pixels))
            loss = contrast(features, model.text(tokens, end), torch.from_numpy(true).float(), scale)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            bar.describe(f"loss {loss.item():.3f}")
            bar.advance()
            if (step + 1) % 1000 == 0:
                print(f"step {step + 1}: loss {loss.item():.3f}, clean accuracy {accuracy(model, 1000):.1%}")
    # Half precision halves the file; what is reported is measured on what is written.
    weights = {key: value.detach().half().contiguous() for key, value in model.state_dict().items()}
    model.load_state_dict(weights)
    clean = accuracy(model)
    facts = {
        "format": "lmr-pocket",
        "version": "1",
        "config": json.dumps(dataclasses.asdict(config)),
        "logit_scale": "100.0",
        "mean": str(MEAN),
        "std": str(STD),
        "words": " ".join(WORDS),
        "clean_accuracy": f"{clean:.4f}",
        "training": f"{steps} batches of {batch}, lr {lr}",
    }
    save_file(weights, out, metadata=facts)
    print(f"clean zero-shot accuracy on 5000 unseen images: {clean:.1%}")
    print(f"wrote {out} after {(time.perf_counter() - started) / 60:.0f} minutes")
