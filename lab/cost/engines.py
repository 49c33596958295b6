"""Compare our forward with the engines that a user would take, also in bfloat16 and int8, in one process."""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab.cost.measure import CostRequest, CostStep, describe_protocol
from lab.cost.model import MeasuredModel, find_measured_model
from lab.cost.vision import build_transformers_vision
from lmr.bench.machine import describe_machine, use_threads
from lmr.bench.table import format_table
from lmr.core.classifier import ZeroShot
from lmr.core.log import quiet_loggers
from lmr.core.placement import place_tower
from lmr.core.progress import show_progress
from lmr.core.registry import create
from lmr.data.dataset import CLEAN
from lmr.data.photographs import Photographs
from lmr.models.towers.image import VisionTower

OURS = "lmr float32"  # with whose answers the others are compared
PHOTOGRAPHS = 512  # whose labels are compared
LEGEND = """\
ms/image: the fastest batch and the median of all rounds; the entries alternate in one process.
time: the fastest batch divided by that of 'lmr float32'; for steps, by that of the step in float32.
labels, logits: the share of labels that are those of 'lmr float32', and the largest difference from its logits.
accuracy: on photographs of ten classes, for a model of the package.
'onnxruntime int8' has the linear layers of the ONNX file in int8, and 'openvino int8' runs the same file. A step adapts
by LMR, every image past its gate."""

Engine = Callable[[Tensor], Tensor]  # images [B, ...] to logits [B, C]


def compare_engines(request: CostRequest) -> str:
    """Return a table of the forward in every engine that is installed, and of a step of LMR in both types."""
    machine = describe_machine()  # before anything runs
    with use_threads(request.threads), tempfile.TemporaryDirectory() as folder:
        model = find_measured_model(request.source)
        images, clip, labels = _choose_images(model, request)
        engines = list_engines(model, clip, request.threads, Path(folder))
        chunks = torch.split(images, request.batch_size)
        answers = {name: torch.cat([_run(engine, chunk) for chunk in chunks]) for name, engine in engines.items()}
        entries = engines | {f"step of LMR, {name}": _adapt(engines[f"lmr {name}"]) for name in ("float32", "bfloat16")}
        steps = {name: CostStep(len(chunks[0]), 0, partial(_run, run, chunks[0])) for name, run in entries.items()}
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        with show_progress("rounds", request.rounds + 1, "rounds") as bar:
            for _ in range(request.rounds + 1):
                for name, step in steps.items():
                    seconds[name].append(step.time(request.cpu_time))
                bar.advance()
    lines = [["engine", "ms/image", "median", "time", "labels", "logits", "accuracy"]]
    for name in steps:
        each = sorted(1000 * value / len(chunks[0]) for value in seconds[name][1:])  # the first round warms up
        base = OURS if name in engines else f"step of LMR, {OURS.split()[1]}"
        ratio = each[0] * len(chunks[0]) / (1000 * min(seconds[base][1:]))
        cells = [name, f"{each[0]:.2f}", f"{each[len(each) // 2]:.2f}", f"{ratio:.2f}"]
        lines.append(cells + (_compare(answers[name], answers[OURS], labels) if name in engines else ["-"] * 3))
    facts = {"model": model.name, "batch size": request.batch_size}
    facts |= {name: version(name) for name in ("onnxruntime", "openvino") if find_spec(name) is not None}
    return "\n\n".join([describe_protocol(facts, request, machine), format_table(lines), LEGEND])


def _choose_images(model: MeasuredModel, request: CostRequest) -> tuple[Tensor, ZeroShot, Tensor | None]:
    """Return images, a classifier and true labels: photographs, or for random weights images of certain classes."""
    if model.backbone is None:
        count = request.batch_size
        return model.draw_images(count), model.make_classifier(count, request.classes), None
    photographs = Photographs()
    images = model.backbone.preprocess(photographs.read(CLEAN, 0, range(PHOTOGRAPHS)))
    return images, model.backbone.classifier(photographs.classes), torch.from_numpy(photographs.labels(CLEAN))


def _compare(logits: Tensor, ours: Tensor, labels: Tensor | None) -> list[str]:
    """Return the share of equal labels, the largest difference of logits, and the accuracy where labels are known."""
    own = logits.argmax(1)
    same, apart = (own == ours.argmax(1)).double().mean(), (logits - ours).abs().max()
    right = "-" if labels is None else f"{(own == labels[: len(own)]).double().mean():.1%}"
    return [f"{same:.1%}", f"{apart:.2g}", right]


@torch.no_grad()
def _run(engine: Engine, images: Tensor) -> Tensor:
    return engine(images)


def _adapt(classify: Engine) -> Engine:
    """Return a step of LMR by one of our classifiers, from the start."""
    assert isinstance(classify, ZeroShot | Half)
    method = create("lmr(tau=0.0)", classify if isinstance(classify, ZeroShot) else classify.classifier)

    def step(images: Tensor) -> Tensor:
        method.reset()
        logits: Tensor = method.step(images.to(method.classifier.dtype)).logits
        return logits

    return step


class Half:
    """A classifier whose image tower is rounded to bfloat16, for images in float32."""

    def __init__(self, clip: ZeroShot) -> None:
        self.classifier = copy.copy(clip)
        self.classifier.encoder = copy.deepcopy(clip.encoder)
        place_tower(self.classifier.encoder, dtype=torch.bfloat16)

    def __call__(self, images: Tensor) -> Tensor:
        """Return logits [B, C]."""
        return self.classifier(images.bfloat16())


def list_engines(model: MeasuredModel, clip: ZeroShot, threads: int, folder: Path) -> dict[str, Engine]:
    """Return the engines that are installed, each with the model, by their names; files are written to ``folder``."""
    assert isinstance(model.encoder, VisionTower)
    half, theirs = Half(clip), build_transformers_vision(model.encoder)
    engines: dict[str, Engine] = {OURS: clip, "lmr bfloat16": half}
    engines["torch.compile float32"] = partial(_encode, clip, torch.compile(clip.encoder))
    engines["torch.compile bfloat16"] = partial(_encode, half.classifier, torch.compile(half.classifier.encoder))
    engines["transformers float32"] = partial(_encode, clip, lambda images: theirs(pixel_values=images).image_embeds)
    files = _write_onnx(model, clip, folder)
    for name, file in files.items():
        engines[f"onnxruntime {name}"] = _start_onnxruntime(file, threads)
    if find_spec("openvino") is not None:  # not among the requirements of the laboratory
        for name, kind, hint in (
            ("float32", "float32", "f32"),
            ("bfloat16", "float32", "bf16"),
            ("int8", "int8", "bf16"),
        ):
            engines[f"openvino {name}"] = _start_openvino(files[kind], hint, threads)
    return engines


def _encode(clip: ZeroShot, encode: Engine, images: Tensor) -> Tensor:
    """Return the logits from the features of another encoder in the type of a classifier."""
    features = encode(images.to(clip.dtype)).to(clip.prototypes.dtype)
    return clip.logits(clip.cosines(F.normalize(features, dim=-1)))


def _write_onnx(model: MeasuredModel, clip: ZeroShot, folder: Path) -> dict[str, Path]:
    """Write the classifier as ONNX, in float32 and with linear layers in int8; return both files by their type."""
    files = {name: folder / f"{name}.onnx" for name in ("float32", "int8")}
    example, axes = torch.zeros(2, *model.input_shape), {"images": {0: torch.export.Dim("batch")}}
    with quiet_loggers("torch.onnx", "onnxscript", "onnx_ir"), warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")  # they are about torch's own code
        torch.onnx.export(
            _Classify(clip).eval(), (example,), files["float32"], dynamo=True, input_names=["images"],
            dynamic_shapes=axes, external_data=False, verbose=False,
        )  # fmt: skip
    import_module("onnxruntime.quantization").quantize_dynamic(files["float32"], files["int8"])
    return files


class _Classify(nn.Module):
    """A classifier as a module of plain operations."""

    def __init__(self, clip: ZeroShot) -> None:
        super().__init__()
        self.encoder, self.bias = copy.deepcopy(clip.encoder).requires_grad_(), clip.logit_bias
        self.register_buffer("prototypes", clip.logit_scale * clip.prototypes)

    def forward(self, images: Tensor) -> Tensor:
        """[B, ...] to [B, C]."""
        return F.normalize(self.encoder(images), dim=-1) @ self.get_buffer("prototypes").T + self.bias


def _start_onnxruntime(file: Path, threads: int) -> Engine:
    onnxruntime = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


def _start_openvino(file: Path, hint: str, threads: int) -> Engine:
    openvino = import_module("openvino")
    settings = {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.Core().compile_model(file, "CPU", settings)
    return lambda images: torch.from_numpy(compiled(images.numpy())[0].copy())
