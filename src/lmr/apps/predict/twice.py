"""``lmr predict`` on files: two passes, of which the second answers all images with what the first has learnt.

A folder is not a stream: nobody waits for the answer to its first image. The second pass continues from the state of
the first and adapts further; the default adapts from where the answers began to be less clear. A method that answered
as the frozen model throughout would only answer the same again, so that its first pass is the result.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lmr.apps.options import AnyPath
from lmr.apps.predict.options import PredictOptions
from lmr.apps.predict.results import PredictSummary, ResultFile, print_bytes
from lmr.apps.predict.run import Labeller, check_files, check_path, hold_path, predict_images
from lmr.core.card import Role
from lmr.core.registry import find_addressed
from lmr.images.sources import has_frames, list_sources


def predict_twice(sources: AnyPath | Sequence[AnyPath], options: PredictOptions) -> PredictSummary:
    """Label images as ``predict_images``, in two passes where a second one can give other answers."""
    options = options.resolve()  # once: class names may come from a pipe
    sources = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    if not _needs_two(sources, options):
        return predict_images(sources, options)
    if options.out is None:
        if options.resume:
            return predict_images(sources, options)  # which says that there is nothing to resume
        with tempfile.TemporaryDirectory() as folder:
            return _predict(sources, options, Path(folder) / "first.jsonl")
    out = Path(options.out)
    check_path("--out", out)
    first = out.with_name(f"{out.name}.first{out.suffix}")
    busy = f"Another run is writing {str(out)!r}; wait for it, or give another --out."
    with hold_path(Path(f"{out}.passes"), busy):
        if not options.resume or not _has_begun(first):
            check_files(ResultFile(out, options.top), options.state_path, options)
            if options.resume and Path(f"{out}.state").exists():
                return predict_images(sources, options)  # which says that the run had one pass
        return _predict(sources, options, first)


def _needs_two(sources: Sequence[AnyPath], options: PredictOptions) -> bool:
    """Return True for files that a method with a memory labels, if they are not a part of a longer stream."""
    method = find_addressed(options.method)
    remembers = method.memory_span == "stream" and method.card.role is not Role.BASELINE
    if options.passes == 1 or options.state is not None or not remembers:
        return False
    return not has_frames(list_sources(sources, options.column))


def _has_begun(first: Path) -> bool:
    return first.exists() and _name_state(first).exists()


def _predict(sources: Sequence[AnyPath], options: PredictOptions, first: Path) -> PredictSummary:
    """Run both passes. The first writes to the file ``first`` and keeps beside it what it has learnt."""
    state, second = _name_state(first), options.state_path
    resume = options.resume and _has_begun(first)
    if not resume:
        first.unlink(missing_ok=True)
        state.unlink(missing_ok=True)
    seconds, noticed, begun = 0.0, None, resume and second is not None and second.exists()
    loaded: list[Labeller] = []

    def load(options: PredictOptions, images: Sequence[Path]) -> Labeller:
        loaded[:] = loaded or [Labeller(options, images)]
        return loaded[0].use(options)

    if not begun:
        one = replace(options, out=first, state=state, resume=resume, overwrite=False)
        summary = predict_images(sources, one, title="pass 1 of 2", load=load)
        seconds, noticed = summary.seconds, summary.tally.first_adapted
        if not summary.adapted:
            return _take(summary, first, state, options)
    two = replace(options, resume=begun, overwrite=not begun)  # the first pass has checked the output
    summary = predict_images(sources, two, begin=state, title="pass 2 of 2", load=load)
    first.unlink(missing_ok=True)
    state.unlink(missing_ok=True)
    tally = replace(summary.tally, first_adapted=noticed)
    return replace(summary, tally=tally, seconds=seconds + summary.seconds, passes=2)


def _name_state(first: Path) -> Path:
    return Path(f"{first}.state")


def _take(summary: PredictSummary, first: Path, state: Path, options: PredictOptions) -> PredictSummary:
    """Make the output of the first pass the result."""
    if options.out is None:
        print_bytes(first.read_bytes())
    else:
        os.replace(first, options.out)
    state.unlink(missing_ok=True)
    return replace(summary, out=options.out, state=None)
