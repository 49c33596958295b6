"""``lmr predict``: label images while adapting to them."""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lmr.apps.predict.options import PredictOptions
from lmr.cli.shared_options import add_fields, add_model_options, add_prompt_options, read_dataclass
from lmr.core.errors import LmrError

if TYPE_CHECKING:
    from lmr.apps.predict.results import PredictSummary

DESCRIPTION = """\
Label images with your own class names, without training data. The images are one stream in natural order (img2 before
img10). The model adapts when the images change, so that noise or fog cost less accuracy.

The default method, steady, answers as the frozen model while its answers are as clear as on the first images. When
they become less clear, it adapts, with the class shares that it has counted until then. If the images are bad from the
first one on, with about as many of each class, give --prior uniform; if you know the class shares, give these.

About twenty labels help more than anything else where one class dominates: 'lmr label' shows images and writes a file
of labels, and --truth FILE corrects all answers with it and estimates how accurate they are.

The default model is the small one that comes with lmr. It sees photographs of any size at 32x32 pixels and knows 110
class names, such as cat, ship and pickup truck, and reads everyday words such as car and person as these; 'lmr doctor
photo' lists them. For other names, or where details
matter, give a CLIP or SigLIP model with --model; it is downloaded once.

Image files are labelled in two passes where the first one adapts: the second answers all of them with what the first
has learnt. One line per image is written to --out as soon as its batch is done. To resume a run that was interrupted or
killed, give the same command with --resume; the result is the same as without the interruption. An image that cannot be
read gets a line with an "error" and changes nothing else.

A video file is labelled frame by frame, and every line has the number of the frame and its time in seconds. Folders
are searched for images only: name videos one by one. A .csv file is a list of paths, relative to its own folder, with
a line of column names, or one path per line and nothing else.

The images of several cameras are several streams: --stream-by adapts to each one on its own and writes one file per
stream to the folder --out. With --ray, streams run on the machines of a Ray cluster, and the files are the same."""

EXAMPLES = """\
examples:
  label a folder of photographs; nothing is downloaded:
    lmr predict photos --labels "cat,dog,ship,truck"
  any other words, with CLIP; the class names are in a file with one per line:
    lmr predict photos --labels names.txt --model openai/clip-vit-base-patch16 --out photos.jsonl
  a table for a spreadsheet; and again after an interruption:
    lmr predict photos --labels names.txt --out photos.csv
    lmr predict photos --labels names.txt --out photos.csv --resume
  a new folder every day, each run starting from what the last one learnt:
    lmr predict monday  --labels names.txt --state camera.state --out monday.jsonl
    lmr predict tuesday --labels names.txt --state camera.state --out tuesday.jsonl
  correct all answers with about twenty labels:
    lmr label photos --labels names.txt
    lmr predict photos --labels names.txt --truth labels.csv --out photos.jsonl
  images that are bad from the first on, with about as many of each class:
    lmr predict foggy --labels names.txt --prior uniform --out foggy.jsonl
  a road camera whose class shares are known; the other classes share the rest evenly:
    lmr predict road --labels names.txt --prior car=0.8,truck=0.1 --out road.jsonl
  no label for images that belong to none of the classes:
    lmr predict photos --labels names.txt --unknown 0.4 --out photos.jsonl
  a video, one frame per second of 25 frames:
    lmr predict street.mp4 --every 25 --labels names.txt --out street.jsonl
  one folder per camera, each adapted on its own:
    lmr predict cameras --stream-by folder --labels names.txt --out cameras-out
  streams by a part of the path:
    lmr predict frames --stream-by '(cam[0-9]+)_' --labels names.txt --out frames-out
  the same on all machines of a Ray cluster:
    lmr predict cameras --stream-by folder --ray auto --labels names.txt --out /shared/cameras-out
  the same model without adaptation, to compare:
    lmr predict photos --labels names.txt --method zeroshot --out plain.jsonl

lines:
  .jsonl  {"path": ..., "label": ..., "probability": ..., "known": ..., "top": [[label, probability], ...]}
          where known is a score that the image belongs to one of the classes; below --unknown the label is null
          {"path": ..., "error": ...}
          {"path": ..., "frame": 50, "time": 2.0, ...}   for the frames of a video, counted from 0
  .csv    path,frame,time,label,probability,known,top1,...,topN,error   where top1 is label:probability
          A cell that begins with = + - or @ has a ' before it, so that no spreadsheet takes it for a formula.

exit codes: 0 done, 1 every image failed, 2 the command cannot run (an error message says why), 130 interrupted,
141 the reader of standard output closed it."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr predict``."""
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="FOLDER|FILE",
        help="folders, with all their sub-folders; image and video files; .csv lists of such files",
    )
    add_fields(parser, PredictOptions, "labels", labels="FILE|A,B,C", model="MODEL", method="SPEC")
    add_fields(parser, PredictOptions, truth="FILE.csv|FOLDER", prior="WORD|SHARES", unknown="X")
    add_prompt_options(parser)
    add_fields(
        parser,
        PredictOptions,
        batch_size="N",
        passes="N",
        top="N",
        every="N",
        column="NAME",
        out="FILE",
        html="FILE",
        state="FILE",
    )
    add_fields(parser, PredictOptions, adopt=None, reuse="X", watch="on|report|off")
    add_fields(parser.add_mutually_exclusive_group(), PredictOptions, resume=None, overwrite=None)
    parser.add_argument("-v", "--verbose", action="store_true", help="also print speed, values and files at the end")
    group = parser.add_argument_group("streams and clusters")
    add_fields(group, PredictOptions, stream_by="folder|REGEX")
    add = group.add_argument
    add(
        "--ray",
        nargs="?",
        const="local",
        metavar="ADDRESS",
        help="label the streams on a Ray cluster: at ADDRESS, auto for one that this machine belongs to, or (without "
        "an address) one that is started here for the time of the command. Needs pip install 'lmr[ray]'; images "
        "must have the same paths on all nodes, and --out and --state are folders that they share",
    )
    add_model_options(parser)


def run(options: argparse.Namespace) -> str | None:
    """Label the images and print a summary; return a complaint if every image failed."""
    from lmr.apps.predict.gallery import Answers, read_answers
    from lmr.apps.predict.results import print_bytes
    from lmr.apps.predict.taught import predict_taught
    from lmr.apps.predict.twice import predict_twice
    from lmr.apps.predict.verdict import describe_run

    given = read_dataclass(PredictOptions, options)
    if given.stream_by is not None:
        summary = _run_streams(options, given)
    else:
        if options.ray:
            raise LmrError("--ray is for streams; say with --stream-by which images belong to one stream.")
        with tempfile.TemporaryDirectory() as folder:  # the page is made from a file
            unnamed = given.html is not None and given.out is None and not given.resume
            chosen = replace(given, out=Path(folder) / "answers.jsonl") if unnamed else given
            summary = (predict_twice if given.truth is None else predict_taught)(options.sources, chosen)
            if given.html is not None and chosen.out is not None:
                Answers(list(read_answers(chosen.out))).write_html(given.html)
            if unnamed:
                print_bytes(Path(folder, "answers.jsonl").read_bytes())
                summary = replace(summary, out=None)
    print(f"lmr: {describe_run(summary, given, options.sources)}", file=sys.stderr)
    for sentence in filter(None, (str(summary) if options.verbose else summary.watch, summary.tally.precision)):
        print(f"lmr: {sentence}", file=sys.stderr)
    return summary.complaint


def _run_streams(options: argparse.Namespace, given: PredictOptions) -> PredictSummary:
    """Label streams here or on a cluster."""
    from lmr.apps.predict.streams import plan_streams, predict_streams

    plan = plan_streams(options.sources, given)
    if not options.ray:
        return predict_streams(plan)
    from lmr.cluster.ray_connection import connect
    from lmr.cluster.ray_predict import run_ray_predict

    with connect(options.ray) as ray:
        return run_ray_predict(ray, plan)
