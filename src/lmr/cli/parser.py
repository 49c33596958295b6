"""The parser of ``lmr``: a table of the commands, each of which is parsed by its own file when it is chosen."""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

from lmr.version import __version__


class Command(NamedTuple):
    """A line of ``lmr --help``.

    The module of the same name holds DESCRIPTION, EXAMPLES, ``add_options(parser)`` and ``run(options)``, which returns
    None or a complaint. It imports nothing heavy before ``run`` is called.
    """

    group: str
    help: str


USE, RESEARCH, SYSTEM = "use", "research", "system"
COMMANDS = {
    "demo": Command(USE, "see a small model lose accuracy and regain it by adapting"),
    "predict": Command(USE, "label a folder of images while adapting to it"),
    "label": Command(USE, "label a few images by hand, to correct and to judge a model"),
    "check": Command(USE, "see on labelled images whether adapting helps"),
    "serve": Command(USE, "serve a classifier that adapts to many streams, over HTTP"),
    "camera": Command(USE, "send the frames of a camera, a video or a folder to the service"),
    "export": Command(USE, "write an adapted model for transformers, to run without lmr"),
    "bench": Command(RESEARCH, "run methods on benchmarks; resumes if interrupted"),
    "report": Command(RESEARCH, "make tables, figures and a web page from finished runs"),
    "reproduce": Command(RESEARCH, "run a table of the paper and compare it with the published one"),
    "list": Command(SYSTEM, "show methods and models, and explain the arguments of a method"),
    "doctor": Command(SYSTEM, "describe a model and check that it works"),
    "fetch": Command(SYSTEM, "get a dataset, or check one"),
}
GROUPS = (USE, RESEARCH, SYSTEM)

DESCRIPTION = "Keep a zero-shot image classifier accurate while the images it sees drift."
EXAMPLES = """\
examples:
  lmr demo                                                    see what it does, in about two minutes
  lmr predict photos --labels "cat,dog,ship,truck"            label a folder with the model that comes with lmr
  lmr predict photos --labels names.txt --model openai/clip-vit-base-patch16 --out photos.jsonl
  lmr check labelled                                          does adapting help on my images?
  lmr serve --labels names.txt                                a service over HTTP, with a live page
  lmr doctor openai/clip-vit-base-patch16                     describe and check a model
  lmr bench photo-quick && lmr report                         nine methods on five corruptions, then tables and figures
  lmr list lmr                                                the arguments of a method, explained
  lmr COMMAND --help                                          more about a command"""


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the options of one command; their ``run`` is the function that takes them.

    Without words the help is printed. A wrong command or option raises SystemExit with the code 2.
    """
    chosen = words[0] if words else "--help"
    if chosen in COMMANDS:
        return build_command(chosen).parse_args(words[1:])
    if chosen in ("-h", "--help"):
        print(format_help())
    elif chosen == "--version":
        print(f"lmr {__version__}")
    else:
        near = difflib.get_close_matches(chosen, COMMANDS, n=1, cutoff=0.5)
        advice = f"Did you mean {near[0]!r}?" if near else "'lmr --help' lists the commands."
        print(f"lmr: There is no command {chosen!r}. {advice}", file=sys.stderr)
        raise SystemExit(2)
    raise SystemExit(0)


def format_help() -> str:
    """Return the usage, the commands by group and some examples."""
    parts = ["usage: lmr COMMAND ...", DESCRIPTION]
    for group in GROUPS:
        commands = [(name, command.help) for name, command in COMMANDS.items() if command.group == group]
        parts.append("\n".join([f"{group}:", *(f"  {name:<12}{text}" for name, text in commands)]))
    parts.append("options:\n  -h, --help  show this help\n  --version   show the version")
    return "\n\n".join([*parts, EXAMPLES])


def build_command(name: str) -> argparse.ArgumentParser:
    """Return the parser of one command."""
    module = importlib.import_module(f"lmr.cli.{name}")
    parser = argparse.ArgumentParser(
        prog=f"lmr {name}",
        description=module.DESCRIPTION,
        epilog=module.EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_options(parser)
    parser.set_defaults(run=module.run)
    return parser
