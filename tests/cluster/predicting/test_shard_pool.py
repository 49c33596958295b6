"""Shards: every stream once, in shares of about as many images."""

from __future__ import annotations

from pathlib import Path

from lmr.apps.predict.streams import ImageStream
from lmr.cluster.predicting.shard_pool import make_shards


def test_shards_have_about_as_many_images_and_every_stream_once() -> None:
    sizes = [5, 1, 1, 9, 3, 3]
    streams = [ImageStream(number, str(number), (Path("x"),) * size) for number, size in enumerate(sizes)]
    shards = make_shards(streams, 3)
    assert [shard.images for shard in shards] == [9, 7, 6]
    assert sorted(stream.number for shard in shards for stream in shard.streams) == list(range(6))
    assert make_shards(reversed(streams), 3) == shards
    assert len(make_shards(streams, 100)) == 6
    assert [stream.number for stream in make_shards(streams, 1)[0].streams] == list(range(6))
