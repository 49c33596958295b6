"""``lmr export``: write an adapted model as a Hugging Face folder."""

from __future__ import annotations

import argparse
import sys

from lmr.bench.plans.choices import DTYPES
from lmr.cli.shared_options import DEFAULT_MODEL, MODEL_HELP, add_prompt_options, read_dataclass

DESCRIPTION = """\
Write an adapted model as a folder that transformers opens without lmr: the model with its adapted norms, its
preprocessing and its tokenizer, and the classes: prototypes and bias in classes.safetensors, and names, prompts, bias
and origin in classes.json.

The folder is compared with lmr's own answers before it is put in its place. Methods whose answer needs more than norms,
prototypes and a bias, and the models that come with lmr, cannot be exported; an error message says why."""

EXAMPLES = """\
examples:
  lmr predict photos --labels names.txt --model openai/clip-vit-base-patch16 --state camera.state --out photos.jsonl
  lmr export camera.state --model openai/clip-vit-base-patch16 --out camera
  one camera of a state of several streams:
    lmr export cameras.state --labels names.txt --model ViT-B-16 --stream 7 --out camera-7   (written by method.save)

In Python, CLIPModel.from_pretrained("camera") and CLIPProcessor.from_pretrained("camera") open it.

exit codes: 0 done, 2 the command cannot run (an error message says why; nothing is written)."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr export``."""
    add = parser.add_argument
    add("state", metavar="STATE", help="a state file, as lmr predict --state and method.save write it")
    add(
        "--labels",
        metavar="FILE|A,B,C",
        help="the class names the state was made with: a file, as lmr predict reads it, or a,b,c (default: those that "
        "a state of lmr predict notes, with its templates)",
    )
    add("--out", required=True, metavar="FOLDER", help="the folder to write; it must not exist")
    add("--model", default=DEFAULT_MODEL, metavar="MODEL", help=MODEL_HELP)
    add_prompt_options(parser)
    add("--stream", type=int, metavar="N", help="the stream to export, from 0 on, where the state holds several")
    add("--overwrite", action="store_true", help="replace --out if it is an earlier export (default: refuse to)")
    add(
        "--method",
        metavar="FILE.py:NAME",
        help="only for a method in a file of your own; other states name their method",
    )
    group = parser.add_argument_group("about the model")
    group.add_argument("--architecture", metavar="NAME", help="for a file that does not name its architecture")
    group.add_argument("--dtype", choices=DTYPES, help="the type the state was made with (default: float32)")


def run(options: argparse.Namespace) -> None:
    """Write the folder and print where it is."""
    from lmr.apps.export import ExportOptions, export_state

    summary = export_state(options.state, options.out, read_dataclass(ExportOptions, options))
    print(f"lmr: {summary}", file=sys.stderr)
