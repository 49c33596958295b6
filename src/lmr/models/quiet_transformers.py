"""Keep transformers from writing to the user's screen; what matters is checked here and said in our words."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

_MODULES = r"(transformers|tokenizers|sentencepiece|google|huggingface_hub)(\.|$)"


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No notices, progress bars and warnings of transformers; warnings from other code are shown as ever."""
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
