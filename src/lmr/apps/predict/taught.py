"""``lmr predict --truth``: answer a folder with what a few labels of its images teach.

A folder is not a stream: labels hold for all of its images, also for those before them. So there are two passes. The
first is an ordinary run that writes all logits to a file beside the output; it resumes as any run. Then the offset is
fitted to the labels (``core/functional/offset.py``), and all answers are written. No image is opened twice.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmr.apps.options import AnyPath
from lmr.apps.predict.options import PredictOptions
from lmr.apps.predict.results import ImageAnswer, PredictSummary, ResultFile, RunTally, print_answers, unpack_logits
from lmr.apps.predict.run import check_path, predict_images
from lmr.apps.truth import Truth, read_truth
from lmr.core.answer import UNKNOWN, Answer, make_answers, rank
from lmr.core.errors import LmrError
from lmr.core.functional.offset import ANSWERS, Estimate, answer_held_out, learn_offset
from lmr.images.sources import list_sources

FEWEST = 5  # labels from which an accuracy is estimated
_CHUNK = 256  # lines that are written at a time
_FIRST = ".first.jsonl"  # what the file of the first pass is called beside the output


@dataclass(frozen=True)
class Lesson:
    """What the labels teach: the offset [C], and the accuracy of the frozen model and with the labels, if known."""

    offset: Tensor
    frozen: Estimate | None
    taught: Estimate | None


def predict_taught(sources: AnyPath | Sequence[AnyPath], options: PredictOptions) -> PredictSummary:
    """Label images as ``predict_images``, corrected by the labels in ``options.truth``."""
    assert options.truth is not None
    resolved = options.resolve()
    sources = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    paths = list_sources(sources, options.column)
    roots = [source for source in sources if os.path.isdir(source)]
    truth = read_truth(options.truth, paths, resolved.names, roots)
    labels = {os.path.abspath(paths[place]): label for place, label in truth.known.items()}
    if not labels:
        raise LmrError(f"No label in {os.fspath(options.truth)!r} is one of the classes; label some images of them.")
    first = replace(resolved, truth=None, top=1)
    if options.out is None:
        with tempfile.TemporaryDirectory() as folder:
            name = Path(folder) / f"answers{_FIRST}"
            summary = predict_images(sources, replace(first, out=name), labels)
            return _answer(summary, name, None, resolved, truth, labels)
    out = Path(options.out)
    check_path("--out", out)
    output = ResultFile(out, resolved.top)
    name = out.with_name(out.name + _FIRST)
    if not output.is_empty and not options.overwrite and not name.exists():
        why = "exists"
        if options.resume:
            why = f"cannot be resumed, because there is no {str(name)!r}: the run has finished"
        raise LmrError(f"{str(out)!r} {why}; replace it with --overwrite, or give another --out.")
    ended = name.exists() and not Path(f"{name}.state").exists()
    if options.resume and ended:  # the first pass was finished, the second was not
        summary = _read_summary(name, out)
    else:
        summary = predict_images(sources, replace(first, out=name), labels)
    done = _answer(summary, name, output, resolved, truth, labels)
    name.unlink(missing_ok=True)
    return done


def _answer(
    summary: PredictSummary,
    name: Path,
    output: ResultFile | None,
    options: PredictOptions,
    truth: Truth,
    labels: Mapping[str, int],
) -> PredictSummary:
    """Fit the offset to the lines of the first pass, and write the answers."""
    if not summary.images - summary.errors:  # nothing to learn from; the summary says why
        return summary
    if output is not None:
        with open(name, "a", encoding="utf-8") as file:  # for a command that resumes here
            file.write(json.dumps({"biased": summary.biased}) + "\n")
    lesson = _learn(name, options.names, labels, summary.biased)
    counts: Counter[str | None] = Counter()
    changed = 0
    if output is not None:
        output.open()
        output.cut()
    try:
        lines = _read_lines(name)
        while records := list(islice(lines, _CHUNK)):
            answers = _correct(records, lesson.offset, options)
            if output is None:
                print_answers(answers)
            else:
                output.append(answers)
            counts.update(answer.label for answer in answers)
            changed += sum(
                record.get("label") not in (None, answer.label) for record, answer in zip(records, answers, strict=True)
            )
    finally:
        if output is not None:
            output.close()
    answered = summary.images - summary.errors
    said = f"{truth}, for {answered} images. They changed {changed} answers ({changed / answered:.1%})."
    if lesson.taught is None:
        said += f" With {FEWEST} labels or more, the accuracy is estimated."
    else:
        frozen = "" if lesson.frozen is None else f"frozen {lesson.frozen}, "
        said += f" Estimated accuracy with its 95 % interval: {frozen}with your labels {lesson.taught}."
    tally = replace(summary.tally, rests=False, compared=0)
    return replace(summary, answers=counts, tally=tally, out=None if output is None else output.path, taught=said)


def _learn(name: Path, names: Sequence[str], labels: Mapping[str, int], biased: bool) -> Lesson:
    """Return what the labels teach, from the lines of the first pass."""
    count = sum("error" not in record for record in _read_lines(name))
    every = max(1, count // ANSWERS)
    logits: list[NDArray[np.float32]] = []
    others: list[NDArray[np.float32]] = []
    true: list[int] = []
    frozen: list[bool] = []
    known: list[bool] = []  # whether it gets a label at all
    number = 0
    for record in _read_lines(name):
        if "error" in record:
            continue
        label = labels.get(os.path.abspath(record["path"])) if record.get("frame") is None else None
        if label is not None:
            logits.append(unpack_logits(record["logits"]))
            true.append(label)
            known.append(record["label"] is not None)
            if record["plain"] is not None:
                frozen.append(known[-1] and record["plain"] == names[label])
        if number % every == 0:
            others.append(unpack_logits(record["logits"]))
        number += 1
    if not true:
        raise LmrError("None of the labelled images could be answered; label others.")
    z, y = torch.from_numpy(np.stack(logits)), torch.tensor(true)
    answers = None if biased else torch.from_numpy(np.stack(others))
    offset = learn_offset(z, y, answers).float()
    if len(true) < FEWEST:
        return Lesson(offset, None, None)
    right = (answer_held_out(z, y, answers) == y) & torch.tensor(known)
    return Lesson(
        offset,
        Estimate(sum(frozen), len(frozen)) if len(frozen) == len(true) else None,
        Estimate(int(right.sum()), len(true)),
    )


def _correct(records: Sequence[Mapping[str, Any]], offset: Tensor, options: PredictOptions) -> list[ImageAnswer]:
    """Return the answers to lines of the first pass with the offset."""
    good = [record for record in records if "error" not in record]
    answers: Iterator[Answer] = iter(())
    if good:
        logits = torch.from_numpy(np.stack([unpack_logits(record["logits"]) for record in good])) + offset
        rankings = rank(logits, options.names, options.top)
        unknown = [record["label"] is None for record in good]
        answers = iter(make_answers(rankings, [record["known"] for record in good], unknown))
    return [
        ImageAnswer(
            record["path"],
            Answer(error=record["error"]) if "error" in record else next(answers),
            record.get("frame"),
            record.get("time"),
        )
        for record in records
    ]


def _read_lines(name: Path) -> Iterator[dict[str, Any]]:
    """Return an iterator over the images of the first pass."""
    return (record for record in _read_all(name) if "path" in record)


def _read_all(name: Path) -> Iterator[dict[str, Any]]:
    with open(name, encoding="utf-8", errors="surrogateescape") as file:
        yield from map(json.loads, file)


def _read_summary(name: Path, out: Path) -> PredictSummary:
    """Return what is known of a first pass that an earlier command has finished."""
    answers: Counter[str | None] = Counter(
        None if "error" in record else record["label"] or UNKNOWN for record in _read_lines(name)
    )
    biased = any(record.get("biased", False) for record in _read_all(name) if "path" not in record)
    return PredictSummary(answers, RunTally(), 0.0, out, None, biased=biased)
