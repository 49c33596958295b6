"""The streams of a batch as a watch looks at them: which images are compared, and what the info of the batch says."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lmr.core.method import Mix
from lmr.watch.ladder import Rung
from lmr.watch.stream_watch import HealthEvent, StreamWatch, measure_watch


@dataclass(frozen=True)
class StreamLook:
    """One stream in one batch: its images' places, those to compare, and its watch before the step."""

    stream: int
    places: list[int]
    compared: list[int]
    watch: StreamWatch


def look_at_streams(mix: Mix, watches: Sequence[StreamWatch], every: int) -> list[StreamLook]:
    """The streams of a batch; of each calm one, one image in ``every`` is compared (0: none of any stream).

    Which images are compared depends on nothing but their number in the stream and its rung.
    """
    members: list[list[int]] = [[] for _ in range(mix.count)]
    for place, k in enumerate(mix.index.tolist()):
        members[k].append(place)
    looks = []
    for stream, places in zip(mix.active.tolist(), members, strict=True):
        watch = watches[stream]
        rung = watch.ladder.rung
        calm = rung in (Rung.OK, Rung.PAUSED)
        compared = []
        if every and rung is not Rung.QUARANTINED:
            compared = [place for n, place in enumerate(places, watch.images) if not calm or n % every == 0]
        looks.append(StreamLook(stream, places, compared, watch))
    return looks


def describe_batch(
    looks: Sequence[StreamLook],
    watches: Sequence[StreamWatch],
    events: Sequence[HealthEvent],
    plain: Mapping[int, Tensor],
) -> dict[str, Any]:
    """What the info of a batch says of the watch, in plain Python values; ``plain`` are the frozen model's logits."""
    now = {look.stream: watches[look.stream] for look in looks}
    return {
        "health": {stream: str(watch.ladder.rung) for stream, watch in now.items()},
        "signals": {stream: dict(vars(measure_watch(watch))) for stream, watch in now.items()},
        "events": [json.loads(json.dumps(dataclasses.asdict(event))) for event in events],
        "compared": {
            look.stream: [(look.places.index(place), int(plain[place].argmax())) for place in look.compared]
            for look in looks
        },
    }
