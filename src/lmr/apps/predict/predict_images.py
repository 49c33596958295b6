"""Label a folder of images while adapting to it; a run that is killed at any moment can be resumed.

After every batch the results are written first; the adapted state and the length of the finished output follow in one
file that is replaced atomically. So a killed run resumes after its last saved batch, and its output has the same bytes
as that of a run that was never interrupted.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch

from lmr.apps.model_options import ModelOptions, choose_prompts, read_names
from lmr.apps.predict.labeller import Labeller, PredictOrder
from lmr.apps.predict.predict_summary import PredictSummary
from lmr.apps.predict.result_file import ResultFile
from lmr.apps.predict.state_lock import hold_state
from lmr.core.errors import LmrError
from lmr.images.image_places import ImagePlace, PlaceKey, has_frames, iterate_images, list_sources
from lmr.images.path_lists import ListedImage, is_list
from lmr.models.catalog import DEFAULT_MODEL
from lmr.watch.settings import read_watch

AnyPath = str | os.PathLike[str]


def predict_images(
    sources: AnyPath | Sequence[AnyPath],
    labels: AnyPath | Sequence[str],
    *,
    model: str = DEFAULT_MODEL,
    method: str = "lmr",
    budget: float | None = None,
    templates: Sequence[str] | None = None,
    prompts: AnyPath | None = None,
    batch_size: int = 64,
    state: AnyPath | None = None,
    out: AnyPath | None = None,
    resume: bool = False,
    overwrite: bool = False,
    top: int = 5,
    every: int = 1,
    column: str | None = None,
    architecture: str | None = None,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    memory: Literal["fast", "lean"] = "fast",
    compile: bool = False,
    watch: str = "off",
) -> PredictSummary:
    """Label image files, folders and videos, adapting batch by batch; one line per image is written to ``out``.

    ``sources`` may also be .csv or .parquet lists of paths, which are in ``column`` if that is not clear. Of a video
    every ``every``-th frame is labelled.
    ``labels`` are class names, the path of a file of them, or a text "a,b,c"; ``templates`` or the JSON file
    ``prompts`` are the texts around them. With ``budget`` the method runs with the switch that keeps most of its gain
    at no more than so many plain forwards per image. ``state`` is a file that carries the adaptation from one run to
    the next. ``resume`` continues an interrupted run; ``overwrite`` replaces an existing ``out``. Without ``out``, JSON
    lines go to standard output. ``watch`` is "on", "report" or "off" (``lmr.Watched``). ``model`` and the five
    arguments before ``watch`` are those of ``lmr.load``. Arguments that do not fit together raise LmrError before any
    file is changed; an image that cannot be read gets a line with an error.
    """
    loading = ModelOptions(architecture, device, dtype, memory, compile)
    order = read_order(labels, model, method, budget, templates, prompts, batch_size, top, every, loading, watch)
    sources = [sources] if isinstance(sources, (str, os.PathLike)) else sources
    for option, path in (("--out", out), ("--state", state)):
        if path is not None:
            check_path(option, path)
    output = None if out is None else ResultFile(out, order.top)
    progress = Path(state) if state is not None else None if output is None else Path(f"{output.path}.state")
    check_sources(sources, {"--out": out, "--state": progress}, column)
    with contextlib.ExitStack() as held:
        if output is not None:
            held.callback(output.close)
            if output.path.exists():
                output.open()
        if progress is not None:
            check_path("--state", progress)
            held.enter_context(hold_state(progress, _explain_lock(output, state)))
        _check_files(output, progress, resume, overwrite)
        paths = list_sources(sources, column)
        videos = check_images(paths, every)
        run = Labeller(order).prepare(output, progress, videos, progress if resume or state is not None else None)
        finished: set[PlaceKey] = set()
        if resume and progress is not None and progress.exists():
            finished = run.recover()
        else:
            if state is not None and os.path.exists(state):
                _check_unfinished(run.method.load(state), output)
            run.begin()
        start = time.perf_counter()
        count = None if videos else sum(ImagePlace(path).key not in finished for path in paths)
        flag = "--resume instead of --overwrite" if overwrite else "--resume"
        ended = threading.Event()
        run.label(iterate_images(paths, every, finished, ended.is_set), count, flag, ended)
        seconds = time.perf_counter() - start
        if progress is not None and state is None:
            progress.unlink(missing_ok=True)
            progress = None
    where = None if output is None else output.path
    return PredictSummary(
        run.images,
        run.errors,
        run.earlier,
        seconds,
        dict(run.counts),
        where,
        progress,
        dict(run.causes),
        run.first_error,
        run.describe_watch(),
        run.suited,
    )


def read_order(
    labels: AnyPath | Sequence[str],
    model: str,
    method: str,
    budget: float | None,
    templates: Sequence[str] | None,
    prompts: AnyPath | None,
    batch_size: int,
    top: int,
    every: int,
    loading: ModelOptions,
    watch: str,
) -> PredictOrder:
    """The arguments of ``predict_images`` that say how to label, checked as far as this needs no model."""
    names = read_labels(labels)
    for word, number in (("batch size", batch_size), ("number of top classes", top), ("step between frames", every)):
        if not isinstance(number, int) or number < 1:
            raise LmrError(f"Expected a {word} of at least 1, got {number!r}.")
    guard, wording = read_watch(watch), choose_prompts(templates, prompts)
    top = min(top, len(names))
    return PredictOrder(names, model, method, budget, templates, wording, batch_size, top, every, loading, guard)


def check_images(paths: Sequence[ListedImage], every: int) -> bool:
    """Refuse an empty list, and ``every`` where there is no video; gives whether there is one."""
    if not paths:
        raise LmrError("There is nothing to label; give at least one image or one folder of images.")
    videos = any(map(has_frames, paths))
    if every != 1 and not videos:
        raise LmrError(
            "--every is for videos, and there are none among the sources (folders are searched for images only); "
            "leave it out, or name the videos."
        )
    return videos


def read_labels(labels: AnyPath | Sequence[str]) -> list[str]:
    """Class names from a file, from a text "a,b,c" if there is no such file, or from a list; each of them once."""
    found = read_names(labels)
    names = [name.strip() for name in (found.values() if isinstance(found, dict) else found) if name.strip()]
    came = f"{os.fspath(labels)!r}" if isinstance(labels, (str, os.PathLike)) else "the list"
    if len(names) < 2:
        raise LmrError(f"Expected at least two class names, in a file or as a,b,c; got {len(names)} in {came}.")
    counts = Counter(" ".join(name.replace("_", " ").casefold().split()) for name in names)
    if repeated := [name for name, count in counts.items() if count > 1]:
        listed = ", ".join(map(repr, repeated[:5]))
        raise LmrError(f"Name every class once; {listed} occurs more than once in {came}.")
    return names


def check_path(option: str, path: AnyPath) -> None:
    """Refuse what is not a file that can be read and replaced. Opening a pipe would wait for its other end."""
    name = os.fspath(path)
    if not name:
        raise LmrError(f"Expected the name of a file for {option}, got an empty one.")
    if os.path.isdir(path):
        raise LmrError(f"{name!r} is a folder; give {option} the name of a file.")
    if os.path.exists(path) and not os.path.isfile(path):
        raise LmrError(f"{name!r} is a pipe, a socket or a device; give {option} the name of a regular file.")
    folder = os.path.dirname(name) or os.curdir
    if not os.path.isdir(folder):
        raise LmrError(f"Cannot write {name!r}: there is no folder {folder!r}; create it first.")


def check_sources(sources: Sequence[AnyPath], outputs: Mapping[str, AnyPath | None], column: str | None) -> None:
    """Refuse to write over a source, under any of its names, and a column where there is no list."""
    for option, path in outputs.items():
        for source in sources:
            if path is not None and os.path.exists(path) and os.path.exists(source) and os.path.samefile(path, source):
                raise LmrError(f"{os.fspath(path)!r} is one of the sources; give another {option}.")
    if column is not None and not any(map(is_list, sources)):
        raise LmrError("--column is for .csv and .parquet lists, and there is none among the sources; leave it out.")


def _explain_lock(output: ResultFile | None, state: AnyPath | None) -> str:
    """The error message for a second run on the files of one that is still running."""
    if state is None and output is not None:
        return f"Another run is writing {str(output.path)!r}; wait for it, or give another --out."
    return (
        f"Another run is using the state {os.fspath(state or '')!r}; wait for it, or give another --state. "
        "Two runs on one state would lose what one of them learns."
    )


def _check_files(output: ResultFile | None, progress: Path | None, resume: bool, overwrite: bool) -> None:
    """Refuse what would lose or mix up results; changes nothing."""
    if resume and overwrite:
        raise LmrError("Choose between --resume (continue the output) and --overwrite (replace it).")
    if output is None:
        if resume:
            raise LmrError("Only a run that writes to a file can be resumed; give the same --out as before.")
        return
    name = str(output.path)
    if progress is not None and os.path.abspath(progress) == os.path.abspath(output.path):
        raise LmrError(f"--state and --out are both {name!r}; give them different names.")
    if resume and not output.is_empty and progress is not None and not progress.exists():
        raise LmrError(
            f"{name!r} cannot be resumed, because there is no {str(progress)!r}: the run has finished, or it had "
            "another --state. Give another --out for new images, or --overwrite to start again."
        )
    if not output.is_empty and not resume and not overwrite:
        raise LmrError(
            f"{name!r} exists; continue it with --resume, replace it with --overwrite, or give another --out."
        )


def _check_unfinished(notes: Mapping[str, str], output: ResultFile | None) -> None:
    """Refuse a state that an interrupted run with another output still needs for its --resume."""
    other = notes.get("out", "")
    same = output is not None and os.path.abspath(output.path) == other
    if notes.get("finished") == "no" and not same and os.path.exists(other):
        raise LmrError(
            f"The state belongs to the run that writes {other!r}, which is not finished; resume that run first, or "
            "copy the state file and give the copy."
        )
