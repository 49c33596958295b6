"""Count the bad images until ``steady`` adapts, how often it adapts to quiet streams, and what a second pass gains.

The counts run with the bias alone: whether a stream has drifted depends on the answers of the frozen model only, which
encodes each image once.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from lab.command import build_parser, run_command
from lmr.bench.inputs import find_dataset, load_backbone
from lmr.core.classifier import ZeroShot
from lmr.core.registry import create
from lmr.data.dataset import CLEAN
from lmr.data.streams import Order, Stream, make_stream
from lmr.models.backbone import Backbone

DESCRIPTION = """\
Count the bad images that pass until the default method adapts, after some hundred clean ones: the median over streams,
the number that nine in ten need, and how many adapt within 64. With --quiet, count instead how often it adapts to
clean streams in which nothing turns bad; with --passes, print the accuracy of the frozen model and of two passes."""

EXAMPLES = """\
examples:
  python -m lab.wake --root DATA
  python -m lab.wake --passes --data photo-c --images 96 --bad 96 --order skew
  python -m lab.wake --quiet shuffle bursts classes dirichlet shift skew --images 10000 --root DATA"""

CONFIRM = "zoom_blur", "snow", "defocus_blur", "frost", "jpeg_compression", "impulse_noise", "brightness"
SOON = 64  # bad images within which adapting should begin
BLOCK = 8  # images in a step


class Remembered(nn.Module):
    """An image encoder that encodes each image once."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.known = encoder, dict[int, Tensor]()

    def forward(self, images: Tensor) -> Tensor:
        """Return the features [B, D] of images."""
        keys = [hash(image.numpy().tobytes()) for image in images]
        new = [place for place, key in enumerate(keys) if key not in self.known]
        if new:
            features = self.encoder(images[new])
            self.known |= {keys[place]: feature for place, feature in zip(new, features, strict=True)}
        return torch.stack([self.known[key] for key in keys])


def follow(backbone: Backbone, classifier: ZeroShot, streams: Sequence[Stream]) -> list[list[str]]:
    """Return what ``steady`` does after every eight images of streams of the same length."""
    method = create("steady(lr=0.0)", classifier, preset="auto", streams=len(streams))
    phases: list[list[str]] = [[] for _ in streams]
    for first in range(0, streams[0].count, BLOCK):
        places = np.arange(first, min(first + BLOCK, streams[0].count))
        batches = [stream.read(places) for stream in streams]
        images = torch.stack([backbone.preprocess(image) for batch in batches for image in batch.images])
        method.step(images, streams=[k for k in range(len(streams)) for _ in places])
        for own, phase in zip(phases, method.phases() or [], strict=True):
            own.append(phase)
    return phases


def measure_passes(backbone: Backbone, classifier: ZeroShot, stream: Stream) -> list[float]:
    """Return the share of right answers of the frozen model and of both passes of ``steady`` over a stream."""
    batches = [stream.read(np.arange(first, min(first + 64, stream.count))) for first in range(0, stream.count, 64)]
    images = [backbone.preprocess(list(batch.images)) for batch in batches]
    labels = torch.cat([torch.as_tensor(batch.labels) for batch in batches])
    method = create("steady", classifier, preset="auto")
    with torch.no_grad():
        answers = [torch.cat([classifier(own).argmax(1) for own in images])]
    for _ in range(2):
        answers.append(torch.cat([method.step(own).labels for own in images]))
        method.rewind()
    return [(own == labels).double().mean().item() for own in answers]


def count_wakes(phases: Sequence[str]) -> list[int]:
    """Return after how many images a stream began to adapt, each time that it did."""
    pairs = zip(["quiet", *phases], phases, strict=False)
    return [BLOCK * (k + 1) for k, (old, new) in enumerate(pairs) if old == "quiet" and new == "adapting"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment and return the exit code."""
    parser = build_parser("wake", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("--data", default="cifar10-c", metavar="NAME", help="a corrupted dataset (default: %(default)s)")
    add("--model", default="photo", metavar="MODEL", help="the model (default: %(default)s)")
    add("--corruptions", nargs="+", metavar="NAME", default=CONFIRM, help="corruptions (default: those on which no "
        "rule was made)")  # fmt: skip
    add("--severity", type=int, default=5, metavar="N", help="of the corruptions (default: %(default)s)")
    add("--quiet", nargs="+", default=[], metavar="ORDER", help="orders of clean streams (default: none)")
    add("--passes", action="store_true", help="print the accuracy of each pass of 'lmr predict'")
    add("--order", default="shuffle", metavar="ORDER", help="of --passes (default: %(default)s)")
    add("--images", type=int, default=300, metavar="N", help="clean images (default: %(default)s)")
    add("--bad", type=int, default=200, metavar="N", help="bad images after them (default: %(default)s)")
    add(
        "--seeds",
        nargs="+",
        type=int,
        default=list(range(3, 23)),
        metavar="N",
        help="of the streams (default: 3 to 22)",
    )
    add("--root", metavar="DIR", help="where datasets are kept (default: $LMR_DATA, or ~/.cache/lmr/data)")
    return run_command(parser, run, argv)


def run(options: argparse.Namespace) -> None:
    """Print a row for each corruption, or for each order of clean streams."""
    torch.set_num_threads(1)
    backbone, dataset = load_backbone(options.model, "float32", "cpu"), find_dataset(options.data, options.root)
    frozen = backbone.classifier(dataset.classes)
    if options.passes:
        print("| corruption | streams | frozen model | first pass | second pass |\n|---|--:|--:|--:|--:|")
        for name in options.corruptions:
            orders = [Order(options.order, seed=seed, onset=options.images) for seed in options.seeds]
            total, severity = options.images + options.bad, options.severity
            streams = [make_stream(dataset, name, order=order, severity=severity, limit=total) for order in orders]
            rows = np.mean([measure_passes(backbone, frozen, stream) for stream in streams], 0)
            print(f"| {name} | {len(streams)} | {' | '.join(f'{share:.1%}' for share in rows)} |", flush=True)
        return
    classifier = ZeroShot(Remembered(frozen.encoder), frozen.prototypes, frozen.logit_scale)
    if options.quiet:
        print("| order | streams | images of each | times adapted, per stream |\n|---|--:|--:|--:|")
        for kind in options.quiet:
            orders = [Order(kind, seed=seed) for seed in options.seeds]
            streams = [make_stream(dataset, CLEAN, order=order, limit=options.images) for order in orders]
            wakes = [len(count_wakes(phases)) for phases in follow(backbone, classifier, streams)]
            print(f"| {kind} | {len(wakes)} | {streams[0].count:,} | {np.mean(wakes):.2f} |", flush=True)
        return
    print(f"| corruption | streams | median | nine in ten | within {SOON} |\n|---|--:|--:|--:|--:|")
    for name in options.corruptions:
        orders = [Order(seed=seed, onset=options.images) for seed in options.seeds]
        total, severity = options.images + options.bad, options.severity
        streams = [make_stream(dataset, name, order=order, severity=severity, limit=total) for order in orders]
        first = [count_wakes(phases) for phases in follow(backbone, classifier, streams)]
        waits = [next((wake - options.images for wake in wakes if wake > options.images), math.inf) for wakes in first]
        middle, most = np.quantile(waits, (0.5, 0.9), method="higher")
        print(f"| {name} | {len(waits)} | {middle:g} | {most:g} | {np.mean(np.array(waits) <= SOON):.0%} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
