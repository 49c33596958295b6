"""The progress of shards: on a terminal a bar for all and one per worker, elsewhere a line per finished stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TextIO

from lmr.apps.predict.streams import ImageStream
from lmr.bench.running.view import Bars
from lmr.cluster.predicting.shard_pool import ShardEvent
from lmr.core.foreign_text import make_printable


class ShardView:
    """Shows nodes, what each does and what is left; ``describe_place`` says where a worker is."""

    def __init__(self, left: Sequence[ImageStream], screen: TextIO, describe_place: Callable[[int], str]) -> None:
        self.sizes = {stream.name: len(stream.images) for stream in left}
        self.left = dict(self.sizes)  # streams that are not finished, with their images
        self.at: dict[int, ShardEvent] = {}  # what the workers do
        self.describe_place = describe_place
        self._drawn: set[int] = set()
        self.bars = Bars(screen)
        self._draw()

    def show(self, event: ShardEvent) -> None:
        """Show what has happened."""
        if event.kind == "progress":
            if event.message in self.left:
                self.at[event.worker] = event
            self._draw()
            return
        if event.kind == "stream":
            self.left.pop(event.message, None)
            self.at.pop(event.worker, None)
            done, total = len(self.sizes) - len(self.left), len(self.sizes)
            where = f"{self.describe_place(event.worker)}  {event.job.run}"
            left = f"{_count(len(self.left), 'stream')} with {_count(sum(self.left.values()), 'image')} left"
            name = make_printable(event.message)
            self._write(f"[{done}/{total}] {where}  {name}: {_count(self.sizes[event.message], 'image')} ({left})")
            return
        # A message is about a shard that lost its worker, or cannot be done there.
        self.at = {worker: last for worker, last in self.at.items() if last.job != event.job}
        if event.message:
            failed = f"{event.job.run} failed: " if event.kind == "failed" else ""
            self._write(f"lmr: {failed}{event.message}")

    def close(self) -> None:
        """Remove the bars from the terminal."""
        self.bars.close()

    def _write(self, line: str) -> None:
        self._draw()
        self.bars.write(line)

    def _draw(self) -> None:
        total = sum(self.sizes.values())
        done = total - sum(self.left.values()) + sum(event.images for event in self.at.values())
        self.bars.update("", done / total, f"{done:,} of {total:,} images, {_count(len(self.left), 'stream')} left")
        for worker in self._drawn - set(self.at):
            self.bars.remove(worker)
        for worker, event in sorted(self.at.items()):
            images = self.sizes[event.message]
            where = f"{self.describe_place(worker)}  {event.job.run}"
            text = f"{where}  {make_printable(event.message)}: {event.images} of {images} images"
            self.bars.update(worker, event.images / images, text)
        self._drawn = set(self.at)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
