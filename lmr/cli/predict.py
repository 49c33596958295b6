"""``lmr predict``: label pictures while adapting to them."""

from __future__ import annotations

import argparse
import sys

from lmr.cli.shared_options import MODEL_HELP, add_model_options, add_prompt_options, collect_options

DESCRIPTION = """\
Label pictures with your own class names, without training data. The model adapts to the pictures while it labels
them, batch by batch in a stable order (img2 before img10), so that noise, fog or a new camera cost less accuracy.
For photographs give --model a CLIP or SigLIP model, once downloaded no network is needed. The default is the small
model that comes with lmr, for trying things out: it knows 32x32 drawings of coloured shapes and 73 words.

One line per picture goes to --out as soon as its batch is done. A run that was interrupted or killed
continues with --resume and ends with exactly the lines it would have had. A picture that cannot be read gets a line
with an "error" and disturbs nothing."""

EXAMPLES = """\
examples:
  label photographs with CLIP, class names from a file with one per line:
    lmr predict photos --labels names.txt --model openai/clip-vit-base-patch16 --out photos.jsonl
  label a folder of drawings, three best classes each:
    lmr predict drawings --labels "red circle,blue star,green ring" --top 3 --out drawings.jsonl
  your own fine-tuned checkpoint, with a prompt set of your own:
    lmr predict photos --labels names.txt --model tuned.pt --architecture ViT-B-16-quickgelu \\
        --prompts prompts.json --out tuned.jsonl
  a table for a spreadsheet:
    lmr predict photos --labels names.txt --out photos.csv
  it was interrupted; continue:
    lmr predict photos --labels names.txt --out photos.csv --resume
  every day a new folder, and tomorrow knows what today learnt:
    lmr predict monday  --labels names.txt --state camera.state --out monday.jsonl
    lmr predict tuesday --labels names.txt --state camera.state --out tuesday.jsonl
  the same model without adaptation, to compare:
    lmr predict photos --labels names.txt --method zeroshot --out plain.jsonl

lines:
  .jsonl  {"path": ..., "label": ..., "probability": ..., "top": [[label, probability], ...]}
          {"path": ..., "error": ...}
  .csv    path,label,probability,top1,...,topN,error   where top1 is label:probability

exit codes: 0 done, 2 something does not fit (a sentence says what), 130 interrupted, 141 the reader of
standard output has gone."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``lmr predict``."""
    add = parser.add_argument
    add("sources", nargs="+", metavar="FOLDER|FILE", help="folders (searched to the bottom) and picture files")
    add(
        "--labels",
        required=True,
        metavar="FILE|A,B,C",
        help="the class names: a file with one per line, with code<TAB>name lines or with JSON of either; or a,b,c",
    )
    add("--model", default="pocket", metavar="MODEL", help=f"{MODEL_HELP} (default: %(default)s, which comes with lmr)")
    add("--method", default="lmr", metavar="SPEC", help='how to adapt, as in "lmr(lr=5e-4)" (default: %(default)s)')
    add_prompt_options(parser)
    add("--batch-size", type=int, default=64, metavar="N", help="pictures per adaptation step (default: %(default)s)")
    add("--top", type=int, default=5, metavar="N", help="classes to list for each picture (default: %(default)s)")
    add("--out", metavar="FILE", help="where the lines go: FILE.jsonl or FILE.csv (default: JSON lines on the screen)")
    add(
        "--state",
        metavar="FILE",
        help="keep what was learnt in this file: read at the start if it exists, written after every batch",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--resume",
        action="store_true",
        help="continue an interrupted run: give the same command again with --resume; with --state it "
        "also adds the pictures that are new since a run ended",
    )
    what.add_argument("--overwrite", action="store_true", help="replace --out if it exists (otherwise it is refused)")
    add_model_options(parser)


def run(options: argparse.Namespace) -> None:
    """Label the images and print a summary."""
    from lmr.apps.predict.predict import predict_images

    summary = predict_images(options.sources, options.labels, **collect_options(options, "sources", "labels"))
    print(f"lmr: {summary}", file=sys.stderr)
