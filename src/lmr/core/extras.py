"""Import of optional packages: what is missing, and which extra of lmr installs it."""

from __future__ import annotations

import importlib
from types import ModuleType

from lmr.core.errors import LmrError


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Return an optional module, or raise an LmrError that names the extra to install.

    ``purpose`` is what needs it, as the beginning of the error message, such as "A report".
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = error.name or module  # a module that is there may lack one of its own
        package = module.partition(".")[0]
        if missing.partition(".")[0] != package:
            package = f"{package}, which fails to import ({error})"
        raise LmrError(f"{purpose} needs {package}; install it with: pip install 'lmr[{extra}]'") from error
