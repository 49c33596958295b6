"""The optional package transformers: its import, silence while it works, and its errors in one line."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from lmr.core.extras import require

_MODULES = r"(transformers|tokenizers|sentencepiece|google|huggingface_hub)(\.|$)"


def import_transformers(purpose: str) -> Any:
    """Return transformers, or raise an LmrError that says what needs it and how to install it."""
    return require("transformers", "siglip", purpose)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide notices, progress bars and warnings of transformers; warnings of other code are shown."""
    logging: Any = import_module("transformers.utils.logging")
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=_MODULES)
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def shorten_error(error: Exception) -> str:
    """Return the first line of an error message, at most 200 characters, or the error's type."""
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__
