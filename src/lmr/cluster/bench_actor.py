"""A worker on Ray: it lives on one node, keeps model and images, and runs tasks one after the other.

It writes to a folder of its own on its node. What has to survive that node, the checkpoint of a run, its samples and
its row, goes to the driver, which alone writes to the folder of the bench.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lmr.bench.inputs import describe_backbone, find_dataset
from lmr.bench.plans.task import Task
from lmr.bench.running.checkpoint import Checkpoint
from lmr.bench.running.row import Row
from lmr.bench.running.run import RunCallbacks, Stop, run_task
from lmr.cluster.pool_actor import PoolActor, UnfitNode, is_out_of_memory
from lmr.core.errors import LmrError, describe_error
from lmr.core.files import write_atomically
from lmr.core.registry import load_method_file

DATA_VARIABLE = "LMR_DATA"  # where datasets are kept, unless a node has a place of its own


@dataclass(frozen=True)
class CheckpointFiles:
    """The two files of a checkpoint, as bytes."""

    answers: bytes
    state: bytes

    @classmethod
    def read(cls, folder: Path, run: str) -> CheckpointFiles | None:
        """Return the checkpoint of a run, if it has one."""
        kept = Checkpoint(folder, run)
        try:  # the state first: the answers that belong to it were written before it, and only grow
            state = kept.state.read_bytes()
            return cls(kept.answers.read_bytes(), state)
        except FileNotFoundError:
            return None

    def write(self, folder: Path, run: str) -> None:
        """Put the checkpoint where a run looks for it. The answers first, as the state counts them."""
        kept = Checkpoint(folder, run)
        kept.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(kept.answers, self.answers)
        write_atomically(kept.state, self.state)


@dataclass(frozen=True)
class Progress:
    """The progress of a worker since the last call: images so far, messages, a new checkpoint."""

    images: int | None = None
    messages: list[str] = field(default_factory=list)
    checkpoint: CheckpointFiles | None = None


@dataclass(frozen=True)
class TaskResult:
    """The end of a task: a row and its samples, the reason of a failure, or a checkpoint if it was stopped."""

    row: Row | None = None
    samples: bytes = b""
    message: str = ""
    details: str = ""
    unfit: bool = False  # the node, not the task, is the reason: another node may do it
    progress: Progress = field(default_factory=Progress)  # what was not asked for before the end


class BenchActor(PoolActor):
    """An actor that runs tasks; ``read_progress`` and ``stop`` may be called while it does, from other threads."""

    def __init__(
        self,
        threads: int,
        save_seconds: float,
        versions: Mapping[str, str],
        folder: str | None = None,
        data: str | None = None,
    ) -> None:
        """``folder`` is the driver's, where relative paths start, ``data`` its $LMR_DATA."""
        super().__init__(threads, versions)
        if folder is not None:
            with contextlib.suppress(OSError):  # what cannot be found without it makes the node unfit
                os.chdir(folder)
        if data is not None:
            os.environ.setdefault(DATA_VARIABLE, data)
        self.save_seconds = save_seconds
        self.progress = Progress()
        self.lock = threading.Lock()
        self.digests: dict[tuple[object, ...], str] = {}
        gc.freeze()  # measuring memory collects garbage for every run, and there is none in the modules, Ray's least

    def read_progress(self) -> Progress:
        """Return the progress since the last call."""
        with self.lock:
            progress, self.progress = self.progress, Progress()
        return progress

    def _note(self, messages: Sequence[str] = (), **changes: Any) -> None:
        with self.lock:
            self.progress = replace(self.progress, messages=[*self.progress.messages, *messages], **changes)

    def run(self, task: Task, kept: CheckpointFiles | None) -> TaskResult:
        """Run a task, from its checkpoint if there is one.

        Progress that was not read goes with the result: left here, it would be taken for that of the next run.
        """
        result = self._run(task, kept)
        return replace(result, progress=self.read_progress())

    def _run(self, task: Task, kept: CheckpointFiles | None) -> TaskResult:
        if kept is not None:
            kept.write(self.folder, task.run)

        def report(images: int) -> None:
            self._note(images=images)
            if self.stopping:
                raise Stop

        def send_checkpoint() -> None:
            self._note(checkpoint=CheckpointFiles.read(self.folder, task.run))

        def say(message: str) -> None:
            self._note([message])

        try:
            self._check(task)
            row = run_task(task, self.folder, RunCallbacks(report, say, send_checkpoint), self.save_seconds)
        except Stop:
            send_checkpoint()
            return TaskResult()
        except UnfitNode as error:
            return TaskResult(message=str(error), unfit=True)
        except Exception as error:
            if is_out_of_memory(error):  # as a death: the pool ends this worker and prefers another node
                raise MemoryError(describe_error(error)) from None
            return TaskResult(message=describe_error(error), details=traceback.format_exc())
        finally:
            Checkpoint(self.folder, task.run).delete()
        samples = self.folder / "samples" / f"{task.run}.npz"
        content = samples.read_bytes()
        samples.unlink()
        return TaskResult(row, content)

    def _check(self, task: Task) -> None:
        """Refuse a task on a node that would give other numbers than the driver's machine."""
        self.check_versions()
        entry = task.entry
        try:
            method = None if entry.file is None else load_method_file(entry.file)
            data = self._digest(task)
            weights = describe_backbone(task.backbone, task.dtype, task.device)
        except (LmrError, OSError) as error:
            raise UnfitNode(str(error)) from error
        if method != entry.file_digest:
            raise UnfitNode(f"Its method file {entry.file!r} is not that of the driver's machine.")
        if data != task.data_digest:
            raise UnfitNode(f"Its files of the dataset {task.dataset!r} are not those of the driver's machine.")
        if weights != task.weights:
            raise UnfitNode(f"Its weights of the model {task.backbone!r} are not those of the driver's machine.")

    def _digest(self, task: Task) -> str:
        """Return the digest of the images of a task on this node."""
        place = (task.dataset, task.root, task.domains, task.severity)
        if place not in self.digests:
            dataset = find_dataset(task.dataset, task.root)
            self.digests[place] = dataset.digest_part(task.domains, task.severity or max(dataset.severities))
        return self.digests[place]
