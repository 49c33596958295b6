"""Label a folder of pictures while adapting to it, and lose nothing that is finished whatever happens meanwhile.

After every batch the result lines go to the disk first; the adaptive state and the length of the finished output go
second, in one atomic file. So a run that died at any moment resumes from the last saved batch, and ends with the same
bytes as a run that was never interrupted.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from lmr.apps.model_options import ModelOptions, choose_prompts, make_classifier, read_names
from lmr.apps.predict.folder_run import Run
from lmr.apps.predict.results import ErrorCause, ResultFile
from lmr.apps.predict.state_lock import hold_state
from lmr.core.errors import LmrError
from lmr.core.registry import create
from lmr.data.image_files import list_images

AnyPath = str | os.PathLike[str]


@dataclass(frozen=True)
class Summary:
    """What a run did. Counts are those of the whole output, with the part an interrupted run had finished."""

    images: int
    errors: int
    earlier: int  # of the images, those that were finished before this run
    seconds: float  # of this run, without loading the model
    counts: dict[str, int]  # images per predicted class
    out: Path | None
    state: Path | None
    causes: Mapping[ErrorCause, int] = field(default_factory=dict)  # of the errors of this run
    first_error: str | None = None  # of this run

    @property
    def speed(self) -> float:
        """Images per second of this run."""
        return (self.images - self.earlier) / max(self.seconds, 1e-9)

    @property
    def most_predicted(self) -> tuple[str, float] | None:
        """The class predicted most and its share of the answers; near 1, adaptation may have collapsed on it."""
        if not self.counts:
            return None
        label = max(self.counts, key=self.counts.__getitem__)
        return label, self.counts[label] / sum(self.counts.values())

    @property
    def complaint(self) -> str | None:
        """An error message if every image failed: of those this run labelled, or of the whole output. Otherwise None.

        A run that came to its end but has labelled nothing must not look like a success to the script around it.
        """
        new, failed = self.images - self.earlier, sum(self.causes.values())
        if not (new and failed == new) and not (self.images and self.errors == self.images):
            return None
        parts = [f"None of the {new or self.images} images could be labelled."]
        if self.first_error is not None:
            parts.append(f"The first error: {self.first_error}")
        parts.append(self._advise())
        if self.out is not None:
            parts.append(f"Then label them again with --overwrite; {str(self.out)!r} holds the errors.")
        return " ".join(parts)

    def _advise(self) -> str:
        """What to try when every image failed, by the most frequent cause."""
        cause = max(self.causes, key=self.causes.__getitem__, default=ErrorCause.UNREADABLE)
        if cause is ErrorCause.UNREADABLE:
            return "Check that the files are complete images."
        if cause is ErrorCause.NOT_FINITE and self.state is not None:
            return f"The state in {str(self.state)!r} is probably damaged; give another --state, or remove the file."
        return "Check the model with 'lmr doctor'."

    def __str__(self) -> str:
        parts = [f"{self.images} images", f"{self.errors} with an error", f"{self.speed:.1f} images/s"]
        if self.earlier:
            parts[0] += f" ({self.earlier} of them finished earlier)"
        if self.most_predicted is not None:
            label, share = self.most_predicted
            parts.append(f"most predicted {label!r} ({share:.1%})")
        parts.append(f"results in {self.out}" if self.out else "results on standard output")
        parts += [f"state in {self.state}"] if self.state else []
        return ", ".join(parts)


def predict_images(
    sources: AnyPath | Sequence[AnyPath],
    labels: AnyPath | Sequence[str],
    *,
    model: str = "pocket",
    method: str = "lmr",
    templates: Sequence[str] | None = None,
    prompts: AnyPath | None = None,
    batch_size: int = 64,
    state: AnyPath | None = None,
    out: AnyPath | None = None,
    resume: bool = False,
    overwrite: bool = False,
    top: int = 5,
    architecture: str | None = None,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    memory: Literal["fast", "lean"] = "fast",
    compile: bool = False,
) -> Summary:
    """Label the pictures of files and folders, adapting batch by batch; one line per picture goes to ``out``.

    ``labels`` are class names, the path of a file of them, or a text "a,b,c"; ``templates`` or the JSON file
    ``prompts`` are put around them. ``state`` is a file that carries the adaptation from one run to the next.
    ``resume`` continues an interrupted run; ``overwrite`` replaces an existing ``out``. Without ``out``, JSON lines go
    to standard output. ``model`` and the last five arguments are those of ``lmr.load``. Raises LmrError, before
    anything is touched, for what does not fit together; a picture that cannot be read becomes a line with an error.
    """
    names = read_labels(labels)
    for word, number in (("batch size", batch_size), ("number of top classes", top)):
        if not isinstance(number, int) or number < 1:
            raise LmrError(f"Expected a {word} of at least 1, got {number!r}.")
    top = min(top, len(names))
    options = ModelOptions(architecture, device, dtype, memory, compile)
    wording = choose_prompts(templates, prompts)
    for option, path in (("--out", out), ("--state", state)):
        if path is not None:
            _check_path(option, path)
    output = None if out is None else ResultFile(out, top)
    kept = Path(state) if state is not None else None if output is None else Path(f"{output.path}.state")
    with contextlib.ExitStack() as held:
        if output is not None:
            held.callback(output.close)
            if output.path.exists():
                output.open()
        if kept is not None:
            _check_path("--state", kept)
            held.enter_context(hold_state(kept, _explain_lock(output, state)))
        _check_files(output, kept, resume, overwrite)
        paths = _list_paths(sources)
        backbone = options.load(model)
        classifier = make_classifier(backbone, names, wording)
        run = Run(create(method, classifier), backbone.preprocess, output, kept, batch_size, top, options.note())
        if resume and kept is not None and kept.exists():
            paths = run.recover(paths)
        else:
            if state is not None and os.path.exists(state):
                _check_unfinished(run.method.load(state), output)
            run.begin()
        start = time.perf_counter()
        run.label(paths, "--resume instead of --overwrite" if overwrite else "--resume")
        seconds = time.perf_counter() - start
        if kept is not None and state is None:
            kept.unlink(missing_ok=True)
            kept = None
    where = None if output is None else output.path
    return Summary(
        run.images, run.errors, run.earlier, seconds, dict(run.counts), where, kept, dict(run.causes), run.first_error
    )


def read_labels(labels: AnyPath | Sequence[str]) -> list[str]:
    """Class names from a file, from a text "a,b,c" if there is no such file, or from a list; each of them once."""
    found = read_names(labels)
    names = [name.strip() for name in (found.values() if isinstance(found, dict) else found) if name.strip()]
    came = f"{os.fspath(labels)!r}" if isinstance(labels, (str, os.PathLike)) else "the list"
    if len(names) < 2:
        raise LmrError(f"Expected at least two class names, in a file or as a,b,c; got {len(names)} in {came}.")
    counts = Counter(name.replace("_", " ").casefold() for name in names)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise LmrError(f"Name every class once; {', '.join(map(repr, twice[:5]))} came more than once in {came}.")
    return names


def _check_path(option: str, path: AnyPath) -> None:
    """Refuse what cannot be a file to read and to replace. Opening a pipe would wait for ever."""
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


def _explain_lock(output: ResultFile | None, state: AnyPath | None) -> str:
    """The error message for a second run on the files of one that is still running."""
    if state is None and output is not None:
        return f"Another run is writing {str(output.path)!r}; wait for it, or give another --out."
    return (
        f"Another run is using the state {os.fspath(state or '')!r}; wait for it, or give another --state. "
        "Two runs on one state would lose what one of them learns."
    )


def _check_files(output: ResultFile | None, kept: Path | None, resume: bool, overwrite: bool) -> None:
    """Refuse what would lose or mix up results; looks, touches nothing."""
    if resume and overwrite:
        raise LmrError("Choose between --resume (continue what is there) and --overwrite (replace it).")
    if output is None:
        if resume:
            raise LmrError("Only a run that writes to a file can be resumed; give the same --out as before.")
        return
    name = str(output.path)
    if kept is not None and os.path.abspath(kept) == os.path.abspath(output.path):
        raise LmrError(f"--state and --out are both {name!r}; give them different names.")
    if resume and not output.is_empty and kept is not None and not kept.exists():
        raise LmrError(
            f"{name!r} cannot be resumed, for there is no {str(kept)!r}: the run has finished, or began with another "
            "--state. Give another --out for new pictures, or --overwrite to start again."
        )
    if not output.is_empty and not resume and not overwrite:
        raise LmrError(f"{name!r} exists; continue it with --resume, replace it with --overwrite, or name another.")


def _check_unfinished(notes: Mapping[str, str], output: ResultFile | None) -> None:
    """Refuse to go on with a state that an interrupted run with another output still needs for its --resume."""
    other = notes.get("out", "")
    same = output is not None and os.path.abspath(output.path) == other
    if notes.get("finished") == "no" and not same and os.path.exists(other):
        raise LmrError(
            f"The state belongs to the run that writes {other!r}, which is not finished; resume that one first, or "
            "give a copy of the state file."
        )


def _list_paths(sources: AnyPath | Sequence[AnyPath]) -> list[Path]:
    try:
        paths = list_images([sources] if isinstance(sources, (str, os.PathLike)) else sources)
    except ValueError as error:
        raise LmrError(str(error)) from error
    if not paths:
        raise LmrError("There is nothing to label; give at least one picture or one folder of pictures.")
    return paths
