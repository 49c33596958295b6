"""A worker without Ray: what it refuses before it works, and what it hands over."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lmr.apps.predict.options import PredictOptions
from lmr.apps.predict.run import Labeller
from lmr.apps.predict.streams import ImageStream, split_streams
from lmr.cluster.nodes import list_versions
from lmr.cluster.predicting import predict_actor
from lmr.cluster.predicting.predict_actor import LabelSetup, PredictActor, ShardNews, StreamTicket, measure_files
from lmr.images.remote import RemoteImage
from predict_runs import LABELS, draw_pictures, predict_images

OPTIONS = PredictOptions(labels=LABELS, model="pocket", method="lmr", batch_size=2)


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageStream]:
    monkeypatch.chdir(tmp_path)
    draw_pictures(tmp_path / "cam", range(5))
    threads = torch.get_num_threads()
    yield split_streams(["cam"], "folder")[0]
    torch.set_num_threads(threads)


def hire(versions: dict[str, str] | None = None, **changes: Any) -> PredictActor:
    fingerprint = Labeller(OPTIONS).classifier.fingerprint
    setup = LabelSetup(OPTIONS, fingerprint, {}, 1000, str(Path.cwd()), ".jsonl", False, 0.0)
    return PredictActor(1, versions or list_versions(), dataclasses.replace(setup, **changes))


def write_ticket(stream: ImageStream, **changes: Any) -> StreamTicket:
    return dataclasses.replace(StreamTicket(stream, "o#0", measure_files(stream.images)), **changes)


def test_parts_follow_each_other_and_make_the_answers_of_one_machine(stream: ImageStream) -> None:
    actor = hire()
    result = actor.run([write_ticket(stream)])
    actor.close()
    assert (result.message, result.unfit, result.stopped) == ("", False, False)
    predict_images("cam", LABELS, batch_size=2, out="o.jsonl")
    content = Path("o.jsonl").read_bytes()
    assert b"".join(part.content for part in result.progress.parts) == content
    ends = [part.offset + len(part.content) for part in result.progress.parts]
    assert [part.offset for part in result.progress.parts] == [0, *ends[:-1]]
    assert [part.finished for part in result.progress.parts] == [False, False, False, True]
    assert sum(part.tally.images for part in result.progress.parts) == 5
    assert not actor.folder.exists()

    early = next(part for part in result.progress.parts if part.content)  # another worker continues from here
    kept = (early.content + b"torn", early.state)
    other = hire()
    rest = other.run([write_ticket(stream, kept=kept)]).progress.parts
    other.close()
    assert rest[0].offset == len(early.content)
    assert early.content + b"".join(part.content for part in rest) == content


def test_worker_that_is_stopped_hands_over_what_it_has(stream: ImageStream) -> None:
    actor = hire()
    actor.stop()
    result = actor.run([write_ticket(stream)])
    actor.close()
    assert result.stopped
    assert [part.finished for part in result.progress.parts] == [False]
    assert actor.read_progress() == ShardNews()  # nothing that the next shard could be taken to have done


def test_shard_without_memory_ends_the_worker_as_a_death_does(
    stream: ImageStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(predict_actor, "label_stream", fail)
    actor = hire()
    with pytest.raises(MemoryError, match="CUDA out of memory"):
        actor.run([write_ticket(stream)])
    actor.close()


@pytest.mark.parametrize(
    ("setup", "ticket", "sentence"),
    [
        ({"versions": {"torch": "0"}}, {}, "It has .*lmr .* torch .*here 0"),
        ({"fingerprint": {}}, {}, "Its weights or texts of the model 'pocket' are not those of the driver's machine"),
        ({"method": {"content of own.py": "1"}}, {}, r"It has another content of own\.py missing \(here 1\)"),
        ({"weights": 10**18}, {}, r"GB of free memory, and the weights of the model alone have 1000000000\.0 GB"),
        ({"folder": "/nowhere"}, {}, "It has no folder '/nowhere', where relative paths start"),
        ({}, {"sizes": [1, 2, 3, 4, 5]}, r"Its 'cam/img0\.png' has \d+ bytes, that of the driver's machine 1\."),
    ],
)
def test_node_that_would_answer_differently_is_unfit(
    stream: ImageStream, setup: dict[str, Any], ticket: dict[str, Any], sentence: str
) -> None:
    actor = hire(**setup)
    result = actor.run([write_ticket(stream, **ticket)])
    actor.close()
    assert result.unfit
    assert re.search(sentence, result.message), result.message
    assert result.progress.parts == ()


def test_file_that_only_the_driver_has_is_missed(stream: ImageStream) -> None:
    ticket = write_ticket(stream)
    Path("cam/img3.png").unlink()
    actor = hire()
    result = actor.run([ticket])
    assert result.unfit
    assert result.message == "It cannot read 'cam/img3.png', which the driver's machine can."
    there = write_ticket(stream)  # the driver has it not either: a line with an error, as on one machine
    assert not actor.run([there]).unfit
    actor.close()


def test_first_address_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec", reason="needs fsspec: pip install 'lmr[remote]'")
    memory = fsspec.filesystem("memory")
    memory.pipe("/x/a.png", b"a")
    images = [RemoteImage("memory://x/a.png"), RemoteImage("memory://x/b.png")]
    assert measure_files(images) == [0, None]
    assert measure_files(images[1:]) == [None]
    monkeypatch.setattr(predict_actor, "open_remote", lambda url: (_ for _ in ()).throw(OSError))
    assert measure_files(images) == [None, None]
    memory.rm("/x", recursive=True)
