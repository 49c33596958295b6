"""Which images of a batch are compared: by their number in their stream, and by its rung."""

from __future__ import annotations

from dataclasses import replace

import torch

from lmr.core.method import Mix
from lmr.watch.ladder import Ladder, Rung
from lmr.watch.signals import Tally
from lmr.watch.stream_look import describe_batch, look_at_streams
from lmr.watch.stream_watch import StreamWatch

MIX = Mix(torch.tensor([0, 2]), torch.tensor([0, 1, 0, 0, 1, 0]))  # streams 0 and 2


def list_watches(rung: Rung = Rung.OK, images: int = 0) -> list[StreamWatch]:
    plain = StreamWatch(Tally.begin(3))
    return [replace(plain, images=images, ladder=Ladder(rung)), plain, plain]


def test_one_image_in_every_few_is_compared_by_its_number_in_the_stream() -> None:
    first, second = look_at_streams(MIX, list_watches(images=2), 3)
    assert (first.stream, first.places, first.compared) == (0, [0, 2, 3, 5], [2])  # numbers 2 to 5: the third image
    assert (second.stream, second.places, second.compared) == (2, [1, 4], [1])


def test_all_images_of_a_suspected_stream_are_compared_and_none_of_one_in_quarantine() -> None:
    assert look_at_streams(MIX, list_watches(Rung.WATCH), 3)[0].compared == [0, 2, 3, 5]
    assert look_at_streams(MIX, list_watches(Rung.PAUSED), 3)[0].compared == [0, 5]
    assert look_at_streams(MIX, list_watches(Rung.QUARANTINED), 3)[0].compared == []
    assert [look.compared for look in look_at_streams(MIX, list_watches(Rung.WATCH), 0)] == [[], []]


def test_info_is_of_the_streams_in_the_batch() -> None:
    watches = list_watches(Rung.WATCH)
    looks = look_at_streams(MIX, watches, 3)
    plain = {place: torch.tensor([0.0, 1.0]) for look in looks for place in look.compared}
    said = describe_batch(looks, watches, [], plain)
    assert said["health"] == {0: "watch", 2: "ok"}
    assert set(said["signals"]) == {0, 2}
    assert said["events"] == []
    assert said["compared"] == {look.stream: [(look.places.index(k), 1) for k in look.compared] for look in looks}
