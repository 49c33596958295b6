"""Record the answers of the frozen and the adapted model, and replay the watch on them.

Thresholds of the watch are chosen on recorded streams: a stream is run once, and every statistic is computed offline.
Each stream is replayed with 16 choices of the images that are compared, because a watch compares one image in four of
the first 512, and then one in 16.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lab.command import build_parser, run_command
from lab.watch_trials import show
from lmr.bench.inputs import find_dataset, load_backbone, load_classifier
from lmr.core.functional.losses import entropy
from lmr.core.registry import create
from lmr.models.backbone import DEFAULT_TEMPLATES
from lmr.watch.health import Health, Level, advance
from lmr.watch.pace import EVERY, MORE, YOUNG
from lmr.watch.settings import Thresholds
from lmr.watch.signals import Tally, add_images, find_alarms, measure, measure_sureness

DESCRIPTION = """\
Record streams on which LMR as published adapts, with 80 % of one class or with all classes alike, and replay the watch
on them with 16 choices of the compared images. The table says how many of them were suspected and reset, and how many
within 500 images. With --steps, long streams are drawn with repetition from the last half of each recorded one, and
all suspicions and actions are counted. Recorded streams are kept in --out and not run again."""

EXAMPLES = """\
examples:
  python -m lab.doubt --domains clean fog --dominant 1 5 9
  python -m lab.doubt --domains clean gaussian_noise fog contrast pixelate --balanced --steps 10000"""

METHOD = "lmr(preset='auto')"
SOON = 500  # images within which a silent failure should be noticed


@dataclass(frozen=True)
class Recording:
    """The logits [n, C] of both models on a stream of some kind, its labels [n], and its batch size."""

    kind: str
    batch_size: int
    adapted: Tensor
    frozen: Tensor
    labels: Tensor

    @property
    def gain(self) -> float:
        """Return the points by which adapting is better than the frozen model."""
        right = [float((one.argmax(1) == self.labels).double().mean()) for one in (self.adapted, self.frozen)]
        return 100 * (right[0] - right[1])


def record(options: argparse.Namespace) -> Iterator[Recording]:
    """Yield the recordings of all streams, from files or from a run."""
    for domain in options.domains:
        for dominant in [None, *options.dominant] if options.balanced else options.dominant:
            for size in options.batch_sizes:
                for seed in options.seeds:
                    yield _record(options, domain, dominant, size, seed)


def _record(options: argparse.Namespace, domain: str, dominant: int | None, size: int, seed: int) -> Recording:
    model = Path(options.model).stem
    name = f"{model}-{domain}-{'balanced' if dominant is None else dominant}-{size}-{seed}-{options.images}"
    path = Path(options.out) / f"{name}.npz"
    if not path.exists():
        dataset = find_dataset(options.data, options.root)
        classifier = load_classifier(options.model, "float32", "cpu", dataset.classes, DEFAULT_TEMPLATES)
        preprocess = load_backbone(options.model, "float32", "cpu").preprocess
        method, steps = create(METHOD, classifier), -(-options.images // size)
        kind = "steady" if dominant is None else "majority"
        made = []
        for batch in show(dataset, kind, steps, size, seed, domain, dominant):
            images = preprocess(batch.images)
            with torch.no_grad():
                frozen = classifier(images)
            made.append((method.step(images).logits.numpy(), frozen.numpy(), batch.labels))
        path.parent.mkdir(parents=True, exist_ok=True)
        answers, frozen_answers, true = (np.concatenate(parts) for parts in zip(*made, strict=True))
        np.savez_compressed(path, adapted=answers, frozen=frozen_answers, labels=true)
    with np.load(path) as arrays:
        kept = [torch.from_numpy(arrays[key]) for key in ("adapted", "frozen", "labels")]
    kind = f"{domain}, {'balanced' if dominant is None else f'80 % class {dominant}'}"
    return Recording(kind, size, *kept)


def replay(recording: Recording, places: Tensor, offset: int, limits: Thresholds) -> dict[Level, list[int]]:
    """Run the watch on recorded images ``places`` [n] in this order, and return when it suspected and when it acted.

    While nothing is suspected, images ``offset``, ``offset`` + 16 and so on are compared, or + 4 among the first 512.
    After a reset it starts anew.
    """
    both = (recording.adapted, recording.frozen)
    labels = torch.stack([logits.argmax(1) for logits in both])
    entropies = torch.stack([entropy(logits) for logits in both]).double()
    sureness, classes = measure_sureness(recording.frozen), recording.frozen.shape[1]
    tally, health = Tally.begin(classes), Health()
    found: dict[Level, list[int]] = {Level.SUSPECTED: [], Level.RESET: []}
    for first in range(0, len(places), recording.batch_size):
        chosen = places[first : first + recording.batch_size]
        if calm := health.level is Level.OK:
            numbers = torch.arange(first, first + len(chosen))
            every = torch.where(numbers < YOUNG, EVERY // MORE, EVERY)
            chosen = chosen[numbers % every == offset % every]
        if len(chosen):
            tally = add_images(tally, labels[:, chosen], entropies[:, chosen], sureness[chosen], limits.memory)
        alarms = find_alarms(measure(tally, 0, None), limits, classes)
        health, _ = advance(health, alarms, len(chosen), False, limits)
        if health.level is Level.RESET or (calm and health.level is Level.SUSPECTED):
            found[health.level].append(first + recording.batch_size)
        if health.level is Level.RESET:
            tally, health = Tally.begin(classes), Health()
    return found


def describe(recordings: Sequence[Recording]) -> str:
    """Return a line of the table: streams of one kind, each with 16 choices of the compared images."""
    found = [
        replay(one, torch.arange(len(one.labels)), offset, Thresholds())
        for one in recordings
        for offset in range(EVERY)
    ]
    cells = []
    for level in (Level.SUSPECTED, Level.RESET):
        firsts = [times[level][0] for times in found if times[level]]
        cells += [f"{len(firsts)} of {len(found)}", str(sum(first <= SOON for first in firsts))]
    gains = [one.gain for one in recordings]
    return " | ".join([f"{min(gains):+.1f} to {max(gains):+.1f}", *cells])


def count_alarms(recordings: Sequence[Recording], steps: int) -> str:
    """Return the suspicions and actions in one long stream for each recording, of images drawn from its last half."""
    generator, found = torch.Generator().manual_seed(0), []
    for one in recordings:
        late = len(one.labels) // 2
        places = late + torch.randint(len(one.labels) - late, (steps * one.batch_size,), generator=generator)
        found.append(replay(one, places, 0, Thresholds()))
    suspicions, actions = (sum(len(times[level]) for times in found) for level in (Level.SUSPECTED, Level.RESET))
    return f"{len(found)} long streams of {steps} steps: {suspicions} suspicions, {actions} actions"


def main(argv: Sequence[str] | None = None) -> int:
    """Record and replay the streams and print the table; return the exit code."""
    parser = build_parser("doubt", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("--data", default="photo-c", metavar="NAME", help="a corrupted dataset (default: %(default)s)")
    add("--model", default="photo", metavar="MODEL", help="the model (default: %(default)s)")
    add("--domains", nargs="+", default=["clean", "fog"], metavar="NAME", help="corruptions, or clean")
    add("--dominant", nargs="*", type=int, default=[], metavar="CLASS", help="classes that 80 %% of a stream show")
    add("--balanced", action="store_true", help="also a stream with all classes alike")
    add("--batch-sizes", nargs="+", type=int, default=[8, 64], metavar="N", help="images per step (default: 8 64)")
    add("--seeds", nargs="+", type=int, default=[1], metavar="N", help="seeds of the streams (default: 1)")
    add("--images", type=int, default=1000, metavar="N", help="images of each stream (default: %(default)s)")
    add("--steps", type=int, default=0, metavar="N", help="also long streams of N steps (default: none)")
    add("--out", default="doubt", metavar="DIR", help="where recordings are kept (default: %(default)s)")
    add("--root", metavar="DIR", help="where datasets are kept (default: $LMR_DATA, or ~/.cache/lmr/data)")
    return run_command(parser, run, argv)


def run(options: argparse.Namespace) -> None:
    """Print a line for each kind of stream, and with --steps another for the long ones."""
    torch.set_num_threads(1)
    print("| stream | gain | noticed | within 500 images | reset | within 500 images |\n|---|--:|--:|--:|--:|--:|")
    kinds: dict[str, list[Recording]] = {}
    for recording in record(options):
        kinds.setdefault(recording.kind, []).append(recording)
    for kind, recordings in kinds.items():
        print(f"| {kind} | {describe(recordings)} |", flush=True)
    if options.steps:
        print(count_alarms([one for recordings in kinds.values() for one in recordings], options.steps))


if __name__ == "__main__":
    sys.exit(main())
