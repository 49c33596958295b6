"""``lmr completion``: shell completion of commands, options, their choices and files."""

from __future__ import annotations

import argparse
import re

DESCRIPTION = "Print a completion script for a shell: commands, options, the choices of options, and files."

EXAMPLES = """\
examples:
  bash, for this terminal:       eval "$(lmr completion bash)"
  bash, for good:                lmr completion bash >> ~/.bashrc
  zsh, in a folder of $fpath:    lmr completion zsh > ~/.zfunc/_lmr
  fish:                          lmr completion fish > ~/.config/fish/completions/lmr.fish
  tcsh:                          lmr completion tcsh >> ~/.tcshrc"""

SHELLS = ("bash", "zsh", "fish", "tcsh")
_FILES = re.compile("FILE|FOLDER|DIR|RUNS|SOURCE|STATE")  # in the metavar of an option that takes a path


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr completion``."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"one of: {', '.join(SHELLS)}")


def run(options: argparse.Namespace) -> None:
    """Print the script."""
    import shtab

    from lmr.cli.parser import COMMANDS, build_parser

    parser = build_parser(COMMANDS)
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for command in commands.choices.values():
        for action in command._actions:
            if action.choices is None and _FILES.search(str(action.metavar)):
                action.complete = shtab.FILE  # where shtab looks for it
    print(shtab.complete(parser, options.shell))
