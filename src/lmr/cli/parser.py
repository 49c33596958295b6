"""The parser of ``lmr``: a table of the commands, each filled in from its own file when it is chosen."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from typing import NamedTuple

from lmr.version import __version__


class Command(NamedTuple):
    """A line of ``lmr --help``, and the module that has the rest.

    The module holds DESCRIPTION, EXAMPLES, ``add_options(parser)`` and ``run(options)``, which returns None or a
    complaint. It imports nothing heavy before ``run`` is called.
    """

    help: str
    module: str


COMMANDS = {
    "demo": Command("see a small model lose accuracy and regain it by adapting", "demo"),
    "predict": Command("label a folder of images while adapting to it", "predict"),
    "serve": Command("serve a classifier that adapts to many streams, over HTTP", "serve"),
    "camera": Command("send the frames of a camera, a video or a folder to the service", "camera"),
    "export": Command("write an adapted model for transformers, to run without lmr", "export"),
    "doctor": Command("describe a model and check that it works", "doctor"),
    "tune": Command("choose the values of a method on unlabelled images", "tune"),
    "cost": Command("measure what a step of each method costs on this machine", "cost"),
    "fetch": Command("get a dataset, or check one", "fetch"),
    "bench": Command("run methods on benchmarks; resumes if interrupted", "bench"),
    "report": Command("make tables, figures and a web page from finished runs", "report"),
    "reproduce": Command("run a table of the paper and compare it with the published one", "reproduce"),
    "list": Command("show methods and models", "listing"),
    "completion": Command("print a completion script for bash, zsh or fish", "completion"),
}

EXAMPLES = """\
examples:
  lmr demo                                                    see what it does, in about two minutes
  lmr predict photos --labels "cat,dog,ship,truck"            label a folder with the model that comes with lmr
  lmr predict photos --labels names.txt --model openai/clip-vit-base-patch16 --out photos.jsonl
  lmr serve --labels names.txt                                a service over HTTP, with a live page
  lmr doctor openai/clip-vit-base-patch16                     what was loaded, and whether it works
  lmr cost --random ViT-B-16 --batch-size 16                  what a step costs on this machine
  lmr bench photo-quick && lmr report                         nine methods on five corruptions, then tables and figures
  lmr list                                                    methods and models
  lmr COMMAND --help                                          more about a command"""


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The options of one command; their ``run`` is the function that takes them."""
    chosen = next((word for word in words if word in COMMANDS), None)
    options, unknown = build_parser(chosen).parse_known_args(words)
    if unknown and chosen:  # the error names the command and shows its options
        build_command(chosen).error(f"unrecognized arguments: {' '.join(unknown)}")
    return options


def build_parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """The parser with the names of all commands, and with the options of one."""
    parser = argparse.ArgumentParser(
        prog="lmr",
        description="Keep a zero-shot image classifier accurate while the images it sees drift.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"lmr {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        made = subparsers.add_parser(name, help=command.help, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == chosen:
            _fill(made, command)
    return parser


def build_command(name: str) -> argparse.ArgumentParser:
    """The parser of one command alone."""
    parser = argparse.ArgumentParser(prog=f"lmr {name}", formatter_class=argparse.RawDescriptionHelpFormatter)
    _fill(parser, COMMANDS[name])
    return parser


def _fill(parser: argparse.ArgumentParser, command: Command) -> None:
    module = importlib.import_module(f"lmr.cli.{command.module}")
    parser.description, parser.epilog = module.DESCRIPTION, module.EXAMPLES
    module.add_options(parser)
    parser.set_defaults(run=module.run)
