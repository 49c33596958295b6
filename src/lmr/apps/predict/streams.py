"""Label many streams, each with an adaptation of its own: one output file per stream, in one folder.

Every stream is a crash-safe run over its own images, as ``predict_images`` would do it. The progress of a stream stays
beside its output until all streams are finished, so a run that is killed at any moment can be resumed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from lmr.apps.options import AnyPath
from lmr.apps.predict.options import PredictOptions
from lmr.apps.predict.results import PredictSummary, ResultFile, RunTally
from lmr.apps.predict.run import Labeller, check_images, check_sources, hold_files, hold_path, resume_dtype
from lmr.core.errors import LmrError
from lmr.core.files import check_folder
from lmr.core.foreign_text import make_printable
from lmr.core.state import read_state
from lmr.images.sources import list_sources

BY_FOLDER = "folder"
LONGEST_NAME = 150  # of a file: a longer stream name is replaced by its digest


@dataclass(frozen=True)
class ImageStream:
    """The images that one adaptation follows."""

    name: str
    images: tuple[Path, ...]

    @property
    def file_name(self) -> str:
        """The name as that of a file, without an extension."""
        name = quote(self.name, safe=" ")
        if len(name) > LONGEST_NAME or name.startswith("."):
            name = hashlib.sha256(self.name.encode("utf-8", "surrogatepass")).hexdigest()
        return name


def split_streams(sources: Sequence[AnyPath], stream_by: str, column: str | None = None) -> list[ImageStream]:
    """List the images of the sources and split them into streams.

    ``stream_by`` is "folder" (the folder that holds the image) or a regular expression with one group, which is
    searched in the path.
    """
    find_name = _name_folder if stream_by == BY_FOLDER else _search(stream_by)
    streams: dict[str, list[Path]] = {}
    for image in list_sources(sources, column):
        streams.setdefault(find_name(image), []).append(image)
    return [ImageStream(name, tuple(images)) for name, images in streams.items()]


def _name_folder(image: Path) -> str:
    return str(image.parent)


def _search(pattern: str) -> Callable[[Path], str]:
    """Return a function that finds the name of a stream in the path of an image."""
    wanted = "Expected folder or a regular expression with one group, such as '(cam[0-9]+)', for --stream-by"
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise LmrError(f"{wanted}, got {pattern!r} ({error}).") from error
    if expression.groups != 1:
        raise LmrError(f"{wanted}, got {pattern!r}, which has {expression.groups} groups.")

    def find_name(image: Path) -> str:
        found = expression.search(image.as_posix())
        if found is None or found.group(1) is None:
            raise LmrError(f"--stream-by {pattern!r} finds no stream in {str(image)!r}; change the expression.")
        return str(found.group(1))

    return find_name


@dataclass(frozen=True)
class StreamPlan:
    """A run over streams: resolved options, and the images of each stream."""

    options: PredictOptions
    streams: Sequence[ImageStream]

    @property
    def out(self) -> Path:
        """The folder of the outputs."""
        assert self.options.out is not None
        return Path(self.options.out)

    def find_output(self, stream: ImageStream) -> Path:
        """Return the file with the answers of a stream."""
        return self.out / f"{stream.file_name}.jsonl"

    def find_state(self, stream: ImageStream) -> Path:
        """Return the file with the state and the progress of a stream."""
        folder = self.out if self.options.state is None else Path(self.options.state)
        return folder / f"{stream.file_name}.state"


# Labels all streams of a plan and returns the tally.
Runner = Callable[[StreamPlan], RunTally]


def plan_streams(sources: AnyPath | Sequence[AnyPath], options: PredictOptions) -> StreamPlan:
    """List the images and split them into streams by ``options.stream_by``. Nothing is written."""
    options = options.resolve(read_prompts=True)
    sources = [sources] if isinstance(sources, (str, os.PathLike)) else sources
    if options.stream_by is None or options.out is None:
        raise LmrError("Streams have an output file each; give the name of a folder for them with --out.")
    for option, folder in (("--out", options.out), ("--state", options.state)):
        if folder is not None and os.path.exists(folder) and not os.path.isdir(folder):
            raise LmrError(f"{os.fspath(folder)!r} is a file; with --stream-by, {option} is a folder.")
    check_sources(sources, {}, options.column)
    streams = split_streams(sources, options.stream_by, options.column)
    check_images([image for stream in streams for image in stream.images], options.every)
    return StreamPlan(options, streams)


def predict_streams(plan: StreamPlan, run: Runner | None = None) -> PredictSummary:
    """Label all streams of a plan. ``run`` labels them elsewhere than in this process."""
    options, outputs = plan.options, [plan.find_output(stream) for stream in plan.streams]
    state = None if options.state is None else Path(options.state)
    check_folder(plan.out)
    busy = f"Another run is writing to {str(plan.out)!r}; wait for it, or give another --out."
    with hold_path(plan.out / "run", busy):
        if state is not None:
            check_folder(state)
        begun = [path for path in outputs if path.exists() and path.stat().st_size]
        if begun and not options.resume and not options.overwrite:
            raise LmrError(
                f"{str(begun[0])!r} exists; continue with --resume, replace all outputs with --overwrite, or give "
                "another --out."
            )
        if options.overwrite:  # first, so that an old output is never taken for a finished one
            for path in outputs:
                path.unlink(missing_ok=True)
        start = time.perf_counter()
        tally = (run or run_here)(_resume_dtype(plan))
        seconds = time.perf_counter() - start
        answers = Counter(line.label for path in outputs for line in ResultFile(path, options.top).read_all())
        if state is None:
            for stream in plan.streams:
                plan.find_state(stream).unlink(missing_ok=True)
    watch = " ".join(f"{events} ({count} streams)" for events, count in tally.watches.most_common()) or None
    return PredictSummary(answers, tally, seconds, plan.out, state, watch)


def _resume_dtype(plan: StreamPlan) -> StreamPlan:
    """Return the plan with the type of a stream that has begun, in place of "auto"."""
    begun = (plan.find_state(stream) for stream in plan.streams if plan.find_output(stream).exists())
    return replace(plan, options=resume_dtype(plan.options, next(begun, None)))


def run_here(plan: StreamPlan) -> RunTally:
    """Label the streams in this process, one after the other."""
    labeller, tally = Labeller(plan.options), RunTally()
    check_begun(labeller, plan)
    for done, stream in enumerate(plan.streams, 1):
        tally.add(own := label_stream(labeller, plan, stream))
        print(f"lmr: [{done}/{len(plan.streams)}] {make_printable(stream.name)}: {own.images} images", file=sys.stderr)
    return tally


def label_stream(labeller: Labeller, plan: StreamPlan, stream: ImageStream) -> RunTally:
    """Label one stream: from its progress if it has begun, or else from its state of an earlier run."""
    output, progress = ResultFile(plan.find_output(stream), plan.options.top), plan.find_state(stream)
    kept = plan.options.state
    with hold_files(output, progress, kept):
        if not output.is_empty and not progress.exists():  # a run that ended while it removed these
            if {str(image) for image in stream.images} <= {line.path for line in output.read_all()}:
                return RunTally()
            raise LmrError(f"{str(output.path)!r} cannot be resumed, because its run has finished; give another --out.")
        run = labeller.prepare(output, progress, stream.images)
        run.label(stream.images, run.start(None if kept is None else progress, _is_begun(output, progress)))
        if events := run.describe_watch():
            run.tally.watches[events] += 1
        return run.tally


def _is_begun(output: ResultFile, progress: Path) -> bool:
    """Return True if the progress is that of this output, and not of another one that an earlier run wrote."""
    if not output.path.exists() or not progress.exists():
        return False
    notes = read_state(progress)[1]
    same = notes.get("note.out") == os.path.abspath(output.path)
    return same and (not output.is_empty or notes.get("note.offset") == "0")


def check_begun(labeller: Labeller, plan: StreamPlan) -> None:
    """Refuse to continue a run with other options: the first stream that has begun tells."""
    for stream in plan.streams:
        output, progress = ResultFile(plan.find_output(stream), plan.options.top), plan.find_state(stream)
        if _is_begun(output, progress):
            with contextlib.closing(output):
                labeller.prepare(output, progress).recover()
            return
