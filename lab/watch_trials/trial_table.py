"""The results of trials as a table, and what they say of false alarms as a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from lab.watch_trials.trial_run import TrialResult

HEAD = """\
| stream | method | zero-shot | plain | watched | reset | noticed | acted \
| below: plain | watched | reset | alarms | rollbacks |
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"""


def format_results(results: Sequence[TrialResult]) -> str:
    """The results as a Markdown table, accuracies in %; below it the false alarms of all healthy streams."""
    lines = [HEAD]
    for one in results:
        accuracies = [f"{100 * value:.1f}" for value in (one.zero_shot, one.plain, one.watched, one.reset)]
        times = ["–" if value is None else str(value) for value in (one.detected, one.acted)]
        counts = (one.plain_below, one.below, one.reset_below, one.suspicions, one.rollbacks)
        name = one.trial.name + (" (healthy)" if one.healthy else "")
        lines.append(_join([name, one.trial.method, *accuracies, *times, *(str(value) for value in counts)]))
    healthy = [one for one in results if one.healthy]
    if healthy:
        steps, lost = sum(one.steps for one in healthy), max(one.plain - one.watched for one in healthy)
        lines += ["", (
            f"Healthy streams, {steps} steps: {sum(one.suspicions for one in healthy)} false alarms, "
            f"{sum(one.rollbacks for one in healthy)} false rollbacks, at most {max(100 * lost, 0):.1f} points lost."
        )]  # fmt: skip
    return "\n".join(lines)


def _join(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
