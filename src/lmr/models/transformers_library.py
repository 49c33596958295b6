"""The package transformers: silence while it works, its errors in one line, and what describes its models.

It is imported where it is needed, as that takes seconds; ``import lmr`` and the embedded model do without it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from lmr.models.preprocessing import Preprocessing

_MODULES = r"(transformers|tokenizers|sentencepiece|google|huggingface_hub)(\.|$)"


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


def shorten_error(error: BaseException) -> str:
    """Return the first sentence of an error message, at most 200 characters, or the error's type."""
    line = str(error).strip().partition("\n")[0]
    return line.partition(". ")[0].removesuffix(".")[:200] or type(error).__name__


def write_parts(folder: Path, *parts: Any) -> None:
    """Write the files of a model, of an image processor and of a tokenizer of transformers."""
    with quiet_transformers():
        for part in parts:
            part.save_pretrained(str(folder))


def describe_model(format: str, config: Any, preprocessing: Preprocessing, tokenizer: Any) -> dict[str, str]:
    """Return the facts of a model of transformers under their titles."""
    text = config.text_config
    image_activation, text_activation = config.vision_config.hidden_act, text.hidden_act
    both = image_activation if image_activation == text_activation else f"{image_activation}, {text_activation} (text)"
    return {
        "format": format,
        "activation": both,
        "preprocessing": str(preprocessing),
        "tokenizer": f"{type(tokenizer).__name__}, {len(tokenizer)} tokens",
        "context": str(text.max_position_embeddings),
    }
