"""``lmr export``: write an adapted model as a Hugging Face folder."""

from __future__ import annotations

import argparse
import sys

from lmr.apps.options import DEFAULT_MODEL, ExportOptions
from lmr.cli.shared_options import MODEL_HELP, add_fields, add_prompt_options, read_dataclass

DESCRIPTION = """\
Write an adapted model as a folder that transformers opens without lmr. It holds the model with its adapted norms, its
preprocessing and its tokenizer. The classes are beside it: prototypes and bias in classes.safetensors; names, prompts,
bias and origin in classes.json.

The result is compared with lmr's own answers before it is put in its place. Methods whose answer needs more than norms,
prototypes and a bias cannot be exported, nor can the model that comes with lmr. An error message says why."""

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
    add_fields(parser, ExportOptions, labels="FILE|A,B,C")
    add("--out", required=True, metavar="FOLDER", help="the folder to write, which must not exist")
    add("--model", default=DEFAULT_MODEL, metavar="MODEL", help=MODEL_HELP)
    add_prompt_options(parser)
    add_fields(parser, ExportOptions, stream="N", method="FILE.py:NAME")
    add_fields(parser.add_argument_group("about the model"), ExportOptions, dtype=None)


def run(options: argparse.Namespace) -> None:
    """Write the folder and print where it is."""
    from lmr.apps.export import export_state

    summary = export_state(options.state, options.out, read_dataclass(ExportOptions, options))
    print(f"lmr: {summary}", file=sys.stderr)
