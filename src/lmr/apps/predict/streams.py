"""Label many streams, each with an adaptation of its own; a run that is killed at any moment can be continued.

Every stream is a crash-safe run over its own images, as ``predict_images`` would do it, with its answers and its
progress in a work folder (``StreamParts``). When all are finished, the answers are merged into the output, stream after
stream. So the output does not depend on how the streams were shared out, or on when and where they were finished.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from lmr.apps.options import AnyPath
from lmr.apps.predict.options import PredictOptions
from lmr.apps.predict.parts import StreamParts
from lmr.apps.predict.results import PredictSummary, ResultFile, RunTally
from lmr.apps.predict.run import (
    Labeller,
    PredictRun,
    check_images,
    check_path,
    check_sources,
    explain_busy,
    hold_path,
)
from lmr.core.errors import LmrError
from lmr.core.files import check_folder, write_atomically
from lmr.core.foreign_text import make_printable
from lmr.images.lists import ListedImage, read_column, read_path_list
from lmr.images.remote import RemoteImage, is_url
from lmr.images.sources import ImagePlace, PlaceKey, find_list, list_sources

BY_FOLDER, BY_COLUMN = "folder", "column:"
LONGEST_NAME = 150  # of a state file: a longer stream name is replaced by its digest
# The options that a continued run must share, apart from those that are checked by themselves.
_SHOWN = ("model", "method", "batch_size", "top", "every")
_FREE = ("out", "state", "resume", "overwrite", "stream_by", "shards", "column")


@dataclass(frozen=True)
class ImageStream:
    """The images that one adaptation follows, and the number of the stream, counted from 0."""

    number: int
    name: str
    images: tuple[ListedImage, ...]


def split_streams(sources: Sequence[AnyPath], stream_by: str, column: str | None = None) -> list[ImageStream]:
    """List the images of the sources and split them into streams.

    ``stream_by`` is "folder" (the folder that holds the image), "column:NAME" (a column of the lists that all sources
    then are) or a regular expression with one group, which is searched in the path.
    """
    if stream_by.startswith(BY_COLUMN):
        named = _read_names(sources, stream_by, column)
    else:
        find_name = _name_folder if stream_by == BY_FOLDER else _search(stream_by)
        named = [(find_name(image), image) for image in list_sources(sources, column)]
    streams: dict[str, list[ListedImage]] = {}
    for name, image in named:
        streams.setdefault(name, []).append(image)
    return [ImageStream(number, name, tuple(images)) for number, (name, images) in enumerate(streams.items())]


def _read_names(sources: Sequence[AnyPath], stream_by: str, column: str | None) -> Iterable[tuple[str, ListedImage]]:
    """Return the images of lists, each once, with the name of its stream from another column."""
    unique: dict[PlaceKey, tuple[str, ListedImage]] = {}
    for source in sources:
        listed = find_list(source)
        if listed is None:
            raise LmrError(
                f"--stream-by {stream_by} is for .csv and .parquet lists, and {os.fspath(source)!r} is none; give "
                "lists, or choose streams by folder or by a regular expression."
            )
        images = read_path_list(listed, column)
        names = read_column(listed, stream_by.removeprefix(BY_COLUMN), "stream", numbers=True)
        for name, image in zip(names, images, strict=True):
            unique.setdefault(ImagePlace(image).key, (name, image))
    return unique.values()


def _name_folder(image: ListedImage) -> str:
    if isinstance(image, Path):
        return str(image.parent)
    folder = str(image).rpartition("/")[0]
    return folder if isinstance(image, RemoteImage) else folder or "."


def _search(pattern: str) -> Callable[[ListedImage], str]:
    """Return a function that finds the name of a stream in the path of an image."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise LmrError(
            f"Expected folder, column:NAME or a regular expression for --stream-by, got {pattern!r} ({error})."
        ) from error
    if expression.groups != 1:
        raise LmrError(
            f"Expected folder, column:NAME or a regular expression with one group for --stream-by, such as "
            f"'(cam[0-9]+)', got {pattern!r}, which has {expression.groups} groups."
        )

    def name(image: ListedImage) -> str:
        path = image.as_posix() if isinstance(image, Path) else str(image)
        found = expression.search(path)
        if found is None or found.group(1) is None:
            raise LmrError(f"--stream-by {pattern!r} finds no stream in the path {path!r}; change the expression.")
        return found.group(1)

    return name


@dataclass(frozen=True)
class StreamPlan:
    """A run over streams: resolved options, and the images of each stream."""

    options: PredictOptions
    streams: Sequence[ImageStream]
    videos: bool = False  # there are videos in some stream: then .csv files have columns for frames

    @property
    def out(self) -> str:
        """The output that the answers of all streams are merged into: a path or an address."""
        assert self.options.out is not None
        return os.fspath(self.options.out)

    @property
    def state(self) -> Path | None:
        """The folder with a state per stream, which the next run continues."""
        return None if self.options.state is None else Path(self.options.state)

    @property
    def images(self) -> int:
        """The number of images and videos."""
        return sum(len(stream.images) for stream in self.streams)

    def title(self, stream: ImageStream) -> str:
        """Return the name that the progress of a stream gives to its output, wherever its part is."""
        return f"{self.out if is_url(self.out) else os.path.abspath(self.out)}#{stream.number}"

    def find_state(self, stream: ImageStream) -> Path | None:
        """Return the state that a stream starts from and leaves behind."""
        if self.state is None:
            return None
        name = quote(stream.name, safe=" ")
        if len(name) > LONGEST_NAME or name.startswith("."):
            name = hashlib.sha256(stream.name.encode("utf-8", "surrogatepass")).hexdigest()
        return self.state / f"{name}.state"

    def describe(self) -> str:
        """Return the streams and the number of images of each, a line each."""
        lines = [f"  {len(stream.images):6}  {make_printable(stream.name)}" for stream in self.streams]
        return "\n".join([*lines, f"Streams: {len(self.streams)}, images: {self.images:,}."])

    def note(self) -> dict[str, str]:
        """Return what must be the same for the run to be continued."""
        listing = hashlib.sha256()
        for stream in self.streams:
            names = [stream.name, *map(str, stream.images)]
            listing.update(json.dumps(names).encode() + b"\n")
        given = {item.name: repr(getattr(self.options, item.name)) for item in dataclasses.fields(self.options)}
        rest = repr(sorted((key, value) for key, value in given.items() if key not in _FREE))
        shown = {f"--{key.replace('_', '-')}": str(getattr(self.options, key)) for key in _SHOWN}
        return shown | {
            "images": f"{self.images} in {len(self.streams)} streams",
            "--state": str(os.path.abspath(self.state)) if self.state else "none",
            "a listing with the digest": listing.hexdigest()[:16],
            "options with the digest": hashlib.sha256(rest.encode("utf-8", "surrogatepass")).hexdigest()[:16],
        }


# Labels the streams that are not finished, puts their answers among the parts and adds to the tally.
Runner = Callable[[StreamPlan, StreamParts, Sequence[ImageStream], RunTally], None]


def plan_streams(sources: AnyPath | Sequence[AnyPath], options: PredictOptions) -> StreamPlan:
    """List the images and split them into streams by ``options.stream_by``. Nothing is written."""
    options = options.resolve(read_prompts=True)
    sources = [sources] if isinstance(sources, (str, os.PathLike)) else sources
    if options.stream_by is None or options.out is None:
        raise LmrError("Streams are merged into a file; give --out FILE.jsonl or FILE.csv.")
    if not is_url(options.out):
        check_path("--out", options.out)
    ResultFile(options.out, options.top)  # its extension
    check_sources(sources, {"--out": options.out}, options.column)
    state = options.state
    if state is not None and os.path.exists(state) and not os.path.isdir(state):
        raise LmrError(
            f"{os.fspath(state)!r} is a file; with --stream-by, --state is a folder with one state per stream."
        )
    streams = split_streams(sources, options.stream_by, options.column)
    return StreamPlan(
        options, streams, check_images([image for stream in streams for image in stream.images], options.every)
    )


def predict_streams(plan: StreamPlan, run: Runner | None = None) -> PredictSummary:
    """Label all streams of a plan and merge their answers into its output.

    A run that is not finished is continued, unless ``options.overwrite`` starts it again. ``run`` labels the streams
    elsewhere than in this process.
    """
    parts, numbers = StreamParts(plan.out), [stream.number for stream in plan.streams]
    with contextlib.ExitStack() as held:
        if not is_url(plan.out):  # where there are no locks
            held.enter_context(hold_path(Path(parts.folder), explain_busy(plan.out)))
        elif run is None:
            raise LmrError(
                f"--out {plan.out} is an address, which the machines of a cluster share; give --ray with it."
            )
        _open_parts(plan, parts)
        if plan.state is not None:
            check_folder(plan.state)
            busy = f"Another run is using the states in {str(plan.state)!r}; wait for it, or give another --state."
            held.enter_context(hold_path(plan.state / "states", busy))
        finished = parts.list_finished()
        left = [stream for stream in plan.streams if stream.number not in finished]
        start, tally = time.perf_counter(), RunTally()
        if left:
            with _explain_continuing(parts, len(numbers), plan.options.overwrite):
                (run or run_here)(plan, parts, left, tally)
        seconds = time.perf_counter() - start
        answers = Counter(line.label for number in numbers for line in parts.read_lines(number))
        _keep_states(plan, parts)
        parts.merge(numbers)
        parts.remove()
    watch = " ".join(f"{events} ({count} streams)" for events, count in tally.watches.most_common()) or None
    return PredictSummary(answers, tally, seconds, plan.out, plan.state, watch)


def run_here(plan: StreamPlan, parts: StreamParts, left: Sequence[ImageStream], tally: RunTally) -> None:
    """Label the streams in this process, one after the other."""
    labeller = Labeller(plan.options)
    for done, stream in enumerate(left, 1):
        started = time.perf_counter()
        run = label_stream(labeller, plan, stream, Path(parts.folder), plan.find_state(stream))
        parts.finish(stream.number, plan.state is not None)
        tally.add(run.read_tally())
        speed = run.tally.images / max(time.perf_counter() - started, 1e-9)
        print(
            f"lmr: [{done}/{len(left)}] {make_printable(stream.name)}: {run.images} images, {speed:.1f} images/s",
            file=sys.stderr,
        )


def label_stream(
    labeller: Labeller,
    plan: StreamPlan,
    stream: ImageStream,
    folder: Path,
    earlier: Path | None = None,
    after_save: Callable[[PredictRun], None] = lambda run: None,
) -> PredictRun:
    """Label one stream in ``folder``, from its progress there if it has begun, or else from the ``earlier`` state.

    An exception from ``after_save``, which is called after each batch, ends the run, and it can be continued.
    """
    names = StreamParts(plan.out)
    output = ResultFile(folder / names.part(stream.number), plan.options.top, plan.videos)
    run = labeller.prepare(output, folder / names.progress(stream.number), plan.title(stream))
    run.after_save = lambda: after_save(run)
    with contextlib.closing(output):
        run.label(stream.images, run.start(earlier, resume=True))
    return run


def _open_parts(plan: StreamPlan, parts: StreamParts) -> None:
    """Continue the run in the work folder, or begin one; refuse what would lose results."""
    if parts.exists and not plan.options.overwrite:
        parts.check(plan.note())
        return
    if not parts.is_output_empty and not plan.options.overwrite:
        raise LmrError(
            f"{plan.out!r} exists and there is no unfinished run in {parts.folder!r}; replace it with "
            "--overwrite, or give another --out."
        )
    parts.begin(plan.note())


@contextlib.contextmanager
def _explain_continuing(parts: StreamParts, count: int, overwrite: bool) -> Iterator[None]:
    """Add to an interruption or an error what is finished and how to continue."""

    def explain() -> str:
        finished = len(parts.list_finished())
        how = "with --resume instead of --overwrite" if overwrite else "again"
        return f"{finished} of {count} streams are finished; to continue, give the same command {how}."

    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"Interrupted. {explain()}") from None
    except LmrError as error:
        raise LmrError(f"{error} {explain()}") from error


def _keep_states(plan: StreamPlan, parts: StreamParts) -> None:
    """Copy the states of all streams to where the next run finds them; doing it twice does no harm."""
    for stream in plan.streams:
        place = plan.find_state(stream)
        if place is not None:
            write_atomically(place, parts.read(parts.progress(stream.number)) or b"")
