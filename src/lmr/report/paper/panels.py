"""The panels of the paper's figures 1 and 3, and one of our own: what each needs, and which plan runs that."""

from __future__ import annotations

import enum
from dataclasses import dataclass

DELTA = 0.03  # the paper's width of the protected set, in cosine units
SHIFT = "frost"  # the paper's representative shift
REPRESENTATIVE = ("gaussian_noise", "defocus_blur", "frost", "contrast")
# 1d compares these two configurations, which differ in the adaptive margin.
WITHOUT_MARGIN, WITH_MARGIN = ("PMR only", "lmr(am=False, bc=False)"), ("PMR + AM", "lmr(bc=False)")


class Panel(enum.Enum):
    """A panel; its value is its number in the paper, or a word for one that is not in the paper."""

    GAPS = "1a"
    MARGINS = "1b"
    MASS = "1c"
    LATE_SHARES = "1d"
    BATCH_SIZE = "3a"
    NEGATIVES = "3b"
    DELTA = "3c"
    RECOVERY = "3d"
    CLASSES = "classes"  # not in the paper, so that no report misses it
    FRONTIER = "frontier"  # ours: drawn where switches of a method were run, and not missed elsewhere


@dataclass(frozen=True)
class Need:
    """What a panel is drawn from, and the plan that runs it; each plan also has a form without download, photo-…."""

    what: str
    plan: str


NEEDS = {
    Panel.GAPS: Need("zero-shot's answers to single images of a corruption", "failure-patterns"),
    Panel.MARGINS: Need("zero-shot's answers at several severities", "failure-patterns"),
    Panel.MASS: Need("zero-shot's answers to the same images clean and corrupted", "failure-patterns"),
    Panel.LATE_SHARES: Need("LMR with PMR alone and with PMR and AM", "failure-patterns"),
    Panel.BATCH_SIZE: Need("methods with several batch sizes", "ablation-batch-size"),
    Panel.NEGATIVES: Need("LMR with several numbers of negatives", "ablation-negatives"),
    Panel.DELTA: Need("LMR with several values of delta", "ablation-delta"),
    Panel.RECOVERY: Need("at least two methods with recovery measured", "margin-recovery"),
}


@dataclass(frozen=True)
class SweepWords:
    """How tables and figures speak of a sweep."""

    title: str
    axis: str
    caption: str


SWEEPS = {  # by the name that the method gives its sweep
    "delta": SweepWords(
        "accuracy (%) against δ, the width of the protected set", "δ, width of the protected set (cosine)", "δ"
    ),
    "negatives": SweepWords(
        "accuracy (%) with positives by gap or the top class alone, against the number of hard negatives",
        "hard negatives",
        "the number of hard negatives",
    ),
}
SWEPT_PANELS = {"negatives": Panel.NEGATIVES, "delta": Panel.DELTA}
VALUE_WORDS = {"gap": "by gap", "top1": "top class only"}  # of the argument that separates the lines of a sweep
