"""Draw what LMR sees in one image: its candidate classes, its hardest negatives, and its margin.

docs/how.md shows the figure: ``python -m lab.margins docs/margins.png``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lmr
from lab.command import build_parser, run_command
from lmr.core.errors import LmrError
from lmr.core.extras import require
from lmr.core.functional.margin import find_protected, measure_margin
from lmr.data.catalogue import open_dataset
from lmr.data.dataset import CLEAN

DESCRIPTION = """\
Draw the cosines of one photograph to the class names, clean and under Gaussian noise of severity 3: the candidate set,
the hardest negatives and the margin between them, as LMR measures them."""

EXAMPLES = """\
examples:
  python -m lab.margins margins.png
  python -m lab.margins margins.png --image 17"""


def run(options: argparse.Namespace) -> None:
    """Measure both margins of the image with the defaults of LMR, and draw them."""
    require("matplotlib", "bench", "The figure")
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    dataset, backbone = open_dataset("photo-c"), lmr.load()
    classifier = backbone.classifier(list(dataset.classes))
    values: dict[str, Any] = {
        name: field.default for name, field in lmr.find_method("lmr").__dataclass_fields__.items()
    }
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, (title, domain) in zip(axes, (("clean", CLEAN), ("Gaussian noise", "gaussian_noise")), strict=True):
        batch = backbone.preprocess(dataset.read(domain, 3, [options.image]))
        cosines = classifier.cosines(classifier.features(batch))
        logits = classifier.logits(cosines)
        protected = find_protected(cosines, values["delta"])
        margin, negatives = measure_margin(logits, cosines, protected, values["negatives"], values["eps"])
        order = cosines[0].argsort(descending=True).tolist()
        colours = {True: "#185cb0", False: "#c45414"}
        shown = [colours[bool(protected[0, c])] if protected[0, c] or negatives[0, c] else "#c9ced6" for c in order]
        axis.bar([dataset.classes[c] for c in order], cosines[0, order].tolist(), color=shown)
        axis.axhline(float(cosines.max()) - values["delta"], color="#20242a", linewidth=1, linestyle="--")
        axis.set_ylim(float(cosines.min()) - 0.02, float(cosines.max()) + 0.01)
        axis.set_title(f"{title}: margin {float(margin[0]):.1f}")
        axis.tick_params(axis="x", rotation=60)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("cosine to the class name")
    true = dataset.classes[int(dataset.labels(CLEAN)[options.image])]
    names = ("protected: within δ of the best", "hardest negatives", "other classes")
    patches = [Patch(color=c, label=n) for c, n in zip(("#185cb0", "#c45414", "#c9ced6"), names, strict=True)]
    figure.legend(handles=patches, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(f"A photograph of class {true!r}", fontsize=11)
    try:
        figure.savefig(options.out, dpi=110)
    except (OSError, ValueError) as error:
        raise LmrError(f"Cannot write {str(options.out)!r}: {error}.") from error
    print(f"Wrote {options.out}.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``python -m lab.margins`` and return its exit code."""
    parser = build_parser("margins", DESCRIPTION, EXAMPLES)
    parser.add_argument("out", type=Path, metavar="OUT.png", help="the PNG file to write")
    parser.add_argument("--image", type=int, default=3, metavar="N", help="number of the photograph (default: 3)")
    return run_command(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
