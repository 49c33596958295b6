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
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from lmr.apps.options import AnyPath
from lmr.apps.predict.options import PredictOptions
from lmr.apps.predict.results import FinishedLine, PredictSummary, ResultFile, RunTally
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
from lmr.core.files import check_folder, replace_durably, sync_folder, write_atomically
from lmr.core.foreign_text import make_printable
from lmr.images.lists import ListedImage, read_column, read_path_list
from lmr.images.remote import RemoteImage
from lmr.images.sources import ImagePlace, PlaceKey, find_list, has_frames, list_sources

BY_FOLDER, BY_COLUMN = "folder", "column:"
LONGEST_NAME = 150  # of a state file: a longer stream name is replaced by its digest
RUN_FILE = "run.json"
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
    named = _read_names if stream_by.startswith(BY_COLUMN) else _name_paths
    streams: dict[str, list[ListedImage]] = {}
    for name, image in named(sources, stream_by, column):
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


def _name_paths(sources: Sequence[AnyPath], stream_by: str, column: str | None) -> Iterable[tuple[str, ListedImage]]:
    name = _name_folder if stream_by == BY_FOLDER else _search(stream_by)
    return [(name(image), image) for image in list_sources(sources, column)]


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


class StreamParts:
    """The work folder OUT.parts: answers and progress of each stream, until all are merged into ``out``.

    A stream that is not finished has NUMBER.part.jsonl and NUMBER.state, as a run of its own would; when it is
    finished, it has NUMBER.jsonl.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out.with_name(f"{out.name}.parts")

    @property
    def exists(self) -> bool:
        """True if there is a run to continue."""
        return (self.folder / RUN_FILE).exists()

    def begin(self, facts: Mapping[str, str]) -> None:
        """Start a run that is described by ``facts``; the rest of another one is deleted."""
        try:
            self.remove()
            self.folder.mkdir()
        except OSError as error:
            raise LmrError(f"Cannot create the folder {str(self.folder)!r}: {error.strerror or error}.") from error
        write_atomically(self.folder / RUN_FILE, json.dumps(dict(facts), indent=1).encode())
        sync_folder(self.folder.parent)

    def check(self, facts: Mapping[str, str]) -> None:
        """Refuse to continue a run with other ``facts``."""
        try:
            noted = json.loads((self.folder / RUN_FILE).read_text("utf-8"))
            differing = [key for key in facts if noted.get(key) != facts[key]]
        except (OSError, ValueError, AttributeError) as error:
            raise LmrError(
                f"{str(self.folder / RUN_FILE)!r} cannot be read ({error}); start again with --overwrite."
            ) from error
        if differing:
            key = differing[0]
            raise LmrError(
                f"{str(self.folder)!r} holds a run that is not finished and had {key} {noted.get(key)}, not "
                f"{facts[key]}; give the same command to continue it, or start again with --overwrite."
            )

    def answers(self, number: int) -> Path:
        """Return the path of the finished answers of a stream."""
        return self.folder / f"{number:06}{self.out.suffix}"

    def part(self, number: int) -> Path:
        """Return the path of the answers of a stream that is not finished."""
        return self.folder / f"{number:06}.part{self.out.suffix}"

    def progress(self, number: int) -> Path:
        """Return the path of the state of a stream, which notes how much of its part is finished."""
        return self.folder / f"{number:06}.state"

    def is_finished(self, number: int) -> bool:
        """Return whether a stream has all its answers."""
        return self.answers(number).exists()

    def finish(self, number: int, keep_state: bool) -> None:
        """Take the part of a stream as its finished answers."""
        replace_durably(self.part(number), self.answers(number))
        if not keep_state:
            self.progress(number).unlink(missing_ok=True)

    def extend(self, number: int, offset: int, content: bytes, state: bytes) -> bool:
        """Take over answers of a stream that were written elsewhere, and then the state that counts them.

        Returns False, and nothing changes, if answers before them are missing.
        """
        part = self.part(number)
        try:
            with open(part, "r+b" if part.exists() else "w+b") as file:
                if file.seek(0, os.SEEK_END) < offset:
                    return False
                file.seek(offset)
                file.truncate()
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise LmrError(f"Cannot write {str(part)!r}: {error.strerror or error}.") from error
        write_atomically(self.progress(number), state)
        return True

    def read(self, number: int) -> tuple[bytes, bytes] | None:
        """Return the part and the progress of a stream that has begun."""
        with contextlib.suppress(FileNotFoundError):
            return self.part(number).read_bytes(), self.progress(number).read_bytes()
        return None

    def read_lines(self, number: int) -> list[FinishedLine]:
        """Return the answers of a finished stream."""
        return ResultFile(self.answers(number), 0).read_all()

    def merge(self, numbers: Sequence[int]) -> None:
        """Write all answers to ``out``, stream after stream; a failure leaves ``out`` unchanged."""
        merged = self.folder / f"merged{self.out.suffix}"
        try:
            with open(merged, "wb") as file:
                for place, number in enumerate(numbers):
                    with open(self.answers(number), "rb") as part:
                        if place and self.out.suffix.lower() == ".csv":
                            part.readline()  # the column names, which the first part has too
                        shutil.copyfileobj(part, file, 1 << 20)
            replace_durably(merged, self.out)
        except OSError as error:
            raise LmrError(
                f"Cannot write {str(self.out)!r}: {error.strerror or error}. Nothing is lost: when there is room, give "
                "the same command again."
            ) from error

    def remove(self) -> None:
        """Delete the folder; the file that says what the run is goes first, so that a half is never continued."""
        (self.folder / RUN_FILE).unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.folder)


@dataclass(frozen=True)
class StreamPlan:
    """A run over streams: resolved options, and the images of each stream."""

    options: PredictOptions
    streams: Sequence[ImageStream]

    @property
    def out(self) -> Path:
        """The output that the answers of all streams are merged into."""
        assert self.options.out is not None
        return Path(self.options.out)

    @property
    def state(self) -> Path | None:
        """The folder with a state per stream, which the next run continues."""
        return None if self.options.state is None else Path(self.options.state)

    @property
    def videos(self) -> bool:
        """True if there are videos in any stream: then .csv files have columns for frames."""
        return any(has_frames(image) for stream in self.streams for image in stream.images)

    @property
    def images(self) -> int:
        """The number of images and videos."""
        return sum(len(stream.images) for stream in self.streams)

    def title(self, stream: ImageStream) -> str:
        """Return the name that the progress of a stream gives to its output, wherever its part is."""
        return f"{os.path.abspath(self.out)}#{stream.number}"

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
    check_path("--out", options.out)
    ResultFile(options.out, options.top)  # its extension
    check_sources(sources, {"--out": options.out}, options.column)
    state = options.state
    if state is not None and os.path.exists(state) and not os.path.isdir(state):
        raise LmrError(
            f"{os.fspath(state)!r} is a file; with --stream-by, --state is a folder with one state per stream."
        )
    streams = split_streams(sources, options.stream_by, options.column)
    check_images([image for stream in streams for image in stream.images], options.every)
    return StreamPlan(options, streams)


def predict_streams(plan: StreamPlan, run: Runner | None = None) -> PredictSummary:
    """Label all streams of a plan and merge their answers into its output.

    A run that is not finished is continued, unless ``options.overwrite`` starts it again. ``run`` labels the streams
    elsewhere than in this process.
    """
    parts, numbers = StreamParts(plan.out), [stream.number for stream in plan.streams]
    with contextlib.ExitStack() as held:
        held.enter_context(hold_path(parts.folder, explain_busy(plan.out)))
        _open_parts(plan, parts)
        if plan.state is not None:
            check_folder(plan.state)
            busy = f"Another run is using the states in {str(plan.state)!r}; wait for it, or give another --state."
            held.enter_context(hold_path(plan.state / "states", busy))
        left = [stream for stream in plan.streams if not parts.is_finished(stream.number)]
        start, tally = time.perf_counter(), RunTally()
        if left:
            with _explain_continuing(parts, numbers, plan.options.overwrite):
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
    labeller, videos = Labeller(plan.options), plan.videos
    for done, stream in enumerate(left, 1):
        started, number = time.perf_counter(), stream.number
        files = StreamFiles(
            parts.part(number), parts.progress(number), plan.find_state(stream), plan.title(stream), videos
        )
        run = label_stream(labeller, stream, files)
        parts.finish(number, plan.state is not None)
        tally.add(run.read_tally())
        speed = run.tally.images / max(time.perf_counter() - started, 1e-9)
        print(
            f"lmr: [{done}/{len(left)}] {make_printable(stream.name)}: {run.images} images, {speed:.1f} images/s",
            file=sys.stderr,
        )


@dataclass(frozen=True)
class StreamFiles:
    """The files of one stream while it is labelled."""

    part: Path  # its answers
    progress: Path  # its state, with how much of the part is finished
    earlier: Path | None  # the state of an earlier run that it starts from, where there is one
    title: str  # the name that the progress gives to the output
    videos: bool  # a .csv part has columns for frames


def label_stream(
    labeller: Labeller,
    stream: ImageStream,
    files: StreamFiles,
    after_save: Callable[[PredictRun], None] = lambda run: None,
) -> PredictRun:
    """Label one stream, from its progress if it has begun, or else from the state of an earlier run.

    An exception from ``after_save``, which is called after each batch, ends the run, and it can be continued.
    """
    output = ResultFile(files.part, labeller.options.top, files.videos)
    run = labeller.prepare(output, files.progress, files.title)
    run.after_save = lambda: after_save(run)
    finished: Collection[PlaceKey] = ()
    with contextlib.closing(output):
        if files.progress.exists():
            finished = run.recover()
        else:
            if files.earlier is not None and files.earlier.exists():
                run.load_state(files.earlier)
            run.begin()
        run.label(stream.images, finished)
    return run


def _open_parts(plan: StreamPlan, parts: StreamParts) -> None:
    """Continue the run in the work folder, or begin one; refuse what would lose results."""
    if parts.exists and not plan.options.overwrite:
        parts.check(plan.note())
        return
    if not ResultFile(plan.out, 0).is_empty and not plan.options.overwrite:
        raise LmrError(
            f"{str(plan.out)!r} exists and there is no unfinished run in {str(parts.folder)!r}; replace it with "
            "--overwrite, or give another --out."
        )
    parts.begin(plan.note())


@contextlib.contextmanager
def _explain_continuing(parts: StreamParts, numbers: Sequence[int], overwrite: bool) -> Iterator[None]:
    """Add to an interruption or an error what is finished and how to continue."""

    def explain() -> str:
        finished = sum(map(parts.is_finished, numbers))
        how = "with --resume instead of --overwrite" if overwrite else "again"
        return f"{finished} of {len(numbers)} streams are finished; to continue, give the same command {how}."

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
            write_atomically(place, parts.progress(stream.number).read_bytes())
