"""A model that is loaded once and labels any number of runs, each with a fresh adaptation of its own."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lmr.apps.model_options import (
    ModelOptions,
    Prompts,
    create_suited,
    describe_suited,
    list_earlier_forms,
    make_classifier,
)
from lmr.apps.predict.budget import ChosenSwitch, choose_switch
from lmr.apps.predict.folder_run import FolderRun
from lmr.apps.predict.result_file import ResultFile
from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.method import Method
from lmr.core.state import read_state
from lmr.models.catalog import DEFAULT_MODEL
from lmr.watch.settings import WatchSettings
from lmr.watch.watched import Watched


@dataclass(frozen=True)
class PredictOrder:
    """How images are to be labelled: all that decides an answer except the images. It can be pickled."""

    names: Sequence[str]
    model: str = DEFAULT_MODEL
    method: str = "lmr"
    budget: float | None = None
    templates: Sequence[str] | None = None  # as they are noted in the state
    wording: Prompts | None = None  # the templates, or prompts for every class
    batch_size: int = 64
    top: int = 5
    every: int = 1
    loading: ModelOptions = field(default_factory=ModelOptions)
    guard: WatchSettings | None = None


class Labeller:
    """The model of an order. ``prepare`` gives runs that share it and nothing else."""

    def __init__(self, order: PredictOrder) -> None:
        self.order = order
        self.backbone = order.loading.load(order.model)
        self.classifier = make_classifier(self.backbone, order.names, order.wording)
        self._switch: ChosenSwitch | None = None
        if order.budget is not None:
            self._switch = choose_switch(order.method, self.classifier, order.budget, order.batch_size)
            print(f"lmr: {self._switch.describe()}", file=sys.stderr)

    def prepare(
        self,
        output: ResultFile | None,
        progress: Path | None,
        videos: bool,
        earlier: Path | None = None,
        title: str | None = None,
    ) -> FolderRun:
        """A run that has not begun; ``earlier`` is a state that it will continue, ``title`` another name of the output.

        ``videos`` says whether there may be frames of videos among its images.
        """
        order = self.order
        settings = order.loading.note() | ({"every": str(order.every)} if videos else {})
        if output is not None:
            output.frames = videos
        method = self._create_method(earlier)
        suited = describe_suited(order.method, method)
        if order.guard is not None:
            method, settings["watch"] = Watched(method, order.guard), order.guard.spec
        run = FolderRun(
            method, self.backbone.preprocess, output, progress, order.batch_size, order.top, settings, order.templates
        )
        run.suited, run.title = suited, title
        return run

    def _create_method(self, earlier: Path | None) -> Method:
        if self._switch is None:
            return _create_method(self.order.method, self.classifier, earlier)
        return create_suited(self.order.method, self.classifier, **self._switch.values)


def _create_method(spec: str, classifier: ZeroShot, earlier: Path | None) -> Method:
    """The method as it suits images as they come; as an earlier version created it where an earlier state says so."""
    suited = create_suited(spec, classifier)
    if earlier is None or not earlier.exists():
        return suited
    with contextlib.suppress(LmrError):  # a file that is no state is refused where it is loaded
        saved = read_state(earlier)[1].get("spec")
        if saved != suited.spec:
            return next((form for form in list_earlier_forms(spec, classifier) if form.spec == saved), suited)
    return suited
