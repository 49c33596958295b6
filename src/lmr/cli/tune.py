"""``lmr tune``: choose a method's arguments on unlabelled images."""

from __future__ import annotations

import argparse

from lmr.apps.options import DEFAULT_MODEL
from lmr.cli.shared_options import MODEL_HELP, add_model_options, add_prompt_options, collect_options

DESCRIPTION = """\
Choose a method's arguments without labels. Every combination of values is an entry, and all entries adapt to the same
unlabelled images in one pass. Several label-free criteria score the answers (entropy, diversity, mutual information,
agreement with the frozen model), and a fixed rule recommends one entry.

Labels are never used. To resume a run that was stopped, give the same command again."""

EXAMPLES = """\
examples:
  which learning rate for my camera? the method's own, a third of it, three and ten times it:
    lmr tune photos --labels "cat,dog,ship,truck"
  which learning rate and width for my camera?
    lmr tune photos --labels "cat,dog,ship,truck" --over "lr=3e-4,1e-3,3e-3" "delta=0.02,0.03,0.05"
  another method, with CLIP:
    lmr tune photos --labels names.txt --model openai/clip-vit-base-patch16 --method tent --over "lr=1e-4,1e-3"
  your own values on the streams of a plan:
    lmr tune photo-quick --method lmr --over "lr=3e-4,1e-3,3e-3"

The order of a folder's images is shuffled, because class sub-folders would otherwise come one after the other;
--in-order keeps the order of their names, for the frames of a camera.

files in --out:
  scores.json, scores.csv   every score of every entry, and the recommended one
  streams/                  files to resume from"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr tune``."""
    add = parser.add_argument
    add("sources", nargs="+", metavar="FOLDER|PLAN", help="folders and image files, or one plan of 'lmr bench'")
    add("--labels", metavar="FILE|A,B,C", help="for a folder: the class names, as for lmr predict")
    add("--method", default="lmr", metavar="SPEC", help="the method whose values are tried (default: %(default)s)")
    add("--over", nargs="+", default=[], metavar="KEY=A,B", help='the values to try, such as "lr=3e-4,1e-3,3e-3": all '
        "combinations, and the method as it is (default: 0.3, 3 and 10 times its learning rate; for a plan: its "
        "methods)")  # fmt: skip
    add("--model", metavar="MODEL", help=MODEL_HELP.replace("%(default)s", DEFAULT_MODEL))
    add_prompt_options(parser)
    add("--batch-size", type=int, metavar="N", help="images per step (default: 64, or what the plan says)")
    add("--images", type=int, metavar="N", help="use at most N images (default: 2000, or what the plan says)")
    add("--in-order", action="store_true", help="take a folder's images in the order of their names")
    add("--out", default="lmr-tune", metavar="DIR", help="where scores are written (default: %(default)s)")
    add("--root", metavar="DIR", help="for a plan: where datasets are kept (default: $LMR_DATA, or ~/.cache/lmr/data)")
    add_model_options(parser)


def run(options: argparse.Namespace) -> None:
    """Try the entries and print the tables."""
    from lmr.apps.tune.sources import open_sources
    from lmr.apps.tune.tune import tune_images

    sources = open_sources(options.sources, **collect_options(options, "sources", "out"))
    print(tune_images(sources, options.out).describe())
