"""``lmr predict``: label images while adapting to them."""

from __future__ import annotations

import argparse
import sys

from lmr.cli.shared_options import add_classifier_options, add_model_options, add_prompt_options, collect_options

DESCRIPTION = """\
Label images with your own class names, without training data. The model adapts to the images while it labels them,
batch by batch in a stable order (img2 before img10), so that noise, fog or a new camera cost less accuracy.

The default is the small model that comes with lmr. It sees photographs of any size at 32x32 pixels and knows 110 class
names, such as cat, ship and pickup truck; 'lmr doctor photo' lists them. For other names, or where details matter, give
--model a CLIP or SigLIP model; it is downloaded once.

One line per image is written to --out as soon as its batch is done. To resume a run that was interrupted or killed,
give the same command with --resume; the result is the same as without the interruption. An image that cannot be read
gets a line with an "error" and changes nothing else.

A video file is labelled frame by frame, and every line has the number of the frame and its time in seconds. Folders
are searched for images only: name videos one by one. A .csv or .parquet file is a list of paths, relative to its own
folder; a .csv file has a line of column names, or one path per line and nothing else."""

EXAMPLES = """\
examples:
  label a folder of photographs; nothing is downloaded:
    lmr predict photos --labels "cat,dog,ship,truck"
  any other words, with CLIP; the class names are in a file with one per line:
    lmr predict photos --labels names.txt --model openai/clip-vit-base-patch16 --out photos.jsonl
  your own fine-tuned checkpoint and prompt set:
    lmr predict photos --labels names.txt --model tuned.pt --architecture ViT-B-16-quickgelu \\
        --prompts prompts.json --out tuned.jsonl
  a table for a spreadsheet:
    lmr predict photos --labels names.txt --out photos.csv
  resume it after an interruption:
    lmr predict photos --labels names.txt --out photos.csv --resume
  a new folder every day, each run starting from what the last one learnt:
    lmr predict monday  --labels names.txt --state camera.state --out monday.jsonl
    lmr predict tuesday --labels names.txt --state camera.state --out tuesday.jsonl
  half the work of a step, for most of the gain:
    lmr predict photos --labels names.txt --budget 1.5 --out photos.jsonl
  a video, one frame per second of 25 frames:
    lmr predict street.mp4 --every 25 --labels names.txt --out street.jsonl
  the images that a table lists in its column "photo":
    lmr predict survey.csv --column photo --labels names.txt --out survey.jsonl
  the same model without adaptation, to compare:
    lmr predict photos --labels names.txt --method zeroshot --out plain.jsonl

lines:
  .jsonl  {"path": ..., "label": ..., "probability": ..., "top": [[label, probability], ...]}
          {"path": ..., "error": ...}
          {"path": ..., "frame": 50, "time": 2.0, ...}   for the frames of a video, counted from 0
  .csv    path,label,probability,top1,...,topN,error   where top1 is label:probability
          path,frame,time,label,...   if a video is among the sources
          Cells are written as they are. A spreadsheet may read one that begins with = + - or @ as a formula; where
          file names or labels come from others, import the columns as text, or write .jsonl.

exit codes: 0 done, 1 every image failed, 2 the command cannot run (an error message says why), 130 interrupted,
141 the reader of standard output closed it."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``lmr predict``."""
    add = parser.add_argument
    add(
        "sources",
        nargs="+",
        metavar="FOLDER|FILE",
        help="folders, with all their sub-folders; image and video files; .csv and .parquet lists of such files",
    )
    add_classifier_options(parser)
    add(
        "--method",
        default="lmr",
        metavar="SPEC",
        help='a method from "lmr list", as in "lmr(lr=5e-4)"; it has its values for the number of classes unless a '
        "preset is named (default: %(default)s)",
    )
    add(
        "--budget",
        type=float,
        metavar="X",
        help="spend at most X plain forwards per image: use the switch of the method that was measured to keep most "
        "of its gain within that (the published method takes about 3, the model alone 1)",
    )
    add_prompt_options(parser)
    add("--batch-size", type=int, default=64, metavar="N", help="images per adaptation step (default: %(default)s)")
    add("--top", type=int, default=5, metavar="N", help="classes to list for each image (default: %(default)s)")
    add("--every", type=int, default=1, metavar="N", help="label every N-th frame of a video (default: %(default)s)")
    add(
        "--column",
        metavar="NAME",
        help="the column of a list that has the paths (default: path, file_name, filename, file, image or image_path)",
    )
    add(
        "--out",
        metavar="FILE",
        help="write to FILE.jsonl or FILE.csv (default: JSON lines on standard output)",
    )
    add(
        "--state",
        metavar="FILE",
        help="keep what was learnt in this file: it is read at the start if it exists, and written after every batch",
    )
    add(
        "--watch",
        default="off",
        metavar="on|report|off",
        help="on: watch the adaptation without labels and roll it back when it goes wrong; report: only say so "
        "(default: %(default)s)",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--resume",
        action="store_true",
        help="resume an interrupted run; with --state, also label the images that were added since a run ended",
    )
    what.add_argument("--overwrite", action="store_true", help="replace --out if it exists (default: refuse to)")
    add_model_options(parser)


def run(options: argparse.Namespace) -> str | None:
    """Label the images and print a summary; what is returned is a complaint: every image failed."""
    from lmr.apps.predict.predict_images import predict_images

    summary = predict_images(options.sources, options.labels, **collect_options(options, "sources", "labels"))
    print(f"lmr: {summary}", file=sys.stderr)
    return summary.complaint
