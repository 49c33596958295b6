"""The end of ``lmr predict``: a line on what was labelled and what adapting changed and why, and what to type next."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from lmr.apps.options import AnyPath
from lmr.apps.predict.options import PredictOptions
from lmr.apps.predict.results import PredictSummary
from lmr.core.answer import UNKNOWN
from lmr.core.foreign_text import make_printable
from lmr.core.functional.look import EMPTY, FEWEST, Look, describe_look

MANY = 0.5  # of the answers in one class are worth a word, if that is twice an equal share at least
UNSURE = 0.7  # mean confidence below which images that look ordinary may be bad
ENOUGH = 20  # answers from which shares mean something


def describe_run(summary: PredictSummary, options: PredictOptions, sources: Sequence[AnyPath]) -> str:
    """Return the line for a run, and below it a command to copy, with the options as they were given, not resolved."""
    counted = _count(summary)
    if summary.taught is not None or summary.images == summary.errors:
        return " ".join(filter(None, (counted, summary.taught)))
    tally = summary.tally
    found = describe_look(tally.looks, ordered=not summary.earlier and options.stream_by is None)
    empty, looks = tally.looks.count(EMPTY), len(tally.looks)
    said = [counted]
    if empty:
        said.append(f"There is no picture in {empty} of {looks}: they are of one colour.")
    if tally.images > tally.failed and (not empty or empty < looks):
        said.append(
            _describe_images(summary, found, "The others" if empty else "The new ones" if summary.earlier else "They")
        )
        said += [] if empty else _describe_share(summary, options)
        said.append(_advise(summary, options, sources, bool(found) and not empty))
    return " ".join(filter(None, said))


def _count(summary: PredictSummary) -> str:
    good = summary.images - summary.errors
    many = "1 image" if summary.images == 1 else f"{summary.images} images"
    parts = [f"{good} of {many} labelled" if summary.errors else f"{many} labelled"]
    parts[0] += f" in {os.fspath(summary.out)}" if summary.out else ""
    if summary.earlier:
        parts.append(f"{summary.earlier} of them earlier")
    if summary.errors:
        parts.append(f"{summary.errors} could not be read")
    if summary.answers[UNKNOWN]:
        parts.append(f"{summary.answers[UNKNOWN]} unknown")
    return ", ".join(parts) + "."


def _describe_images(summary: PredictSummary, found: Sequence[Look], who: str) -> str:
    """Return how the images look, and what adapting has changed."""
    tally = summary.tally
    mean = tally.sureness / (tally.images - tally.failed)
    look = f"Mean confidence {_percent(mean)}"
    enough = len(tally.looks) - tally.looks.count(EMPTY) >= FEWEST
    if enough:
        look = f"{who} look {' and '.join(map(str, found)) or 'ordinary'} (mean confidence {_percent(mean)})"
        if not found and mean < UNSURE and EMPTY not in tally.looks:
            look += ", which is low: they may be bad in another way, or no class may fit"
    if tally.rests and not tally.adapted:
        why = "the answers did not become clearly less sure"
        if any(one.begin == 0 for one in found):
            why = "they were so from the first image on" if all(one.all for one in found) else "some were at the start"
        return f"{look}; nothing was adapted" + (f", because {why}." if enough else ".")
    if not tally.compared:
        return f"{look}."
    since = ""
    if tally.rests and tally.first_adapted is not None and tally.first_adapted > 1:
        since = f" the answers became less sure by image {tally.first_adapted}, and"
    when = " in two passes" if summary.passes == 2 else ""
    share = f"about {_percent(tally.differing / tally.compared)}" if tally.differing else "none"
    sample = f"({tally.differing} of a sample of {tally.compared})"
    return f"{look};{since} adapting{when} changed {share} of the answers {sample}."


def _describe_share(summary: PredictSummary, options: PredictOptions) -> list[str]:
    """Return a sentence where one class has most of the answers, as equal shares are wrong if it really has."""
    label, share = summary.most
    if summary.images < ENOUGH or share < max(MANY, 2 / summary.tally.classes):
        return []
    advice = "leave out" if options.prior == "uniform" else "do not use"
    most = f"{_percent(share)} of the answers are {make_printable(label)!r}"
    return [f"{most}: if that is plausible, {advice} --prior uniform."]


def _advise(summary: PredictSummary, options: PredictOptions, sources: Sequence[AnyPath], bad: bool) -> str:
    """Return what to type next, on a line of its own."""
    tally, command = summary.tally, _suggest_label(options, sources)
    helped = bool(tally.differing) if tally.compared else tally.adapted > 0
    equal = "If all classes are about equally frequent, add --prior uniform." if bad and tally.rests else ""
    if not command:
        return "" if helped else equal
    why = "To see how accurate the answers are,"
    if helped:
        equal, why = "", "To see whether that helped,"
    elif bad:
        why = "Otherwise," if equal else "To correct the answers,"
    return f"{equal} {why} label 20 images:\n  {command}".strip()


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _suggest_label(options: PredictOptions, sources: Sequence[AnyPath]) -> str:
    """Return the command that labels images of a folder; empty where the sources are not one."""
    return write_command("label", sources, options) if len(sources) == 1 and os.path.isdir(sources[0]) else ""


def write_command(name: str, sources: Sequence[AnyPath], options: PredictOptions, *more: str) -> str:
    """Return a command on these images with the same classes and model; one that labels has no options of methods."""
    labels = options.labels if isinstance(options.labels, (str, os.PathLike)) else ",".join(options.labels or ())
    words = [*(os.fspath(source) for source in sources), "--labels", os.fspath(labels)]
    words += ["--model", options.model] if options.model != PredictOptions.model else []
    for template in options.templates or ():
        words += ["--template", template]
    if isinstance(options.prompts, (str, os.PathLike)):
        words += ["--prompts", os.fspath(options.prompts)]
    if name != "label" and "--method" not in more and options.method != PredictOptions.method:
        words += ["--method", options.method]
    if name != "label" and options.batch_size != PredictOptions.batch_size:
        words += ["--batch-size", str(options.batch_size)]
    return f"lmr {name} {shlex.join([*words, *more])}"
