"""What there is: methods with their arguments and presets, and models."""

from __future__ import annotations

import inspect
import textwrap

from lmr.core.method import Method, list_arguments
from lmr.core.registry import find_method, list_methods
from lmr.core.spec import format_spec
from lmr.models import list_models


def describe_everything() -> str:
    """The text of ``lmr list``."""
    parts = ["METHODS (use as --method or in lmr.create; every argument has the default shown)"]
    parts += [describe_method(find_method(name)) for name in list_methods()]
    parts += ["MODELS (use as --model or in lmr.load; so can any folder, file or hub name of a CLIP or SigLIP model)"]
    models = list_models()
    wide = max(map(len, models))
    parts += ["\n".join(f"  {name:<{wide}}  {line}" for name, line in models.items())]
    return "\n\n".join(parts)


def describe_method(method: type[Method]) -> str:
    """Signature, one line and presets of a method."""
    defaults = {key: getattr(method, key) for key in list_arguments(method)}
    signature = textwrap.fill(
        format_spec(method.name, defaults), width=100, initial_indent="  ", subsequent_indent="      "
    )
    line = (inspect.getdoc(method) or "").splitlines()[0]
    lines = [signature, f"      {line}"]
    sources = {preset.source for preset in method.presets.values()}
    for name, preset in method.presets.items():
        values = ", ".join(f"{key}={value!r}" for key, value in preset.values.items()) or "as above"
        source = "" if len(sources) == 1 else f"  ({preset.source})"
        lines.append(f"      preset {name}: {values}; batches of {preset.batch_size}{source}")
    if len(sources) == 1:
        lines.append(f"      source of the presets: {sources.pop()}")
    return "\n".join(lines)
