"""The tables of ``lmr tune``: as text for the screen, and as one csv file."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from lmr.apps.tune.tune_result import TuneResult
from lmr.bench.tune.judge import POOR, StreamJudgement, check_aims, summarise_choosers
from lmr.bench.tune.rule import RULE
from lmr.core.spec import parse_spec


def format_result(result: TuneResult, judgement: StreamJudgement | None = None) -> str:
    """The scores of all candidates on one stream, the recommended one marked, and its spec string."""
    names = list(result.scores[0])
    rows = [["", "candidate", *names, *(["accuracy"] if judgement else [])]]
    for number, (label, scores) in enumerate(zip(name_candidates(result), result.scores, strict=True)):
        row = [">" if number == result.recommended else "", label, *(_show(scores[name], 4) for name in names)]
        rows.append(row + ([_show(judgement.accuracies[number], 1)] if judgement else []))
    unreadable = f", {result.unreadable} more could not be read" if result.unreadable else ""
    return "\n".join(
        [
            f"{result.source}: {len(result.places)} images{unreadable}",
            "",
            align_columns(rows, texts=2),
            "",
            f"Rule: {RULE}",
            f"Recommended: {result.candidates[result.recommended].spec}",
        ]
    )


def describe_result(result: TuneResult, judgement: StreamJudgement | None = None) -> dict[str, Any]:
    """A result in plain values, for files."""
    labels = name_candidates(result)
    candidates = [
        {"candidate": label, "spec": one.spec, "recommended": number == result.recommended, "scores": one.scores}
        | ({"accuracy": judgement.accuracies[number]} if judgement else {})
        for number, (label, one) in enumerate(zip(labels, result.candidates, strict=True))
    ]
    return {
        "source": result.source,
        "images": len(result.places),
        "unreadable": result.unreadable,
        "recommended": result.candidates[result.recommended].spec,
        "default": result.candidates[0].spec,
        "candidates": candidates,
    }


def format_judgement(judgements: Sequence[StreamJudgement]) -> str:
    """One line for every criterion, the rule and the default, and whether the rule reaches its aims."""
    lines = summarise_choosers(judgements)
    poor = sum(one.is_poor for one in judgements)
    good = len(judgements) - poor
    rows = [["chosen by", "Spearman", "Kendall", "regret", "worst", f"regret, poor ({poor})", f"lost, good ({good})"]]
    rows += [
        [line.chooser, *(_show(value, 2) for value in (line.spearman, line.kendall, line.regret))]
        + [_show(value, 2) for value in (line.worst, line.poor, line.lost)]
        for line in lines
    ]
    notes = [
        f"Means over {len(judgements)} streams. Spearman, Kendall: rank correlation with accuracy. Regret: points",
        f"below the best candidate. Poor: streams whose default is more than {POOR:g} point below the best. Good: the",
        "others, with what is lost against the default.",
        *(f"{'Reached' if reached else 'Missed'}: {aim}." for aim, reached in check_aims(lines).items()),
    ]
    return "\n".join([align_columns(rows), "", *notes])


def format_csv(described: Sequence[Mapping[str, Any]]) -> str:
    """One line for every candidate of every stream, as ``describe_result`` gives them."""
    rows = [
        {"source": one["source"], "images": one["images"]}
        | {key: value for key, value in candidate.items() if key != "scores"}
        | candidate["scores"]
        for one in described
        for candidate in one["candidates"]
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def name_candidates(result: TuneResult) -> list[str]:
    """What tells candidates apart: the arguments in which they differ; names of methods if these differ too."""
    parsed = [parse_spec(candidate.spec) for candidate in result.candidates]
    several = len({name for name, _ in parsed}) > 1
    keys = dict.fromkeys(key for _, values in parsed for key in values)
    varied = [key for key in keys if len({repr(values.get(key)) for _, values in parsed}) > 1]
    labels = []
    for number, (name, values) in enumerate(parsed):
        words = ", ".join(f"{key}={values[key]}" for key in varied if key in values)
        words = f"{name}({words})" if several else words
        labels.append(words if number else f"{words} (default)")
    return labels


def align_columns(rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """Rows as text with a line under the first; all columns but the first ``texts`` are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = zip(row, widths, strict=True)
        lines.append("  ".join(f"{c:<{w}}" if k < texts else f"{c:>{w}}" for k, (c, w) in enumerate(cells)).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def _show(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
