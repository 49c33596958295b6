"""An adapted classifier as one ONNX file: images in, logits out. torch writes it, and onnxruntime runs it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.core.card import Tower
from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.extras import require
from lmr.core.log import quiet_loggers
from lmr.core.prediction import AdaptedParameters

IMAGES, LOGITS = "images", "logits"  # the input [batch, *input_shape] and the output [batch, classes]


class _Adapted(nn.Module):
    """Images to logits, with the adapted parameters as constants, in float32 on the CPU."""

    def __init__(self, classifier: ZeroShot, parameters: AdaptedParameters) -> None:
        super().__init__()
        # With gradients our towers run as plain operations of torch, without the buffers that no exporter can follow.
        self.encoder = copy.deepcopy(classifier.encoder).float().cpu().requires_grad_()
        self.encoder.load_state_dict(dict(parameters.norms.get(Tower.IMAGE, {})), strict=False)
        offset = torch.zeros(()) if parameters.offset is None else parameters.offset.detach().float().cpu()
        self.register_buffer("prototypes", classifier.logit_scale * parameters.prototypes.detach().float().cpu())
        self.register_buffer("bias", classifier.logit_bias + offset)

    def forward(self, images: Tensor) -> Tensor:
        """[B, ...] to [B, C]."""
        prototypes, bias = self.get_buffer("prototypes"), self.get_buffer("bias")
        return F.normalize(self.encoder(images), dim=-1) @ prototypes.T + bias


def build_onnx(
    classifier: ZeroShot, parameters: AdaptedParameters, shape: tuple[int, ...], notes: Mapping[str, str]
) -> bytes:
    """Return the content of an ONNX file for any number of images of this shape; ``notes`` are its metadata.

    Raises LmrError if the model cannot be written, or exceeds the 2 GiB that one ONNX file can hold.
    """
    for module in ("onnx", "onnxscript"):
        require(module, "onnx", "An ONNX file")
    model = _Adapted(classifier, parameters).eval()
    example, axes = torch.zeros(2, *shape), {IMAGES: {0: torch.export.Dim("batch")}}
    try:
        # The notices and warnings of the exporter are about torch's own code.
        with quiet_loggers("torch.onnx", "onnxscript", "onnx_ir"), warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            program: Any = torch.onnx.export(
                model, (example,), dynamo=True, input_names=[IMAGES], output_names=[LOGITS], dynamic_shapes=axes,
                verbose=False,
            )  # fmt: skip
        program.model.metadata_props.update(notes)
        content: bytes = program.model_proto.SerializeToString()
    except Exception as error:  # whatever a tower that cannot be traced makes torch raise, and files beyond 2 GiB
        reason = (str(error).strip().partition("\n")[0] or type(error).__name__)[:200]
        raise LmrError(f"The model cannot be written as one ONNX file: {reason}") from error
    return content


def run_onnx(content: bytes, images: Tensor) -> Tensor:
    """Return the logits [B, C] that onnxruntime computes on the CPU."""
    runtime = require("onnxruntime", "onnx", "The check of an ONNX file")
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run([LOGITS], {IMAGES: images.float().cpu().numpy()})[0])


def read_notes(path: Path) -> dict[str, str]:
    """Return the metadata of an ONNX file; nothing for one that is not valid."""
    onnx = require("onnx", "onnx", "An ONNX file")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception:  # whatever foreign bytes make protobuf raise
        return {}
    return {entry.key: entry.value for entry in model.metadata_props}
