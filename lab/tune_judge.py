"""The quality of the choices of ``lmr tune``, measured afterwards with labels."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lab.command import build_parser, run_command
from lmr.apps.model_options import read_labels
from lmr.apps.tune.results import TuneResult, name_entries, show
from lmr.apps.tune.sources import TuneSource, open_sources
from lmr.apps.tune.tune import SHOWN, tune_images
from lmr.bench.table import format_table
from lmr.bench.tune.criteria import choose_best
from lmr.cli.shared_options import collect_options
from lmr.cli.tune import add_options
from lmr.core.errors import LmrError
from lmr.core.extras import require
from lmr.data.labelled import list_labelled
from lmr.data.streams import Stream

DESCRIPTION = """\
Run 'lmr tune', then read the labels and show how well each criterion ranks the entries, and how far the recommended one
is below the best. The labels are those of the plan's dataset, or the class sub-folders of a folder. Options are those
of 'lmr tune', whose finished streams in --out are not measured again."""

EXAMPLES = """\
examples:
  python -m lab.tune_judge tune-pocket-quick      drawings, four corruptions
  python -m lab.tune_judge tune-pocket            all 15
  python -m lab.tune_judge photo-quick --method lmr --over "lr=3e-4,1e-3,3e-3"
  python -m lab.tune_judge photos --labels "cat,dog,ship,truck" --over "lr=3e-4,1e-3,3e-3" """

POOR = 1.0  # points of regret above which a default is poor
LIMIT_WHERE_POOR = 0.5  # aim: the rule's mean regret there, in parts of the default's
LIMIT_WHERE_GOOD = 0.3  # aim: points that the rule may lose on average where the default is good

DEFAULT_CHOICE, RULE_CHOICE = "the default", "the rule"


@dataclass(frozen=True)
class StreamJudgement:
    """One stream: the accuracy of each entry in %, and of each chooser the entry it would take.

    A chooser is a criterion, which takes its largest score, the rule, or the default. ``spearman`` and ``kendall`` are
    the rank correlations of each criterion with accuracy.
    """

    accuracies: tuple[float, ...]
    choices: dict[str, int]
    spearman: dict[str, float]
    kendall: dict[str, float]

    def measure_regret(self, chooser: str) -> float:
        """Return the points of accuracy that a chooser's entry has less than the best one."""
        return max(self.accuracies) - self.accuracies[self.choices[chooser]]

    @property
    def is_poor(self) -> bool:
        """True if the default is more than a point below the best entry."""
        return self.measure_regret(DEFAULT_CHOICE) > POOR


@dataclass(frozen=True)
class ChooserLine:
    """A chooser over several streams: mean correlations (NaN for rule and default) and mean regrets in points.

    ``poor`` is the mean regret where the default is poor, ``lost`` what it has less than the default where that is
    good; NaN where there are no such streams.
    """

    chooser: str
    spearman: float
    kendall: float
    regret: float
    worst: float
    poor: float
    lost: float


def judge(
    scores: Sequence[Mapping[str, float]], accuracies: Sequence[float], recommended: int, default: int = 0
) -> StreamJudgement:
    """Compare the scores of all entries, by criterion, with their accuracies in %."""
    columns = {name: [score[name] for score in scores] for name in scores[0]}
    return StreamJudgement(
        tuple(accuracies),
        {name: choose_best(values, default) for name, values in columns.items()}
        | {RULE_CHOICE: recommended, DEFAULT_CHOICE: default},
        {name: correlate("spearman", values, accuracies) for name, values in columns.items()},
        {name: correlate("kendall", values, accuracies) for name, values in columns.items()},
    )


def summarise_choosers(judgements: Sequence[StreamJudgement]) -> list[ChooserLine]:
    """Return one line for every chooser."""
    return [_summarise(name, judgements) for name in judgements[0].choices]


def check_aims(lines: Sequence[ChooserLine]) -> dict[str, bool]:
    """Return whether the rule reaches each of the two aims; an aim about streams that did not occur is left out."""
    rule, default = (next(line for line in lines if line.chooser == name) for name in (RULE_CHOICE, DEFAULT_CHOICE))
    aims = {}
    if not math.isnan(rule.poor):
        aims["where the default is poor, at most half of its regret"] = rule.poor <= LIMIT_WHERE_POOR * default.poor
    if not math.isnan(rule.lost):
        aims[f"where the default is good, at most {LIMIT_WHERE_GOOD} points lost"] = rule.lost <= LIMIT_WHERE_GOOD
    return aims


def _summarise(chooser: str, judgements: Sequence[StreamJudgement]) -> ChooserLine:
    regrets = [judgement.measure_regret(chooser) for judgement in judgements]
    poor = [regret for regret, one in zip(regrets, judgements, strict=True) if one.is_poor]
    lost = [
        regret - one.measure_regret(DEFAULT_CHOICE)
        for regret, one in zip(regrets, judgements, strict=True)
        if not one.is_poor
    ]
    spearman = [one.spearman.get(chooser, math.nan) for one in judgements]
    kendall = [one.kendall.get(chooser, math.nan) for one in judgements]
    return ChooserLine(
        chooser, _average(spearman), _average(kendall), _average(regrets), max(regrets), _average(poor), _average(lost)
    )


def _average(values: Sequence[float]) -> float:
    """Return the mean without NaN; NaN if nothing is left."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


def correlate(kind: Literal["spearman", "kendall"], first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's or Kendall's (tau-b) rank correlation; NaN if one side is constant or has NaN."""
    sides = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if any(np.isnan(side).any() or side.min() == side.max() for side in sides):
        return math.nan
    stats = require("scipy.stats", "bench", "Judging a choice by labels")
    return float((stats.spearmanr if kind == "spearman" else stats.kendalltau)(*sides).statistic)


def judge_results(
    sources: Sequence[TuneSource], results: Sequence[TuneResult], find_labels: Callable[[TuneSource], NDArray[np.int64]]
) -> list[StreamJudgement]:
    """Compare the scores of every stream with the accuracies by its labels [N]."""
    judgements = []
    for source, result in zip(sources, results, strict=True):
        truth = find_labels(source)[result.places]
        accuracies = [float((np.array(one.labels) == truth).mean()) * 100 for one in result.entries]
        judgements.append(judge(result.scores, accuracies, result.recommended))
    return judgements


def find_labels(source: TuneSource, folders: Sequence[str] = (), names: Sequence[str] = ()) -> NDArray[np.int64]:
    """Return the class of every image: of the stream of a plan, or by the sub-folder of ``folders`` that it is in."""
    if isinstance(source.images, Stream):
        return source.images.labels
    known: dict[str, int] = {}
    for folder in folders:
        labelled = list_labelled(folder, names)
        known |= {os.path.abspath(path): label for path, label in zip(labelled.paths, labelled.labels, strict=True)}
    if missing := [path for path in source.images if os.path.abspath(path) not in known]:
        raise LmrError(
            f"Cannot judge: {str(missing[0])!r} is in no sub-folder that is named after a class; put the images of "
            "each class into a sub-folder."
        )
    return np.array([known[os.path.abspath(path)] for path in source.images], np.int64)


def format_judgement(judgements: Sequence[StreamJudgement]) -> str:
    """Return one line for every criterion, the rule and the default, and whether the rule reaches its aims."""
    lines = summarise_choosers(judgements)
    poor = sum(one.is_poor for one in judgements)
    good = len(judgements) - poor
    rows = [["chosen by", "Spearman", "Kendall", "regret", "worst", f"regret, poor ({poor})", f"lost, good ({good})"]]
    rows += [
        [line.chooser, *(show(value, 2) for value in (line.spearman, line.kendall, line.regret))]
        + [show(value, 2) for value in (line.worst, line.poor, line.lost)]
        for line in lines
    ]
    notes = [
        f"Means over {len(judgements)} streams. Spearman, Kendall: rank correlation with accuracy. Regret: points",
        f"below the best entry. Poor: streams whose default is more than {POOR:g} point below the best. Good: the",
        "others, with what is lost against the default.",
        *(f"{'Reached' if reached else 'Missed'}: {aim}." for aim, reached in check_aims(lines).items()),
    ]
    return "\n".join([format_table(rows), "", *notes])


def format_accuracies(result: TuneResult, judgement: StreamJudgement) -> str:
    """Return the accuracy of every entry on one stream."""
    pairs = zip(name_entries(result), judgement.accuracies, strict=True)
    return format_table([["entry", "accuracy"], *([label, show(accuracy, 1)] for label, accuracy in pairs)])


def run(options: argparse.Namespace) -> None:
    """Tune, judge and print the tables."""
    sources = open_sources(options.sources, **collect_options(options, "sources", "out"))
    report = tune_images(sources, options.out)
    print(report.describe(), end="\n\n")
    names = [] if options.labels is None else read_labels(options.labels)
    judgements = judge_results(sources, report.results, lambda source: find_labels(source, options.sources, names))
    if len(judgements) <= SHOWN:
        for result, judgement in zip(report.results, judgements, strict=True):
            print(f"{result.source}\n\n{format_accuracies(result, judgement)}", end="\n\n")
    print(format_judgement(judgements))


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``python -m lab.tune_judge`` and return its exit code."""
    parser = build_parser("tune_judge", DESCRIPTION, EXAMPLES)
    add_options(parser)
    return run_command(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
