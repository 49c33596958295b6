"""A worker that labels streams: it keeps the model on its node and labels the streams of a shard.

It writes to a folder of its own on its node. The answers and the state that counts them go to the driver every few
seconds, so that another worker can continue where this one died.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lmr.apps.predict.options import PredictOptions
from lmr.apps.predict.results import RunTally
from lmr.apps.predict.run import Labeller, PredictRun
from lmr.apps.predict.streams import ImageStream, StreamFiles, label_stream
from lmr.bench.running.run import Stop
from lmr.cluster.nodes import describe_mismatch, digest_method, read_free_memory
from lmr.cluster.pool_actor import PoolActor, UnfitNode, is_out_of_memory
from lmr.core.errors import LmrError, describe_error
from lmr.core.state import read_state
from lmr.images.lists import ListedImage, RowImage
from lmr.images.remote import RemoteImage, is_url, open_remote


@dataclass(frozen=True)
class LabelSetup:
    """The setup that all workers have in common."""

    options: PredictOptions
    fingerprint: Mapping[str, str]  # of the driver's model and classes
    method: Mapping[str, str]  # the digest of the method's file, if it is in one
    weights: int  # bytes of the model
    folder: str  # where relative paths start
    suffix: str  # of the output
    videos: bool
    save_seconds: float  # between reports of answers


@dataclass(frozen=True)
class StreamTicket:
    """A stream to label, with what the driver has of it already."""

    stream: ImageStream
    title: str
    sizes: Sequence[int | None]  # of its files on the driver's machine
    kept: tuple[bytes, bytes] | None = None  # part and progress
    earlier: bytes | None = None  # the state that it starts from if it has not begun


@dataclass(frozen=True)
class PartNews:
    """Answers of a stream since the last report, where they begin, and the state that counts them."""

    number: int
    offset: int
    content: bytes
    state: bytes
    tally: RunTally
    finished: bool


@dataclass(frozen=True)
class ShardNews:
    """The progress of a worker since the last call, and its present stream."""

    parts: Sequence[PartNews] = ()
    stream: str = ""
    images: int = 0  # of this stream, so far


@dataclass(frozen=True)
class ShardResult:
    """The end of a shard: all streams are finished if there is no message and it was not stopped."""

    progress: ShardNews = field(default_factory=ShardNews)
    message: str = ""
    details: str = ""
    unfit: bool = False
    stopped: bool = False


class PredictActor(PoolActor):
    """An actor that labels shards; ``read_progress`` and ``stop`` may be called while it does, from other threads."""

    def __init__(self, threads: int, versions: Mapping[str, str], setup: LabelSetup) -> None:
        super().__init__(threads, versions)
        self.setup = setup
        self.labeller: Labeller | None = None
        self.lock = threading.Lock()
        self.progress = ShardNews()

    def read_progress(self) -> ShardNews:
        """Return the progress since the last call."""
        with self.lock:
            progress, self.progress = self.progress, ShardNews(stream=self.progress.stream, images=self.progress.images)
        return progress

    def run(self, tickets: Sequence[StreamTicket]) -> ShardResult:
        """Label streams one after the other.

        Progress that was not read goes with the result: left here, it would be taken for that of the next shard.
        """
        result = self._run(tickets)
        with self.lock:
            progress, self.progress = self.progress, ShardNews()
        return replace(result, progress=progress)

    def _run(self, tickets: Sequence[StreamTicket]) -> ShardResult:
        try:
            self.check_versions()
            self._enter_folder(tickets)
            for ticket in tickets:
                _check_files(ticket)
            labeller = self._load()
        except (LmrError, OSError, MemoryError) as error:
            return ShardResult(message=str(error) or type(error).__name__, unfit=True)
        try:
            for ticket in tickets:
                self._label(labeller, ticket)
        except Stop:
            return ShardResult(stopped=True)
        except Exception as error:
            if is_out_of_memory(error):  # as a death: the pool ends this worker and prefers another node
                raise MemoryError(describe_error(error)) from None
            return ShardResult(message=describe_error(error), details=traceback.format_exc())
        return ShardResult()

    def _load(self) -> Labeller:
        """Return the model and the method, if they are the driver's and there is room for them."""
        if wrong := describe_mismatch(digest_method(self.setup.options.method), self.setup.method):
            raise UnfitNode(f"It has another {wrong}.")
        if self.labeller is None:
            free = read_free_memory()
            if 0 < free < self.setup.weights:
                raise UnfitNode(
                    f"It has {free / 1e9:.1f} GB of free memory, and the weights of the model alone have "
                    f"{self.setup.weights / 1e9:.1f} GB."
                )
            loaded = Labeller(self.setup.options)
            if loaded.classifier.fingerprint != self.setup.fingerprint:
                model = self.setup.options.model
                raise UnfitNode(f"Its weights or texts of the model {model!r} are not those of the driver's machine.")
            self.labeller = loaded
        return self.labeller

    def _enter_folder(self, tickets: Sequence[StreamTicket]) -> None:
        """Let relative paths start where they do on the driver's machine."""
        try:
            os.chdir(self.setup.folder)
        except OSError as error:
            names = [_find_file(image) for ticket in tickets for image in ticket.stream.images]
            if all(name is None or os.path.isabs(name) for name in names):
                return
            raise UnfitNode(
                f"It has no folder {self.setup.folder!r}, where relative paths start: share it, or give full paths."
            ) from error

    def _label(self, labeller: Labeller, ticket: StreamTicket) -> None:
        stream, name = ticket.stream, f"{ticket.stream.number:06}"
        part, progress = self.folder / f"{name}.part{self.setup.suffix}", self.folder / f"{name}.state"
        earlier = self.folder / f"{name}.earlier"
        if ticket.kept is not None:
            part.write_bytes(ticket.kept[0])
            progress.write_bytes(ticket.kept[1])
        if ticket.earlier is not None:
            earlier.write_bytes(ticket.earlier)
        begun = 0 if ticket.kept is None else int(read_state(progress)[1]["note.offset"])
        report = _Report(self, stream, part, progress, begun)
        try:
            files = StreamFiles(part, progress, earlier, ticket.title, self.setup.videos)
            run = label_stream(labeller, stream, files, report.follow)
            report.send(run, True)
        finally:
            for path in (part, progress, earlier):
                path.unlink(missing_ok=True)

    def add_news(self, stream: ImageStream, images: int, part: PartNews | None = None) -> None:
        """Add progress for the next call of ``read_progress``."""
        with self.lock:
            parts = [*self.progress.parts, part] if part else self.progress.parts
            self.progress = ShardNews(parts, stream.name, images)


class _Report:
    """Passes on what a run has finished, every few seconds."""

    def __init__(self, actor: PredictActor, stream: ImageStream, part: Path, progress: Path, offset: int) -> None:
        self.actor, self.stream, self.part, self.progress = actor, stream, part, progress
        self.offset = offset  # how much of the part the driver has
        self.last = time.monotonic()
        self.told = RunTally()

    def follow(self, run: PredictRun) -> None:
        """Note that a batch is finished."""
        self.actor.add_news(self.stream, run.images)
        if self.actor.stopping and not run.finished:
            self.send(run, False)
            raise Stop
        if not run.finished and time.monotonic() - self.last >= self.actor.setup.save_seconds:
            self.send(run, False)

    def send(self, run: PredictRun, finished: bool) -> None:
        """Hand over the answers since the last time."""
        assert run.output is not None
        with open(self.part, "rb") as file:
            file.seek(self.offset)
            content = file.read(run.output.offset - self.offset)
        tally, state = run.read_tally(), self.progress.read_bytes()
        progress = PartNews(self.stream.number, self.offset, content, state, tally.subtract(self.told), finished)
        self.actor.add_news(self.stream, run.images, progress)
        self.offset, self.last, self.told = run.output.offset, time.monotonic(), tally


def measure_files(images: Sequence[ListedImage]) -> list[int | None]:
    """Return the sizes of files, None for one that is not there.

    Of those at addresses only the first is tried, as for each of them this takes a request: 0 if it can be read.
    """
    sizes: list[int | None] = []
    tried = False
    for image in images:
        name, size = _find_file(image), None
        if name is not None:
            with contextlib.suppress(OSError):
                size = os.path.getsize(name)
        elif isinstance(image, RemoteImage) and not tried:
            tried = True
            with contextlib.suppress(OSError, LmrError), open_remote(image.url) as file:
                file.read(1)
                size = 0
        sizes.append(size)
    return sizes


def _find_file(image: ListedImage) -> str | None:
    """Return the file on this machine that an image is in, None for one at an address."""
    if isinstance(image, RowImage):
        return None if is_url(image.source) else image.source
    return None if isinstance(image, RemoteImage) else str(image)


def _check_files(ticket: StreamTicket) -> None:
    """Refuse a stream whose files are not those of the driver's machine. Files that it has not are not missed."""
    images = ticket.stream.images
    for image, here, there in zip(images, measure_files(images), ticket.sizes, strict=True):
        if there is not None and here != there:
            name = _find_file(image) or str(image)
            if here is None:
                raise UnfitNode(f"It cannot read {name!r}, which the driver's machine can.")
            raise UnfitNode(f"Its {name!r} has {here} bytes, that of the driver's machine {there}.")
