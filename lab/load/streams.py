"""Many more streams than rows: states move to the store and back, and answers equal those of solo runs."""

from __future__ import annotations

import math

import torch

from lab.load.bench import LoadBench, LoadResult, judge
from lab.load.inputs import draw_image, draw_pixels, find_pocket, make_method, name_streams
from lab.load.senders import Send, run_senders
from lmr.core.prediction import Prediction
from lmr.service.client.client import Client
from lmr.service.engine.requests import ServiceAnswer

ROUNDS, EACH, THREADS = 3, 2, 16
FLAT = 1.10
NEAR = 1e-4
LEAST = 0.02  # probabilities have six digits, which gives a logit to 1e-4 only above this


def measure_many_streams(bench: LoadBench) -> LoadResult:
    """Let every stream send once per round, so that all others are served between its requests."""
    model, count, resident = find_pocket(), bench.count(10_000, 32), bench.count(500, 6)
    every = count // bench.count(250, 8)  # every n-th stream is compared with a solo run
    names, memories, problems = name_streams(count), list[float](), list[str]()
    kept: dict[int, list[ServiceAnswer]] = {}

    def make_send(turn: int) -> Send:
        def send(client: Client, thread: int, number: int) -> ServiceAnswer:
            stream = thread + THREADS * number
            images = [draw_image(place, model.side) for place in _list_places(stream, turn)]
            answer = client.step(names[stream], images, top=len(model.classes))
            if stream % every == 0:
                kept.setdefault(stream, []).append(answer)
            return answer

        return send

    with bench.make_service(model, "streams", ["--resident", str(resident)]) as service:
        spec, watched = service.read_spec()
        for turn in range(ROUNDS):
            bench.report(f"many streams: round {turn + 1} of {ROUNDS}")
            stats, _ = run_senders(service.url, THREADS, make_send(turn), 3600, patience=120, most=count // THREADS)
            problems += stats.problems
            memories.append(service.read_memory_mb())
        store = service.read_metrics()["lmr_store_bytes"]
    backbone = model.load()
    worst, same = 0.0, True
    for stream, answers in kept.items():
        solo = make_method(model, backbone, 1, spec, watched)
        for turn, answer in enumerate(answers):
            pixels = [draw_pixels(place, model.side) for place in _list_places(stream, turn)]
            alone = solo.step(backbone.preprocess(pixels))
            gap, equal = _compare(alone, answer, model.classes)
            worst, same = max(worst, gap), same and equal
    growth = memories[-1] / memories[0]
    figures = {
        "streams": count, "resident": resident, "compared": len(kept), "worst_logit_gap": worst,
        "same_labels": same, "memory_growth": growth, "memory_mb": memories[-1],
        "store_mb": store / 1e6, "problems": problems,
    }  # fmt: skip
    return LoadResult(
        "many streams",
        f"pocket, {count} streams of {ROUNDS} requests, {resident} resident",
        "logits within 1e-4 of solo runs, same labels; memory flat",
        f"{len(kept)} streams compared: logits of classes above {100 * LEAST:.0f} % within {worst:.1e}, labels "
        f"{'the same' if same else 'not the same'}; memory ×{growth:.2f} from the first round to the last",
        judge(worst <= NEAR, same, growth <= FLAT, not problems),
        figures,
    )


def _list_places(stream: int, turn: int) -> list[int]:
    """Return the numbers of the images of a stream in a round."""
    return [1000 * stream + EACH * turn + k for k in range(EACH)]


def _compare(alone: Prediction, answer: ServiceAnswer, classes: tuple[str, ...]) -> tuple[float, bool]:
    """Return the largest difference of log-probabilities, and True if the labels agree."""
    expected, worst, same = alone.logits.log_softmax(1), 0.0, True
    for row, result in enumerate(answer.answers):
        found = dict(result.top)
        logits = torch.tensor([math.log(max(found[name], 1e-30)) for name in classes])
        compared = expected[row] > math.log(LEAST)
        worst = max(worst, float((logits - expected[row])[compared].abs().max()))
        same = same and classes[int(alone.labels[row])] == result.label
    return worst, same
