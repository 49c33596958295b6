"""Far more streams than rows: states go to the store and come back, and answers are those of solo runs."""

from __future__ import annotations

import math

import torch

from lmr.core.method import Method
from lmr.service.client.service_answer import ServiceAnswer
from lmr.service.client.service_client import Client
from lmr.service.load.child_service import read_memory_mb
from lmr.service.load.load_bench import LoadBench, read_spec
from lmr.service.load.load_images import draw_image, draw_pixels
from lmr.service.load.load_models import find_pocket, make_method, name_streams
from lmr.service.load.load_result import LoadResult, judge
from lmr.service.load.senders import run_senders

ROUNDS, EACH, THREADS = 3, 2, 16
FLAT = 1.10
NEAR = 1e-4


def measure_many_streams(bench: LoadBench) -> LoadResult:
    """Every stream sends in turn, three times over, so that each comes back after all others were served."""
    model, count, resident = find_pocket(), bench.count(10_000, 40), bench.count(500, 8)
    compared = bench.count(300, 10)  # streams that are run alone as well
    names, memories = name_streams(count), list[float]()
    kept: dict[str, list[ServiceAnswer]] = {}

    def send(client: Client, thread: int, number: int) -> ServiceAnswer:
        place = thread + THREADS * number
        stream, turn = place % count, place // count
        images = [draw_image(1000 * stream + EACH * turn + k, model.side) for k in range(EACH)]
        answer = client.step(names[stream], images, top=len(model.classes))
        if stream % (count // compared) == 0:
            kept.setdefault(names[stream], []).append(answer)
        return answer

    with bench.make_service(model, "streams", ["--resident", str(resident)]) as service:
        spec, watched = read_spec(service)
        problems = []
        for turn in range(ROUNDS):
            bench.say(f"many streams: round {turn + 1} of {ROUNDS}")
            each = math.ceil(count / THREADS)

            def send_turn(client: Client, thread: int, number: int, turn: int = turn) -> ServiceAnswer:
                place = thread + THREADS * number
                stream = place % count  # the last threads begin anew where the count is no multiple
                return send(client, 0, 0) if place >= count else _send(client, stream, turn)

            def _send(client: Client, stream: int, turn: int) -> ServiceAnswer:
                images = [draw_image(1000 * stream + EACH * turn + k, model.side) for k in range(EACH)]
                answer = client.step(names[stream], images, top=len(model.classes))
                if stream % (count // compared) == 0:
                    kept.setdefault(names[stream], []).append(answer)
                return answer

            tolls, _ = run_senders(service.url, THREADS, send_turn, 3600, patience=120, most=each)
            problems += tolls.problems
            memories.append(read_memory_mb(service))
        metrics = service.read_metrics()
    backbone = model.load()
    worst, same = 0.0, True
    for name, answers in kept.items():
        solo = make_method(model, backbone, 1, spec, watched)
        for turn, answer in enumerate(answers):
            gap, equal = _compare(solo, backbone, int(name[-5:]), turn, answer, model.side, model.classes)
            worst, same = max(worst, gap), same and equal
    growth = memories[-1] / memories[0]
    figures = {
        "streams": count, "resident": resident, "compared": len(kept), "worst_logit_gap": worst,
        "same_labels": same, "memory_growth": growth, "memory_mb": memories[-1],
        "store_mb": metrics.get("lmr_store_bytes", math.nan) / 1e6, "problems": problems,
    }  # fmt: skip
    return LoadResult(
        "many streams",
        f"pocket, {count} streams of {ROUNDS} requests, {resident} resident",
        "logits within 1e-4 of solo runs, same labels; memory flat",
        f"{len(kept)} streams compared: logits within {worst:.1e}, labels {'the same' if same else 'not the same'}; "
        f"memory ×{growth:.2f} from the first round to the last",
        judge(worst <= NEAR, same, growth <= FLAT, not problems),
        figures,
    )


def _compare(
    solo: Method, backbone: object, stream: int, turn: int, answer: ServiceAnswer, side: int, classes: tuple[str, ...]
) -> tuple[float, bool]:
    """The largest difference of the logits, both without what is common to all classes, and whether labels agree."""
    numbers = [1000 * stream + EACH * turn + k for k in range(EACH)]
    pixels = torch.stack([torch.from_numpy(draw_pixels(number, side).copy()) for number in numbers])
    alone = solo.step(backbone.preprocess_pixels(pixels))  # type: ignore[attr-defined]
    expected = alone.logits.log_softmax(1)
    worst, same = 0.0, True
    for row, result in enumerate(answer.answers):
        found = dict(result.top)
        logits = torch.tensor([math.log(max(found[name], 1e-30)) for name in classes])
        sure = expected[row] > -12  # below, a probability has too few digits left to tell a logit
        worst = max(worst, float((logits - expected[row])[sure].abs().max()))
        same = same and classes[int(alone.labels[row])] == result.label
    return worst, same
