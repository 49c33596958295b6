from __future__ import annotations

import os
import shlex
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import uvicorn
from PIL import Image
from starlette.testclient import TestClient

from lmr import LmrError
from lmr.apps.label import (
    LabelSession,
    describe_labels,
    label_folder,
    make_label_app,
)
from lmr.apps.method_options import LabelOptions
from lmr.cli.parser import parse

NAMES = ["cat", "dog", "pickup truck"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "sub").mkdir(parents=True)
    for number in range(6):
        Image.new("RGB", (8, 8), (40 * number, 0, 0)).save(folder / ("sub" if number % 2 else "") / f"{number}.png")
    return folder


def start(folder: Path) -> LabelSession:
    return LabelSession(folder, NAMES, folder.parent / "labels.csv")


def read_lines(folder: Path) -> list[str]:
    return (folder.parent / "labels.csv").read_text().splitlines()


def test_labels_are_on_the_disk_at_once_and_continued(folder: Path) -> None:
    session = start(folder)
    first, second, third = session.find_next(3)
    session.label(first, "dog")
    session.label(second, None)
    again = start(folder)
    assert again.labels == {first: "dog", second: None}
    assert again.find_next() == [third]
    again.label(first, "cat")  # the later label replaces the earlier one
    assert start(folder).labels == {second: None, first: "cat"}
    assert len(read_lines(folder)) == 3


def test_order_is_random_and_stays_when_files_come_and_go(folder: Path) -> None:
    before = [start(folder).images[place].name for place in start(folder).order]
    assert sorted(before) != before
    (folder / "2.png").unlink()
    session = start(folder)
    after = [session.images[place].name for place in session.order]
    assert after == [name for name in before if name != "2.png"]
    session.images[session.find_next()[0]].unlink()  # while somebody labels
    assert session.images[session.find_next()[0]].name == after[1]


def test_back_skip_and_files_of_other_folders(folder: Path) -> None:
    (folder.parent / "labels.csv").write_text("path,label\ngone.png,cat\n")
    session = start(folder)
    first, second = session.find_next(2)
    session.skip(first)
    assert session.find_next() == [second]
    session.label(second, "cat")
    assert session.back() == second
    assert session.back() is None
    assert session.find_next() == [second]
    assert read_lines(folder) == ["path,label", "gone.png,cat"]


def test_full_disk_keeps_the_labels_before(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = start(folder)
    first, second = session.find_next(2)
    session.label(first, "cat")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    for act in (lambda: session.label(second, "dog"), session.back):
        with pytest.raises(LmrError, match="No space left"):
            act()
    monkeypatch.undo()
    assert session.labels == start(folder).labels == {first: "cat"}


@pytest.mark.parametrize(("place", "name"), [(0, "horse"), (99, "cat"), (-1, "cat")])
def test_wrong_labels_are_refused(folder: Path, place: int, name: str) -> None:
    session = start(folder)
    with pytest.raises(LmrError, match="There is no"):
        session.label(place, name)
    assert session.labels == {}


@pytest.fixture
def client(folder: Path) -> Iterator[TestClient]:
    with TestClient(make_label_app(start(folder), None), base_url="http://127.0.0.1") as client:
        yield client


def test_page_labels_an_image(client: TestClient, folder: Path) -> None:
    state = client.get("/state").json()
    assert state["names"] == NAMES
    assert client.get(f"/image/{state['image']}").headers["content-type"] == "image/jpeg"
    after = client.post("/state", json={"action": "label", "image": state["image"], "name": "dog"}).json()
    assert (after["labelled"], after["image"]) == (1, state["next"])
    assert client.post("/state", json={"action": "back"}).json()["image"] == state["image"]
    assert client.get("/").status_code == client.get("/assets/label.js").status_code == 200
    assert read_lines(folder) == ["path,label"]


@pytest.mark.parametrize(
    "body", ["[]", "{", '{"action": "label"}', '{"action": "label", "image": 0, "name": 3}', '{"image": 0}', "9" * 6000]
)
def test_page_refuses_what_it_does_not_know(client: TestClient, body: str) -> None:
    headers = {"content-type": "application/json"}
    assert client.post("/state", content=body, headers=headers).status_code == 422
    assert client.get("/state").json()["labelled"] == 0


def test_page_is_for_this_machine(client: TestClient) -> None:
    assert client.get("/state", headers={"host": "evil.example"}).status_code == 400
    assert (
        client.post("/state", content='{"action": "back"}', headers={"content-type": "text/plain"}).status_code == 415
    )
    assert client.get("/image/99").status_code == 404


def interrupt(_: uvicorn.Server, sockets: list[socket.socket]) -> None:
    sockets[0].close()
    raise KeyboardInterrupt


def test_it_ends_with_the_estimate_and_a_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels that were given before the model is loaded get their estimate, too."""
    closed = threading.Event()

    def close(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        closed.set()
        interrupt(server, sockets)

    def load(*_: Any) -> tuple[Any, Any]:
        assert closed.wait(60)
        return Classifier(), lambda _: torch.zeros(1)

    monkeypatch.setattr("lmr.apps.label._load", load)
    monkeypatch.setattr(uvicorn.Server, "run", close)
    out = folder.parent / "my labels.csv"
    session = LabelSession(folder, NAMES, out)
    for place in session.find_next(5):
        session.label(place, "cat")
    line = label_folder(folder, LabelOptions(labels=NAMES, out=out, port=0))
    assert "5 labelled: frozen 100 %" in line
    assert ".." not in line.replace(str(folder.parent), "")
    options = parse(shlex.split(line.partition("Next: lmr ")[2]))
    assert (options.sources, options.truth) == ([str(folder)], str(out))
    assert options.labels == ",".join(NAMES)


class Classifier:
    """Answers the first class always."""

    device = torch.device("cpu")

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return torch.tensor([1.0, 0.0, 0.0]).expand(len(images), 3)


def test_estimate_follows_the_labels(folder: Path) -> None:
    logits = {place: torch.tensor([3.0, 0.0, 0.0]) for place in range(40)}
    labels: dict[int, str | None] = dict.fromkeys(range(20), "dog")
    assert "frozen 0 % (0 to 16), with your labels 100 % (84 to 100)" in describe_labels(labels, NAMES, dict(logits))
    assert "5 labels" in describe_labels({0: "dog", 1: None}, NAMES, dict(logits))


def test_secret_address(folder: Path) -> None:
    client = TestClient(make_label_app(start(folder), None, "/secret"), base_url="http://192.168.1.9")
    assert client.get("/state").status_code == 404
    assert client.get("/secret/state").json()["total"] == 6


def test_an_interrupt_is_the_usual_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn.Server, "run", interrupt)
    options = LabelOptions(labels=NAMES, out=folder.parent / "labels.csv", estimate=False, port=0)
    assert "0 labels" in label_folder(folder, options)


def test_folder_without_images_is_refused(tmp_path: Path) -> None:
    options = LabelOptions(labels="cat,dog", out=tmp_path / "labels.csv", estimate=False)
    with pytest.raises(LmrError, match="no image"):
        label_folder(tmp_path, options)
