"""Write an adapted model as a Hugging Face folder, so that it runs without lmr.

The folder holds the model with its adapted norms, and two files about the classes: ``classes.safetensors`` with the
prototypes and the bias, and ``classes.json`` with the same bias as text, the names, the prompts and the origin.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.apps.model_options import choose_prompts, make_classifier, read_labels
from lmr.apps.options import AnyPath, ExportOptions, ModelOptions, Prompts
from lmr.apps.predict.run import TEMPLATES_NOTE
from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.files import make_folder
from lmr.core.labelled import Labelled
from lmr.core.method import Method
from lmr.core.prediction import AdaptedParameters
from lmr.core.registry import create, find_method, split_address
from lmr.core.spec import parse_spec
from lmr.core.state import read_names, read_state
from lmr.models import Backbone
from lmr.models.transformers_library import quiet_transformers
from lmr.version import __version__
from lmr.watch.watch_file import drop_watch

FORMAT, VERSION = "lmr-export", 1
CLASSES_JSON, CLASSES_TENSORS = "classes.json", "classes.safetensors"
LIMIT = 1e-6  # largest difference of a logit, as a share of the logit scale: 1e-4 for CLIP, rounding in float32
_FORMULA = (
    "logits = logit_scale * image_features @ prototypes.T + logit_bias + bias, where image_features are the model's, "
    f"divided by their length, and prototypes and bias are in {CLASSES_TENSORS}"
)
_CHECKED = 4  # images that are answered by both sides before the export is put in its place


@dataclass(frozen=True)
class ExportSummary:
    """The folder that was written, its origin, and the largest difference of its logits from ``predict``."""

    path: Path
    spec: str
    classes: int
    adapted: int
    difference: float

    def __str__(self) -> str:
        what = f"{self.adapted:,} adapted parameters" if self.adapted else "no adapted parameters"
        return (
            f"{str(self.path)!r} holds {self.spec}: {what}, {self.classes} classes. Logits through transformers are "
            f"at most {self.difference:.1e} from those of lmr, on {_CHECKED} random images."
        )


def export(method: Method | Labelled, backbone: Backbone, out: AnyPath, *, stream: int | None = None) -> ExportSummary:
    """Write a model, as ``method`` has adapted it, to a folder that ``transformers`` opens.

    ``method`` was created with a classifier of ``backbone``, a CLIP or SigLIP model. ``stream`` chooses one of several
    streams. The model is written in float32. It is opened with transformers and compared with ``method.predict`` before
    it is put in its place, so ``out`` is complete and correct or does not exist. What exists there is refused.

    Examples:
        >>> import lmr
        >>> backbone = lmr.load()
        >>> method = lmr.create("lmr", backbone.classifier(["cat", "dog"]))
        >>> lmr.export(method, backbone, "deployed")  # a CLIP model would be written; this one has its own tokenizer
        Traceback (most recent call last):
        ...
        lmr.core.errors.LmrError: 'photo' cannot be written as a Hugging Face folder; ...
    """
    _check_place(out)
    if method.classifier.encoder is not backbone.encoder:
        raise LmrError(
            f"Expected a method whose classifier was made by this backbone, {backbone.name!r}; got another classifier. "
            "Make it with backbone.classifier(names) of the same object."
        )
    if stream is None and method.streams > 1:
        raise LmrError(f"The method has {method.streams} streams; choose the one to export with stream=NUMBER.")
    return _Export(method, backbone, row=stream or 0, stream=stream or 0).write(out)


def export_state(state: AnyPath, out: AnyPath, options: ExportOptions | None = None) -> ExportSummary:
    """Write ``out`` from a state file, as ``lmr export`` does; a state of another model is refused."""
    options = options or ExportOptions()
    _check_place(out)
    tensors, facts = drop_watch(*read_state(state))
    streams = len(next(iter(tensors.values()), torch.empty(1)))
    if options.stream is None and streams > 1:
        raise LmrError(f"{os.fspath(state)!r} holds {streams} streams; choose the one to export with --stream.")
    chosen = options.stream or 0
    if not isinstance(chosen, int) or not 0 <= chosen < streams:
        raise LmrError(f"Expected a stream from 0 to {streams - 1} of {os.fspath(state)!r}, got {chosen!r}.")
    names, prompts = _find_classes(facts, options)
    spec = options.method or _find_spec(state, facts)
    backbone = ModelOptions(dtype=options.dtype).load(options.model)
    method: Method | Labelled = create(spec, make_classifier(backbone, names, prompts))
    rows = {key: value[chosen : chosen + 1] for key, value in tensors.items()}
    if any(key.startswith(f"{Labelled.prefix}/") for key in rows):
        method = Labelled(method)
    try:
        method.load_state_dict({**facts, "tensors": rows})
    except LmrError as error:
        raise LmrError(f"Cannot use {os.fspath(state)!r}: {error}") from error
    return _Export(method, backbone, row=0, stream=chosen).write(out)


def _find_classes(facts: Mapping[str, str], options: ExportOptions) -> tuple[list[str], Prompts | None]:
    """Return the class names and the texts around them: the given ones, or those of the state."""
    labels, templates = options.labels, options.templates
    if labels is None:
        labels = read_names(facts)
        if templates is None and options.prompts is None and f"note.{TEMPLATES_NOTE}" in facts:
            templates = json.loads(facts[f"note.{TEMPLATES_NOTE}"])
    return read_labels(labels), choose_prompts(templates, options.prompts)


def _find_spec(state: AnyPath, facts: Mapping[str, str]) -> str:
    """Return the spec that the state names; a file of code is never taken from a state, which may be a stranger's."""
    spec = facts.get("spec", "")
    file, spec = split_address(spec)
    try:
        known = file is None and find_method(parse_spec(spec)[0]) is not None
    except LmrError:
        known = False
    if not known:
        raise LmrError(
            f"{os.fspath(state)!r} belongs to {spec[:80]!r}, which is not a method of lmr. If it is in a file of your "
            "own, name it with --method FILE.py:NAME."
        )
    return spec


def _check_place(out: AnyPath) -> None:
    """Refuse a path where the folder cannot be written, or must not, before the model is loaded."""
    place = Path(out)
    if place.exists():
        raise LmrError(f"{str(place)!r} exists; remove it first, or give another name.")
    if not place.resolve().parent.is_dir():
        raise LmrError(f"Cannot write {str(place)!r}: there is no folder {str(place.parent)!r}; create it first.")


@dataclass(frozen=True)
class _Export:
    """One row of a method, which is the stream ``stream`` to its user, and the backbone that its classifier is of."""

    method: Method | Labelled
    backbone: Backbone
    row: int
    stream: int

    @cached_property
    def parameters(self) -> AdaptedParameters:
        """What the row answers with."""
        return self.method.export_parameters(self.row)

    @property
    def bias(self) -> Tensor:
        """The bias of the classes [C]."""
        found, prototypes = self.parameters.offset, self.parameters.prototypes
        return prototypes.new_zeros(len(prototypes)) if found is None else found

    def write(self, folder: AnyPath) -> ExportSummary:
        """Write the folder."""
        from safetensors import SafetensorError
        from safetensors.torch import save

        tensors = {"prototypes": self.parameters.prototypes, "bias": self.bias}
        content = save({key: value.float().cpu().contiguous() for key, value in tensors.items()})
        try:
            with make_folder(folder) as aside:
                self.backbone.write_huggingface(aside, self.parameters.norms)
                (aside / CLASSES_TENSORS).write_bytes(content)
                difference = self._compare(aside)
                facts = self._describe() | {"formula": _FORMULA, "largest_difference": difference}
                text = json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False)
                (aside / CLASSES_JSON).write_text(text + "\n", encoding="utf-8")
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or error
            raise LmrError(f"Cannot write the folder {os.fspath(folder)!r}: {reason}. Nothing was written.") from error
        adapted = sum(value.numel() for named in self.parameters.norms.values() for value in named.values())
        return ExportSummary(Path(folder), self.method.spec, self.method.classifier.classes, adapted, difference)

    def _describe(self) -> dict[str, Any]:
        """Return all that a user of the export needs beside the tensors: classes, formula and origin."""
        method, classifier = self.method, self.method.classifier
        return {
            "format": FORMAT,
            "version": VERSION,
            "names": list(classifier.names),
            "prompts": None if classifier.prompts is None else [list(own) for own in classifier.prompts],
            "prototypes_from_prompts": self.parameters.from_prompts and classifier.prompts is not None,
            "logit_scale": classifier.logit_scale,
            "logit_bias": classifier.logit_bias,
            "bias": self.bias.tolist(),
            "adapted_towers": [tower.value for tower in self.parameters.norms],
            "made_by": {
                "lmr": __version__,
                "method": method.spec,
                "model": self.backbone.name,
                "stream": self.stream,
                "images": int(method.state["predicted"][self.row].sum()),
                "digests": classifier.fingerprint,
            },
        }

    def _compare(self, folder: Path) -> float:
        """Return the largest difference of a logit between ``predict`` and the folder; refuse more than rounding."""
        method, classifier = self.method, self.method.classifier
        images = torch.randn(_CHECKED, *self.backbone.input_shape, generator=torch.Generator().manual_seed(0))
        own = images.to(classifier.device, classifier.dtype)
        expected = method.predict(own, [self.row] * len(own) if method.streams > 1 else None).logits.float().cpu()
        difference = float((_run_folder(folder, classifier, own) - expected).abs().nan_to_num(nan=float("inf")).max())
        # Frozen weights in half precision round every activation, which the exported model in float32 does not.
        rounding = LIMIT if classifier.dtype.itemsize >= 4 else 16 * torch.finfo(classifier.dtype).eps
        if difference > rounding * classifier.logit_scale:
            raise LmrError(
                f"The exported model would not answer as {method.spec} does: logits differ by up to {difference:.1e}. "
                "Nothing was written. If the method is your own, its 'export' must describe its 'answer'."
            )
        return difference


def _run_folder(folder: Path, classifier: ZeroShot, images: Tensor) -> Tensor:
    """Return the logits of a folder, computed by transformers."""
    from safetensors.torch import load_file
    from transformers import AutoModel

    written = load_file(folder / CLASSES_TENSORS)
    with torch.no_grad(), quiet_transformers():
        model: Any = AutoModel.from_pretrained(str(folder), local_files_only=True, dtype=torch.float32)
        seen = model.eval().get_image_features(images.float().cpu())
        features = F.normalize(seen if isinstance(seen, Tensor) else seen.pooler_output, dim=-1)
    return classifier.logits(features @ written["prototypes"].T) + written["bias"]
