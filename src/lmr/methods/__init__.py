"""The methods, one file each. Every file of this folder is imported here, so that a new one appears by itself."""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
