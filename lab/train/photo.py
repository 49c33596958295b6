"""Train the photo model from random weights and write it to a file: ``python -m lab.train photo``.

Contrastive training on photographs with their class names in varied templates: every image is compared with the texts
of all 110 names, one random template each. The logit scale rises on a fixed schedule, for "photo" to exactly 100, the
scale the paper's settings are made for. No corrupted image and no test image is shown, and no adaptation method takes
part.

Step ``n`` draws its images, crops and templates from the seed and ``n`` alone, so a training that was stopped
resumes from its last checkpoint as if nothing had happened.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import pickle
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lab.train.muon import Muon
from lab.train.photo_images import MEAN, STD, TrainingImages, augment, normalise_pixels, read_training_images
from lab.train.photo_texts import CONTEXT, NAMES, TEMPLATES, WORDS, draw_prompts, tokenize_prompts
from lmr.core.errors import LmrError
from lmr.core.files import check_folder, write_atomically
from lmr.core.progress import show_progress
from lmr.data.catalogue import open_dataset
from lmr.data.dataset import CLEAN, find_root
from lmr.data.names import read_list
from lmr.models.embedded import BETWEEN, EmbeddedConfig, EmbeddedTowers
from lmr.models.towers.stem import ConvStem

_EVERY = 100  # steps between checkpoints
_UNREADABLE = (OSError, RuntimeError, KeyError, TypeError, ValueError, EOFError, pickle.UnpicklingError)


@dataclass(frozen=True)
class PhotoRecipe:
    """The settings of a training; a checkpoint resumes only with the recipe that wrote it."""

    steps: int = 3500
    batch: int = 256
    lr: float = 1.5e-3  # of AdamW at its peak
    muon_lr: float = 0.02  # of Muon at its peak; it moves the matrices of the blocks and the convolutions
    warm: int = 200  # steps up to the peak; this is multiplied by a straight fall to 0 over all steps
    weight_decay: float = 0.05
    smoothing: float = 0.05  # of the labels, over all names
    first_scale: float = 16.0  # rises to the last one in the first 70 % of the steps
    last_scale: float = 100.0
    held_out: int = 0  # training images that are kept aside to compare recipes
    seed: int = 0
    width: int = 192  # of the image tower
    depth: int = 4
    heads: int = 6
    stem: tuple[int, ...] = (32, 64, 128)

    def __post_init__(self) -> None:
        for key, least in (("steps", 1), ("batch", 1), ("warm", 1), ("held_out", 0)):
            if getattr(self, key) < least:
                raise LmrError(f"Expected at least {least} for {key} of the training, got {getattr(self, key)}.")
        for key in ("lr", "muon_lr"):
            if not 0 < getattr(self, key) < math.inf:
                raise LmrError(f"Expected a positive {key} for the training, got {getattr(self, key)}.")

    def lr_share(self, step: int) -> float:
        """Return the learning rate of a step divided by its peak."""
        return min(1.0, (step + 1) / self.warm) * (1 - step / self.steps)

    def scale(self, step: int) -> float:
        """Return the logit scale of a step."""
        done = min(1.0, step / (0.7 * self.steps))
        first, last = math.log(self.first_scale), math.log(self.last_scale)
        return math.exp(first + (last - first) * done)

    @property
    def sizes(self) -> EmbeddedConfig:
        """The sizes of both towers."""
        return EmbeddedConfig(
            width=self.width, depth=self.depth, heads=self.heads, vocabulary=len(WORDS), context=CONTEXT, stem=self.stem
        )


JUDGE = PhotoRecipe(  # a weaker model of another shape, with which rules that were made on "photo" are checked
    steps=350, first_scale=10.0, last_scale=18.0, seed=1, width=128, depth=3, heads=4, stem=(24, 48, 96)
)


class PhotoTraining:
    """The model, its optimisers and the number of steps done."""

    def __init__(self, recipe: PhotoRecipe, images: TrainingImages) -> None:
        if len(images) - recipe.held_out < recipe.batch:
            raise LmrError(
                f"Of {len(images)} images {recipe.held_out} are held out, which leaves less than a batch of "
                f"{recipe.batch}."
            )
        torch.manual_seed(recipe.seed)
        self.recipe = recipe
        self.images, self.aside = images.split(recipe.held_out, recipe.seed)
        self.model = EmbeddedTowers(recipe.sizes, trained=False)
        self.optimizers = make_optimizers(self.model, recipe)
        self.prompts = tokenize_prompts()
        self.done = 0
        self.seconds = 0.0  # of training, over all sessions

    def take_step(self) -> float:
        """Take one step of the optimisers and return its loss."""
        started, recipe, step = time.perf_counter(), self.recipe, self.done
        random = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step + 1)
        rows = self._choose_rows(step)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = optimizer.defaults["lr"] * recipe.lr_share(step)
        self.model.train()
        texts = F.normalize(self.model.text(*draw_prompts(*self.prompts, random)), dim=-1)
        features = F.normalize(self.model.image(augment(self.images.pixels[rows], random)), dim=-1)
        logits = recipe.scale(step) * features @ texts.T
        loss = F.cross_entropy(logits, self.images.labels[rows], label_smoothing=recipe.smoothing)
        if not loss.isfinite():  # before a checkpoint keeps it
            raise LmrError(f"The loss of step {step} is not finite; lower the learning rate and start again.")
        self.model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in self.optimizers:
            optimizer.step()
        self.done += 1
        self.seconds += time.perf_counter() - started
        return loss.item()

    def _choose_rows(self, step: int) -> Tensor:
        """Return the images of a step; every epoch has a new random order."""
        per_epoch = max(1, len(self.images) // self.recipe.batch)
        epoch, place = divmod(step, per_epoch)
        random = torch.Generator().manual_seed(self.recipe.seed * 1_000_003 - epoch - 1)
        order = torch.randperm(len(self.images), generator=random)
        return order[place * self.recipe.batch : (place + 1) * self.recipe.batch]

    def save(self, path: Path) -> None:
        """Write a checkpoint atomically."""
        kept = {
            "recipe": dataclasses.asdict(self.recipe),
            "done": self.done,
            "seconds": self.seconds,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        content = io.BytesIO()
        torch.save(kept, content)
        write_atomically(path, content.getvalue())

    def resume(self, path: Path) -> None:
        """Continue from a checkpoint of the same recipe."""
        try:
            kept: dict[str, Any] = torch.load(path, weights_only=True)
            recipe = PhotoRecipe(**(kept["recipe"] | {"stem": tuple(kept["recipe"]["stem"])}))
            if recipe == self.recipe:
                self.model.load_state_dict(kept["model"])
                for optimizer, state in zip(self.optimizers, kept["optimizers"], strict=True):
                    optimizer.load_state_dict(state)
                self.done, self.seconds = int(kept["done"]), float(kept["seconds"])
        except _UNREADABLE as error:
            raise LmrError(
                f"Cannot resume from {str(path)!r}: it is damaged or not a checkpoint of this training ({error}). "
                "Remove it to start again."
            ) from error
        if recipe != self.recipe:
            raise LmrError(
                f"The checkpoint {str(path)!r} was written by another recipe: {recipe}. Give the same options to "
                "resume it."
            )

    def finish(self) -> EmbeddedTowers:
        """Return the model as it is written: batch norms folded, in half precision."""
        weights = {key: value for key, value in self.model.state_dict().items() if not key.startswith("image.patches.")}
        weights |= {f"image.patches.{key}": value for key, value in fold_norms(_find_stem(self.model)).items()}
        model = EmbeddedTowers(self.model.config)
        model.load_state_dict({key: value.half() for key, value in weights.items()})
        return model.eval().requires_grad_(False)


def _find_stem(model: EmbeddedTowers) -> ConvStem:
    assert isinstance(model.image.patches, ConvStem)
    return model.image.patches


@torch.no_grad()
def fold_norms(stem: ConvStem) -> dict[str, Tensor]:
    """Return the weights of the same stem without batch norms: trained, each only scales and shifts its channels."""
    weights: dict[str, Tensor] = {}
    for number, layer in enumerate(stem):
        conv, norm = layer.get_parameter("conv.weight"), layer.get_submodule("norm")
        mean, variance = norm.get_buffer("running_mean"), norm.get_buffer("running_var")
        scale = norm.get_parameter("weight") / (variance + 1e-5).sqrt()  # the eps of torch's batch norms
        weights[f"{number}.conv.weight"] = conv * scale[:, None, None, None]
        weights[f"{number}.conv.bias"] = norm.get_parameter("bias") - mean * scale
    return weights


def make_optimizers(model: EmbeddedTowers, recipe: PhotoRecipe) -> tuple[Muon, torch.optim.AdamW]:
    """Return Muon for the hidden matrices and AdamW for everything at the ends and for vectors."""
    stem = _find_stem(model)
    first = stem[0].get_parameter("conv.weight")
    hidden = [p for block in (*model.image.blocks, *model.text.blocks) for p in block.parameters() if p.ndim == 2]
    hidden += [p for p in stem.parameters() if p.ndim == 4 and p is not first]
    taken = {id(p) for p in hidden}
    rest = [p for p in model.parameters() if id(p) not in taken]
    groups = [
        {"params": [p for p in rest if p.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
    ]
    return Muon(hidden, recipe.muon_lr, recipe.weight_decay), torch.optim.AdamW(groups, recipe.lr, betas=(0.9, 0.98))


@torch.no_grad()
def measure(model: EmbeddedTowers, pixels: Tensor, labels: Tensor, names: range) -> float:
    """Return the zero-shot accuracy with "a photo of a {}." among some names; ``labels`` count from the first."""
    tokens, end = (part[0, names.start : names.stop] for part in tokenize_prompts())
    prototypes = F.normalize(model.text(tokens, end), dim=-1)
    right = 0
    for first in range(0, len(labels), 500):
        part = slice(first, first + 500)
        features = F.normalize(model.image(normalise_pixels(pixels[part])), dim=-1)
        right += int(((features @ prototypes.T).argmax(1) == labels[part]).sum())
    return right / len(labels)


def train(recipe: PhotoRecipe, out: Path, *, root: str | None = None, resume: bool = False) -> None:
    """Train and write ``out``; checkpoints are written beside it and removed at the end."""
    checkpoint = out.with_name(f"{out.name}.checkpoint")
    check_folder(out.parent, (out.name, checkpoint.name))
    if checkpoint.is_file() and not resume:
        raise LmrError(f"There is a checkpoint {str(checkpoint)!r}; give --resume to continue it, or remove it.")
    training = PhotoTraining(recipe, read_training_images(find_root(root)))
    if checkpoint.is_file():
        training.resume(checkpoint)
        print(f"Resumed after {training.done} of {recipe.steps} steps.")
    elif resume:
        print(f"There is no checkpoint {checkpoint}; the training starts from the beginning.")
    print(f"{len(training.images):,} photographs, {len(NAMES)} names, {len(TEMPLATES)} templates; "
          f"checkpoints every {_EVERY} steps in {checkpoint}.")  # fmt: skip
    with show_progress("", recipe.steps, "batches", done=training.done) as bar:
        mean = None
        while training.done < recipe.steps:
            loss = training.take_step()
            mean = loss if mean is None else 0.98 * mean + 0.02 * loss
            bar.describe(f"loss {mean:.3f}")
            bar.advance()
            if training.done % _EVERY == 0 or training.done == recipe.steps:
                training.save(checkpoint)
    model = training.finish()
    facts = {"training": f"{recipe.steps} batches of {recipe.batch} in {training.seconds / 60:.0f} minutes"}
    _report_held_out(model, training.aside)
    if not recipe.held_out:  # a trial chooses settings, and test images must not
        measured = _measure_test_sets(model, root)
        facts["clean_accuracy"] = "; ".join(f"{name} {100 * value:.1f} %" for name, value in measured.items())
        print(f"Zero-shot accuracy on the test images: {facts['clean_accuracy']}")
    _write(model, recipe.last_scale, out, facts)
    checkpoint.unlink(missing_ok=True)
    print(f"Wrote {out} after {facts['training']}.")


def _split_names() -> dict[str, range]:
    ten, hundred = len(read_list("cifar10")), len(NAMES)
    return {"CIFAR-10": range(ten), "CIFAR-100": range(ten, hundred)}


def _report_held_out(model: EmbeddedTowers, aside: TrainingImages) -> None:
    for name, names in _split_names().items():
        own = aside.pick(((aside.labels >= names.start) & (aside.labels < names.stop)).nonzero().flatten())
        if len(own):
            right = measure(model, own.pixels, own.labels - names.start, names)
            print(f"{len(own):,} training images of {name} that were kept aside: {100 * right:.1f} %")


def _measure_test_sets(model: EmbeddedTowers, root: str | None) -> dict[str, float]:
    """Return the accuracy on the test sets."""
    measured = {}
    for name, names in _split_names().items():
        dataset = open_dataset(name.lower().replace("-", ""), root)
        labels = dataset.labels(CLEAN)
        pixels = torch.stack([torch.from_numpy(image) for image in dataset.read(CLEAN, 5, range(len(labels)))])
        measured[name] = measure(model, pixels.permute(0, 3, 1, 2), torch.from_numpy(labels), names)
    return measured


def _write(model: EmbeddedTowers, scale: float, out: Path, facts: dict[str, str]) -> None:
    from safetensors.torch import save

    facts = {
        "format": "lmr-photo",
        "version": "1",
        "config": json.dumps(dataclasses.asdict(model.config)),
        "logit_scale": str(scale),
        "mean": " ".join(map(str, MEAN)),
        "std": " ".join(map(str, STD)),
        "words": " ".join(WORDS),
        "names": BETWEEN.join(NAMES),
    } | facts
    weights = {key: value.half().contiguous() for key, value in model.state_dict().items()}
    write_atomically(out, save(weights, metadata=facts))
