"""``lmr doctor``: describe a model and check that it works."""

from __future__ import annotations

import argparse

from lmr.apps.options import DEFAULT_MODEL, DoctorOptions
from lmr.cli.shared_options import MODEL_HELP, add_fields, add_model_options, read_dataclass

DESCRIPTION = """\
Show on one screen what was loaded (activation, preprocessing, how many parameters are adapted,
digests of the weights) and check that it works: features finite, of unit length and independent of the batch,
padding without influence, one adaptation step and its reset.

For the accuracy on your own labelled images, frozen and adapted, see 'lmr check'."""

EXAMPLES = """\
examples:
  lmr doctor                                 the embedded model, with the class names it knows
  lmr doctor openai/clip-vit-base-patch16

exit codes: 0 every check passed, 1 a check failed, 2 the command cannot run (an error message says why)."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr doctor``."""
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, metavar="MODEL", help=MODEL_HELP)
    add_fields(parser, DoctorOptions, labels="FILE|A,B,C")
    add_model_options(parser, DoctorOptions)


def run(options: argparse.Namespace) -> str | None:
    """Examine the model; return a complaint if a check failed."""
    from lmr.apps.doctor.examine import examine

    report = examine(options.model, read_dataclass(DoctorOptions, options))
    print(report)
    return report.complaint
