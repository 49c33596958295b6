"""Run an experiment as a command: ``python -m lab.NAME``.

Experiments are not commands of ``lmr``, but behave like them: the same help, the same exit codes, errors as sentences.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from lmr.core.errors import LmrError
from lmr.core.log import show_warnings


def build_parser(name: str, description: str, examples: str = "") -> argparse.ArgumentParser:
    """Return a parser for ``python -m lab.NAME`` that prints description and examples as they are written."""
    return argparse.ArgumentParser(
        prog=f"python -m lab.{name}",
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        conflict_handler="resolve",  # an experiment may have the options of a command, some of them changed
    )


def run_command(
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace], str | None],
    argv: Sequence[str] | None = None,
) -> int:
    """Parse the arguments, call ``run`` with them and return the exit code.

    0: done. 1: done, but ``run`` returned a complaint, which is printed. 2: an LmrError or OSError, which is printed as
    a sentence. 130: interrupted. --help and wrong options raise SystemExit, as argparse does.
    """
    options = parser.parse_args(argv)
    try:
        with show_warnings():
            complaint = run(options)
    except (LmrError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted.", file=sys.stderr)
        return 130
    if complaint:
        print(f"{parser.prog}: {complaint}", file=sys.stderr)
        return 1
    return 0
