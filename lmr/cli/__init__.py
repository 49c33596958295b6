"""The command ``lmr``: each command parses its options and calls one function; no logic lives here."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NoReturn

from lmr.cli.parser import parse
from lmr.core.errors import LmrError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. 0: done; 1: done, with a complaint; 2: a message says why not; 130: interrupted."""
    options = parse(sys.argv[1:] if argv is None else argv)
    try:
        with _stop_politely():
            complaint: str | None = options.run(options)
    except KeyboardInterrupt as stop:
        return _end(str(stop) or "Interrupted.", 130)
    except BrokenPipeError:  # the reader, for example head, has seen enough
        return _end("", 141)
    except (LmrError, OSError) as error:
        return _end(str(error), 2)
    return _end(complaint or "", 1 if complaint else 0)


@contextlib.contextmanager
def _stop_politely() -> Iterator[None]:
    """Let a request to terminate (SIGTERM) do what Ctrl-C does."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread: signals are somebody else's
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _end(message: str, code: int) -> int:
    """Say the last word and leave standard output so that Python's own exit cannot complain about it."""
    if message:
        print(f"lmr: {message}", file=sys.stderr)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
    return code
