"""The optional package transformers: its import, and silence while it works."""

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
