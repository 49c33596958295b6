"""Ctrl-C and SIGTERM while a command runs: one line and an exit code, 130, at any moment, also during imports.

A command that only a signal ends, such as ``lmr serve``, has done what it was asked to: its code is 0, also before it
has begun to serve. Until then it has nothing open in any import, so that a signal ends the process at once there too.

An exception that is raised inside the import of a C extension can come out as another one (ImportError, SystemError)
or be printed and lost. While a command imports its modules nothing is open yet, so a signal ends the process at once;
afterwards it raises KeyboardInterrupt and the command cleans up.
"""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType

INTERRUPTED = "Interrupted."
_HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep  # the command line


class Interrupts:
    """A context in which Ctrl-C and SIGTERM interrupt the command.

    With ``whole``, the command is all that this process does: Ctrl-C is handled here and ignored afterwards, as
    Python's own exit would print a traceback for it. Otherwise only SIGTERM is handled, while the command runs.
    """

    def __init__(self, whole: bool, code: int = 130) -> None:
        self.whole, self.code = whole, code
        self.seen = False
        self._before: signal._HANDLER = None

    def __enter__(self) -> Interrupts:
        try:
            # A signal that is ignored from outside, as under nohup, stays ignored.
            if self.whole and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, self._stop)
            self._before = signal.signal(signal.SIGTERM, self._stop)
        except ValueError:  # not the main thread: signals belong to the caller
            self.whole = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.whole:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        if self.whole and (_is_importing(frame) or (self.code == 0 and _is_in_import(frame))):
            os.write(2, f"lmr: {INTERRUPTED}\n".encode())
            os._exit(self.code)
        raise KeyboardInterrupt


def _is_in_import(frame: FrameType | None) -> bool:
    """Return whether any import is under way: an exception there may be printed and lost."""
    while frame is not None and "importlib" not in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether the command line itself is importing: its innermost frame called the import machinery."""
    called = None
    while frame is not None and not frame.f_code.co_filename.startswith(_HERE):
        called, frame = frame, frame.f_back
    return called is not None and frame is not None and "importlib" in called.f_code.co_filename
