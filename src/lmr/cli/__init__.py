"""The command ``lmr``: each command has a file that parses its options and calls one function; no logic lives here.

This file imports next to nothing, so that Ctrl-C is handled from the first moment on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from lmr.cli.interrupts import INTERRUPTED, Interrupts

# Modules of the extras in pyproject.toml: a command that lacks one names the extra to install.
EXTRAS = {
    "bench": ("scipy", "cv2", "pandas", "matplotlib", "jinja2"),
    "serve": ("fastapi", "pydantic", "uvicorn", "httptools", "multipart", "prometheus_client", "httpx"),
    "frost": ("imagecorruptions",),
    "parquet": ("pyarrow",),
    "ray": ("ray",),
}
ENDLESS = ("serve",)  # commands that only a signal ends


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; ``argv`` are its words, by default those of this process.

    0: done. 1: done, but the result is a complaint, such as a failed check. 2: the command cannot run; an error message
    on standard error says why. 130: interrupted by Ctrl-C or SIGTERM; 0 for a command that only a signal ends, as in
    ``lmr serve``. 141: the reader of standard output closed it.
    --help and wrong options raise SystemExit, as argparse does.
    """
    whole = argv is None
    if whole:
        _accept_any_text()
    words = sys.argv[1:] if argv is None else argv
    with Interrupts(whole, 0 if words and words[0] in ENDLESS else 130) as interrupts:
        try:
            message, code = _run(words)
        except KeyboardInterrupt as stop:
            message, code = str(stop) or INTERRUPTED, interrupts.code
        except Exception:
            if not interrupts.seen:
                raise
            message, code = INTERRUPTED, interrupts.code  # it came out of some library as another exception
    return _end(message, code)


def _run(words: Sequence[str]) -> tuple[str, int]:
    from lmr.cli.parser import parse
    from lmr.core.errors import LmrError
    from lmr.core.log import show_warnings

    options = parse(words)
    try:
        with show_warnings():
            complaint: str | None = options.run(options)
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        return "", 141
    except (LmrError, OSError) as error:
        return str(error), 2
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        for extra, modules in EXTRAS.items():
            if package in modules:
                return f"This command needs {package}; install it with: pip install 'lmr[{extra}]'", 2
        raise
    return complaint or "", 1 if complaint else 0


def _accept_any_text() -> None:
    """Print a character that a terminal cannot show as its code, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) == "strict":
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _end(message: str, code: int) -> int:
    """Print the message and flush standard output; where its reader closed it, keep Python's exit from failing."""
    if message:
        print(f"lmr: {message}", file=sys.stderr)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
    return code
