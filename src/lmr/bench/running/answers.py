"""The answers of a method to a stream: one record per image, and the metrics computed from them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmr.bench.inputs import AnyMethod
from lmr.bench.machine import measure_peak, wait_for
from lmr.bench.running import metrics
from lmr.core.card import Scores
from lmr.core.functional.margin import find_protected
from lmr.core.prediction import Prediction

# Values of a batch (seconds, gate_share, protected_size, drift) are repeated in the record of each of its images.
RECORD = np.dtype(
    [(name, "<i8") for name in ("index", "true", "predicted", "domain", "batch")]
    + [(name, "<f8") for name in ("confidence", "nll", "gap", "margin", "recovery")]
    + [(name, "<f8") for name in ("seconds", "gate_share", "protected_size", "drift")]
)
Records = NDArray[np.void]


@dataclass(frozen=True)
class Step:
    """A method's answer to a batch, its cost, and the offset that its logits hold besides similarity."""

    answer: Prediction
    seconds: float
    peak: int  # bytes that the step added, plus the state of the method; 0 where not measured
    offset: Tensor | None  # [C]


def take_step(method: AnyMethod, images: Tensor, measure: bool, learns: bool = True) -> Step:
    """Adapt on a batch and answer it; ``measure`` also the peak memory, whose cost is not part of the time.

    Without ``learns`` it has no time to adapt and answers with what it kept.
    """
    before = method.logit_offset()  # the answer holds the offset from before the batch's own update
    offset = None if before is None else before[0].clone()
    found: list[tuple[Prediction, float]] = []

    def work() -> None:
        wait_for(images.device)  # for the copy of the images
        started = time.perf_counter()
        answer = method.step(images) if learns else _answer_late(method, images)
        wait_for(images.device)
        found.append((answer, time.perf_counter() - started))

    kept = measure_state(method)
    peak = measure_peak(work, images.device) + kept if measure else 0
    if not measure:
        work()
    return Step(*found[0], peak, offset)


@torch.no_grad()
def _answer_late(method: AnyMethod, images: Tensor) -> Prediction:
    """Return the answer with the state that is there; methods that keep nothing answer as the frozen model."""
    if method.memory_span == "stream":
        return method.predict(images)
    return Prediction(method.classifier(images))


def measure_state(method: AnyMethod) -> int:
    """Return the bytes of what a method has learnt."""
    return sum(tensor.numel() * tensor.element_size() for tensor in method.state.values())


def record(
    method: AnyMethod, step: Step, true: NDArray[np.int64], index: NDArray[np.int64], plain: Tensor | None
) -> Records:
    """Return the records [B] of a batch; ``plain`` [B] are the labels of zero-shot, for the recovery."""
    records = np.zeros(len(true), RECORD)
    records["gap"] = records["margin"] = records["recovery"] = np.nan
    records["true"], records["index"] = true, index
    logits = step.answer.logits.detach().cpu().double()
    places = torch.from_numpy(true)
    certain = logits.log_softmax(1)
    records["predicted"] = step.answer.labels.cpu().numpy()
    records["confidence"] = certain.amax(1).exp().numpy()
    records["nll"] = -certain.gather(1, places.unsqueeze(1)).squeeze(1).numpy()
    if (floor := method.logit_floor()) is not None:  # a true class without any probability has no likelihood
        at_floor = logits.gather(1, places.unsqueeze(1)).squeeze(1) < floor + 1e-3  # more than the logarithm's rounding
        records["nll"][at_floor.numpy()] = np.inf
    scores = compute_scores(method, logits, step.offset)
    if scores is not None:
        own = scores.gather(1, places.unsqueeze(1)).squeeze(1)
        records["gap"] = (scores.amax(1) - own).numpy()
        records["margin"] = measure_local_margin(scores, method.margin_width).numpy()
        if plain is not None:
            first = scores.gather(1, plain.cpu().unsqueeze(1)).squeeze(1)
            records["recovery"] = torch.where(plain.cpu() == places, math.nan, own - first).numpy()
    for name in ("gate_share", "protected_size", "drift"):
        records[name] = step.answer.info.get(name, math.nan)
    records["seconds"] = step.seconds / len(true)
    return records


def compute_scores(method: AnyMethod, logits: Tensor, offset: Tensor | None) -> Tensor | None:
    """Return the logits [B, C] without their offset [C], in cosine units; None if they are not based on cosines."""
    if method.scores is not Scores.COSINES:
        return None
    plain = logits if offset is None else logits - offset.cpu().double()
    return (plain - method.classifier.logit_bias) / method.classifier.logit_scale


def measure_local_margin(scores: Tensor, delta: float) -> Tensor:
    """Return the lowest score of the protected set minus the highest outside, the paper's m^local: [B], NaN without."""
    inside = find_protected(scores, delta)
    weakest = scores.masked_fill(~inside, math.inf).amin(1)
    strongest = scores.masked_fill(inside, -math.inf).amax(1)
    return torch.where(inside.all(1), math.nan, weakest - strongest)


def compute_metrics(records: Records, classes: int) -> dict[str, float | None]:
    """Return the metrics of a row that follow from the answers; None for those that do not apply."""
    predicted, true = records["predicted"], records["true"]
    later = records[records["batch"] > 0]  # libraries load in the first batch
    # A step that reports no value, as one that rests under a watch, has NaN.
    known = {key: records[key][~np.isnan(records[key])] for key in ("gate_share", "protected_size", "drift")}
    numbers = {
        **metrics.judge_classes(predicted, true),
        "ece": metrics.calibration_error(records["confidence"], predicted == true),
        "nll": float(records["nll"].mean()),
        "classes_predicted": metrics.share_of_classes(predicted, classes),
        "effective_classes": metrics.effective_classes(predicted),
        "top_share": metrics.top_share(predicted),
        "late_top_share": metrics.late_top_share(predicted),
        **{key: float(own.mean()) if len(own) else math.nan for key, own in known.items()},
        "drift": float(known["drift"][-1]) if len(known["drift"]) else math.nan,
        "ms_per_image": 1000 * float((later if len(later) else records)["seconds"].mean()),
    }
    return {key: value if math.isfinite(value) else None for key, value in numbers.items()}


def is_measured(batch: int, batches: int) -> bool:
    """Return whether the peak memory of a batch is measured: batches 1, 2, 4, 8, …, or the only one."""
    return (batch > 0 and batch & (batch - 1) == 0) or batches == 1
