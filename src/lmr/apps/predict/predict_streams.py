"""Label many streams, each with an adaptation of its own; a run that is killed at any moment can be continued.

Every stream is a crash-safe run over its own images, as ``predict_images`` would do it, with its answers and its
progress in a work folder. When all are finished, the answers are merged into the output, stream after stream. So the
output does not depend on how the streams were shared out, on the order in which they were finished, or on where.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from lmr.apps.model_options import ModelOptions
from lmr.apps.predict.image_streams import ImageStream, Shard, make_shards, split_streams
from lmr.apps.predict.labeller import Labeller, PredictOrder
from lmr.apps.predict.predict_images import check_images, check_path, check_sources, read_order
from lmr.apps.predict.predict_summary import PredictSummary
from lmr.apps.predict.result_file import ErrorCause, ResultFile
from lmr.apps.predict.state_lock import hold_state
from lmr.apps.predict.stream_parts import StreamParts
from lmr.core.errors import LmrError
from lmr.core.files import check_folder, write_atomically
from lmr.images.image_places import ImagePlace, PlaceKey, has_frames, iterate_images
from lmr.models.catalog import DEFAULT_MODEL

if TYPE_CHECKING:
    from lmr.apps.predict.folder_run import FolderRun

AnyPath = str | os.PathLike[str]
LONGEST_NAME = 150  # of a state file: a longer stream name is replaced by its digest


@dataclass(frozen=True)
class StreamPlan:
    """A run over streams: what is labelled, how, where to, and in which shards."""

    order: PredictOrder
    streams: Sequence[ImageStream]
    out: Path
    state: Path | None  # a folder with a state per stream, which the next run continues
    shards: int | None = None

    @property
    def videos(self) -> bool:
        """Whether there are videos in any stream: then .csv files have columns for frames."""
        return any(has_frames(image) for stream in self.streams for image in stream.images)

    @property
    def images(self) -> int:
        """How many images and videos there are."""
        return sum(len(stream.images) for stream in self.streams)

    def title(self, stream: ImageStream) -> str:
        """What the progress of a stream calls its output, wherever its part is."""
        return f"{os.path.abspath(self.out)}#{stream.number}"

    def find_state(self, stream: ImageStream) -> Path | None:
        """The state that a stream starts from and leaves behind."""
        if self.state is None:
            return None
        name = quote(stream.name, safe=" ")
        if len(name) > LONGEST_NAME or name.startswith("."):
            name = hashlib.sha256(stream.name.encode("utf-8", "surrogatepass")).hexdigest()
        return self.state / f"{name}.state"

    def describe(self, shards: Sequence[Shard]) -> str:
        """The streams of every shard, a line each."""
        lines = []
        for shard in shards:
            lines.append(f"Shard {shard.number + 1} of {len(shards)}: {shard.images} images")
            lines += [f"  {len(stream.images):6}  {stream.name}" for stream in shard.streams]
        lines.append(f"Streams: {len(self.streams)}, images: {self.images:,}.")
        return "\n".join(lines)

    def note(self) -> dict[str, str]:
        """What must be the same for the run to be continued."""
        listing = hashlib.sha256()
        for stream in self.streams:
            names = [stream.name, *map(str, stream.images)]
            listing.update(json.dumps(names).encode() + b"\n")
        order = asdict(self.order)
        how = {
            f"--{key.replace('_', '-')}": str(order[key]) for key in ("model", "method", "batch_size", "top", "every")
        }
        rest = repr(sorted((key, repr(value)) for key, value in order.items()))
        return how | {
            "images": f"{self.images} in {len(self.streams)} streams",
            "--state": str(os.path.abspath(self.state)) if self.state else "none",
            "a listing with the digest": listing.hexdigest()[:16],
            "options with the digest": hashlib.sha256(rest.encode("utf-8", "surrogatepass")).hexdigest()[:16],
        }


@dataclass
class RunTally:
    """What the runs of streams report: answers of this command, not of earlier ones."""

    images: int = 0
    causes: Counter[ErrorCause] = field(default_factory=Counter)
    first_error: str | None = None
    watches: Counter[str] = field(default_factory=Counter)  # what watches have seen -> streams
    suited: str = ""

    @classmethod
    def of(cls, run: FolderRun) -> RunTally:
        """What the run of a stream has done so far."""
        watches = Counter([words]) if (words := run.describe_watch()) and run.finished else Counter()
        return cls(run.images - run.earlier, Counter(run.causes), run.first_error, watches, run.suited)

    def add(self, other: RunTally) -> None:
        """Count what others have done too."""
        self.images += other.images
        self.causes += other.causes
        self.watches += other.watches
        self.first_error = self.first_error or other.first_error
        self.suited = self.suited or other.suited

    def subtract(self, earlier: RunTally) -> RunTally:
        """What was done since an earlier tally of the same run."""
        watches = self.watches - earlier.watches
        return replace(self, images=self.images - earlier.images, causes=self.causes - earlier.causes, watches=watches)

    def describe_watches(self) -> str | None:
        """What the watches have seen, by how many streams."""
        if not self.watches:
            return None
        return " ".join(f"{words} ({count} streams)" for words, count in self.watches.most_common())


# Labels streams that are not finished yet, puts them among the parts and tells the tally.
Runner = Callable[[StreamPlan, StreamParts, Sequence[ImageStream], RunTally], None]


def plan_streams(
    sources: AnyPath | Sequence[AnyPath],
    labels: AnyPath | Sequence[str],
    *,
    stream_by: str,
    out: AnyPath | None,
    shards: int | None = None,
    model: str = DEFAULT_MODEL,
    method: str = "lmr",
    budget: float | None = None,
    templates: Sequence[str] | None = None,
    prompts: AnyPath | None = None,
    batch_size: int = 64,
    state: AnyPath | None = None,
    top: int = 5,
    every: int = 1,
    column: str | None = None,
    watch: str = "off",
    **loading: Any,
) -> StreamPlan:
    """List the images and split them into streams; arguments as those of ``predict_images``. Nothing is written.

    ``loading`` are the options of the model. ``state`` is a folder here.
    """
    order = read_order(
        labels, model, method, budget, templates, prompts, batch_size, top, every, ModelOptions(**loading), watch
    )
    if isinstance(order.wording, (str, os.PathLike)):  # the content of the file, for machines that do not have it
        order = replace(order, wording=json.loads(Path(order.wording).read_text("utf-8-sig")))
    sources = [sources] if isinstance(sources, (str, os.PathLike)) else sources
    if shards is not None and shards < 1:
        raise LmrError(f"Expected at least one shard, got {shards}.")
    if out is None:
        raise LmrError("Streams are merged into a file; give --out FILE.jsonl or FILE.csv.")
    check_path("--out", out)
    ResultFile(out, order.top)  # its extension
    check_sources(sources, {"--out": out}, column)
    if state is not None and os.path.exists(state) and not os.path.isdir(state):
        raise LmrError(
            f"{os.fspath(state)!r} is a file; with --stream-by, --state is a folder with one state per stream."
        )
    streams = split_streams(sources, stream_by, column)
    check_images([image for stream in streams for image in stream.images], every)
    return StreamPlan(order, streams, Path(out), None if state is None else Path(state), shards)


def predict_streams(
    plan: StreamPlan, *, resume: bool = False, overwrite: bool = False, run: Runner | None = None
) -> PredictSummary:
    """Label all streams of a plan and merge their answers into its output.

    A run that is not finished is continued, unless ``overwrite`` starts it again. ``run`` labels them elsewhere than in
    this process.
    """
    parts, numbers = StreamParts(plan.out), [stream.number for stream in plan.streams]
    with contextlib.ExitStack() as held:
        busy = f"Another run is writing {str(plan.out)!r}; wait for it, or give another --out."
        held.enter_context(hold_state(parts.folder, busy))
        _open_parts(plan, parts, resume, overwrite)
        if plan.state is not None:
            check_folder(plan.state)
            busy = f"Another run is using the states in {str(plan.state)!r}; wait for it, or give another --state."
            held.enter_context(hold_state(plan.state / "states", busy))
        left = [stream for stream in plan.streams if not parts.is_finished(stream.number)]
        start, tally = time.perf_counter(), RunTally()
        if left:
            with _explain_continuing(parts, numbers, overwrite):
                (run or run_here)(plan, parts, left, tally)
        seconds = time.perf_counter() - start
        counts: Counter[str | None] = Counter(line.label for number in numbers for line in parts.read_lines(number))
        _keep_states(plan, parts)
        parts.merge(numbers)
        parts.remove()
    images, errors = counts.total(), counts.pop(None, 0)
    labels = {label: count for label, count in counts.items() if label is not None}
    return PredictSummary(
        images,
        errors,
        images - tally.images,
        seconds,
        labels,
        plan.out,
        plan.state,
        dict(tally.causes),
        tally.first_error,
        tally.describe_watches(),
        tally.suited,
    )


def run_here(plan: StreamPlan, parts: StreamParts, left: Sequence[ImageStream], tally: RunTally) -> None:
    """Label the streams in this process, shard after shard."""
    shards = make_shards(left, plan.shards or 1)
    labeller, videos, done = Labeller(plan.order), plan.videos, 0
    for shard in shards:
        for stream in shard.streams:
            started = time.perf_counter()
            run = label_stream(
                labeller,
                stream,
                parts.part(stream.number),
                parts.progress(stream.number),
                plan.title(stream),
                videos,
                plan.find_state(stream),
            )
            parts.finish(stream.number, plan.state is not None)
            tally.add(RunTally.of(run))
            done += 1
            speed = (run.images - run.earlier) / max(time.perf_counter() - started, 1e-9)
            where = f"shard {shard.number + 1}  " if len(shards) > 1 else ""
            print(
                f"lmr: [{done}/{len(left)}] {where}{stream.name}: {run.images} images, {speed:.1f} images/s",
                file=sys.stderr,
            )


def label_stream(
    labeller: Labeller,
    stream: ImageStream,
    part: Path,
    progress: Path,
    title: str,
    videos: bool,
    earlier: Path | None,
    after_save: Callable[[FolderRun], None] = lambda run: None,
) -> FolderRun:
    """Label one stream into ``part``, from its ``progress`` if it has begun, or else from the state ``earlier``.

    What ``after_save`` raises after a batch ends the run, which can be continued.
    """
    output = ResultFile(part, labeller.order.top)
    begun = progress.exists()
    run = labeller.prepare(output, progress, videos, progress if begun else earlier, title)
    run.after_save = lambda: after_save(run)
    finished: set[PlaceKey] = set()
    with contextlib.closing(output):
        if begun:
            finished = run.recover()
        else:
            if earlier is not None and earlier.exists():
                run.method.load(earlier)
            run.begin()
        count = None if videos else sum(ImagePlace(image).key not in finished for image in stream.images)
        ended = threading.Event()
        items = iterate_images(stream.images, labeller.order.every, finished, ended.is_set)
        run.label(items, count, None, ended)
    return run


def _open_parts(plan: StreamPlan, parts: StreamParts, resume: bool, overwrite: bool) -> None:
    """Continue the run in the work folder, or begin one; refuse what would lose results."""
    if resume and overwrite:
        raise LmrError("Choose between --resume (continue the output) and --overwrite (replace it).")
    if parts.exists and not overwrite:
        parts.check(plan.note())
        return
    if not ResultFile(plan.out, 0).is_empty and not overwrite:
        raise LmrError(
            f"{str(plan.out)!r} exists and there is no unfinished run in {str(parts.folder)!r}; replace it with "
            "--overwrite, or give another --out."
        )
    parts.begin(plan.note())


@contextlib.contextmanager
def _explain_continuing(parts: StreamParts, numbers: Sequence[int], overwrite: bool) -> Iterator[None]:
    """Say at an interruption or an error what is finished and how to continue."""

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
