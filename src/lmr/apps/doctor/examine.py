"""``lmr doctor``: describe a model and check it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from lmr.apps.doctor.checks import Check, choose_texts, open_photographs, run_checks
from lmr.apps.model_options import read_labels
from lmr.apps.options import DEFAULT_MODEL, DoctorOptions
from lmr.core.card import Tower
from lmr.core.errors import LmrError
from lmr.core.norms import NormBank
from lmr.core.placement import digest_tensors
from lmr.models import Backbone
from lmr.models.towers.image import VisionTower
from lmr.models.towers.text import TextTower

_WIDTH = 110  # columns


@dataclass(frozen=True)
class DoctorReport:
    """A description of the model and its checks."""

    model: Mapping[str, str]
    checks: tuple[Check, ...]

    @property
    def failed(self) -> list[str]:
        """The titles of the checks that failed."""
        return [check.title for check in self.checks if not check.passed]

    @property
    def complaint(self) -> str | None:
        """An error message that names the checks that failed; None if all passed."""
        return f"{len(self.failed)} of the checks failed: {'; '.join(self.failed)}." if self.failed else None

    def __str__(self) -> str:
        return "\n".join([format_facts(self.model), "", "SELF-CHECK", *map(str, self.checks)])


def examine(model: str | Backbone = DEFAULT_MODEL, options: DoctorOptions | None = None) -> DoctorReport:
    """Load a model, describe it and check it.

    Raises LmrError for a model that cannot be read; a failed check is in the report.
    """
    options = options or DoctorOptions()
    names = None if options.labels is None else read_labels(options.labels)
    backbone = model if isinstance(model, Backbone) else options.load(model)
    texts = choose_texts(backbone, names)
    return DoctorReport(describe_model(backbone, texts), tuple(run_checks(backbone, texts, open_photographs())))


def describe_model(backbone: Backbone, texts: Sequence[str]) -> dict[str, str]:
    """Return titles and texts of all that is known about a model; ``texts`` are some that it can read."""
    side = backbone.text_side(list(texts))
    device, dtype = backbone.placement
    towers = {Tower.IMAGE: backbone.encoder} | ({} if side is None else {Tower.TEXT: side.tower})
    try:
        adapted = f"{NormBank(backbone.encoder).size:,} parameters of layer norms"
    except LmrError:
        adapted = "none, it has no layer norms"
    sizes = {f"{which.value} tower": _describe_sizes(tower) for which, tower in towers.items()}
    counts = (f"{which.value} {sum(p.numel() for p in tower.parameters()):,}" for which, tower in towers.items())
    digests = (f"{which.value} {digest_tensors(tower.state_dict())[:12]}" for which, tower in towers.items())
    place, bias = f"{str(dtype).removeprefix('torch.')} on {device}", backbone.logit_bias
    return {
        "name": backbone.name,
        **backbone.facts,
        **{title: text for title, text in sizes.items() if text},
        "input": f"{' x '.join(map(str, backbone.input_shape))}, {place}",
        "parameters": ", ".join(counts),
        "adapted": adapted,
        "logit scale": f"{backbone.logit_scale:.4g}" + (f", bias {bias:.4g}" if bias else ""),
        "weights": ", ".join(digests) + " (SHA-256, first 12 digits)",
    }


def _describe_sizes(tower: nn.Module) -> str:
    """Return depth and width of a tower of ours; empty for others."""
    if not isinstance(tower, VisionTower | TextTower):
        return ""
    config = tower.config
    sizes = f"{config.depth} blocks, {config.width} wide, {config.heads} heads, {config.features} features"
    if isinstance(tower, TextTower):
        return f"at most {tower.config.context} tokens, {sizes}"
    resolution, patch = tower.config.resolution, tower.config.patch
    side = resolution // patch
    cut = f" in patches of {patch}" if tower.is_clip else f", by convolutions to {side} x {side} tokens"
    return f"{resolution} pixels{cut}, {sizes}"


def format_facts(facts: Mapping[str, str]) -> str:
    """Return the facts about a model, one title and its text per line."""
    wide = max(map(len, facts))
    lines = ["MODEL"]
    for title, text in facts.items():
        begin = f"  {title:<{wide}}  "
        lines.append(textwrap.fill(text, _WIDTH, initial_indent=begin, subsequent_indent=" " * len(begin)))
    return "\n".join(lines)
