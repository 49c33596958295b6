"""Fetching from a server that the tests run themselves; unpacking; and checks of folders."""

from __future__ import annotations

import hashlib
import http.server
import io
import os
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lmr.data.fetch.check
import set_maker as maker
from lmr.cli.parser import parse
from lmr.core.errors import LmrError
from lmr.data.catalogue import EMBEDDED_SETS, NAMES
from lmr.data.cifar import read_checksums
from lmr.data.domains import DOMAIN_SETS
from lmr.data.fetch.check import check_set
from lmr.data.fetch.fetch import download_file, fetch_set, find_source, unpack_archive
from lmr.data.fetch.sources import SOURCES, Archive, SetSource
from lmr.data.names import read_imagenet, read_list
from real_data import FOLDER

CONTENT = np.random.default_rng(0).bytes(3_000_000)
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()
LISTED = read_list("imagenet_c_5000")


class Server(http.server.ThreadingHTTPServer):
    """Serves ``files`` by path. ``cut`` ends every answer after so many bytes; ``ranges=False`` ignores ranges.

    ``asked`` are the ranges it was asked for.
    """

    files: dict[str, bytes]
    cut: int | None = None
    ranges = True
    asked: list[str | None]
    daemon_threads = True


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers.get("Range")
        server.asked.append(wanted)
        content = server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and server.ranges else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if wanted and server.ranges else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : None if server.cut is None else start + server.cut])

    def log_message(self, format: str, *values: Any) -> None:
        pass


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that starts a server on this machine -> the server and the address of /file."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    running: list[tuple[Server, threading.Thread]] = []

    def start(files: dict[str, bytes] | None = None, **how: Any) -> tuple[Server, str]:
        server = Server(("127.0.0.1", 0), Handler)
        server.files, server.asked = {"/file": CONTENT} if files is None else files, []
        for key, value in how.items():
            setattr(server, key, value)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        running.append((server, thread))
        return server, f"http://127.0.0.1:{server.server_address[1]}/file"

    yield start
    for server, thread in running:
        server.shutdown()
        server.server_close()
        thread.join()


def test_next_server_takes_over(serve: Any, tmp_path: Path) -> None:
    missing, first = serve({})
    liar, second = serve({"/file": b"<html>Please log in</html>"})
    good, third = serve()
    download_file([first, second, "http://127.0.0.1:9/file", third], tmp_path / "file", MD5)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert os.listdir(tmp_path) == ["file"]
    assert [server.asked for server in (missing, liar, good)] == [["bytes=0-"], ["bytes=0-"], ["bytes=0-"]]


def test_cut_download_is_resumed(serve: Any, tmp_path: Path) -> None:
    server, url = serve(cut=2_000_000)
    with pytest.raises(LmrError, match="resume"):
        download_file([url], tmp_path / "file", MD5)
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:2_000_000]
    download_file([url], tmp_path / "file", MD5)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == ["bytes=0-", "bytes=2000000-"]


@pytest.mark.parametrize("ranges", [True, False])
def test_whole_part_is_taken_or_fetched_again(ranges: bool, serve: Any, tmp_path: Path) -> None:
    """A kill between the last byte and the new name."""
    _, url = serve(ranges=ranges)
    (tmp_path / "file.part").write_bytes(CONTENT)
    download_file([url], tmp_path / "file", MD5)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_file_with_wrong_checksum_is_discarded(serve: Any, tmp_path: Path) -> None:
    _, url = serve({"/file": CONTENT[:-1] + b"?"})
    with pytest.raises(LmrError, match=rf"127\.0\.0\.1.*{MD5} and was discarded"):
        download_file([url], tmp_path / "file", MD5)
    assert os.listdir(tmp_path) == []


def make_tar(files: dict[str, bytes], mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def make_zip(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def list_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


FILES = {"set/a/1.txt": b"one", "set/a/2.txt": b"two", "set/b/3.txt": b"three", "readme": b"four"}


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "zip"])
def test_unpacking(kind: str, tmp_path: Path) -> None:
    archive = tmp_path / f"set.{kind}"
    whole = make_zip(FILES) if kind == "zip" else make_tar(FILES, "w:gz" if kind == "tar.gz" else "w")
    archive.write_bytes(whole)
    for name in ("all", "some", "none"):
        (tmp_path / name).mkdir()
    unpack_archive(archive, tmp_path / "all")
    assert list_files(tmp_path / "all") == FILES
    unpack_archive(archive, tmp_path / "some", ["a/1.txt"])
    assert list_files(tmp_path / "some") == {"set/a/1.txt": b"one"}
    archive.write_bytes(whole[:100])
    with pytest.raises(LmrError, match="Cannot unpack"):
        unpack_archive(archive, tmp_path / "none")
    assert os.listdir(tmp_path / "none") == []


@pytest.mark.parametrize("name", ["../evil", "a/../../evil"])
def test_names_that_lead_out_are_refused(name: str, tmp_path: Path) -> None:
    archive = tmp_path / "set.tar"
    archive.write_bytes(make_tar({name: b"x"}))
    (tmp_path / "out").mkdir()
    with pytest.raises(LmrError, match="outside"):
        unpack_archive(archive, tmp_path / "out")
    assert os.listdir(tmp_path / "out") == []
    assert not (tmp_path / "evil").exists()


@pytest.fixture
def tiny(serve: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A source "tiny" of two archives."""
    archives = [make_tar(FILES), make_tar({"more/5": b"five"})]
    server, url = serve({"/one": archives[0], "/two": archives[1]})
    made = tuple(
        Archive(f"{name}.tar", (url.replace("/file", f"/{name}"),), "md5:" + hashlib.md5(content).hexdigest(), brings)
        for name, content, brings in zip(("one", "two"), archives, (("set", "readme"), ("more",)), strict=True)
    )
    monkeypatch.setitem(SOURCES, "tiny", SetSource("a small set", made, "tiny"))
    return server


def test_fetching_a_set(tiny: Any, tmp_path: Path) -> None:
    said: list[str] = []
    fetch_set("tiny", tmp_path / "root", said.append)
    whole = FILES | {"more/5": b"five"}
    assert list_files(tmp_path / "root" / "tiny") == whole
    assert sorted(os.listdir(tmp_path / "root")) == [".fetched", "tiny"]
    assert said == [f"The dataset 'tiny' is in {tmp_path / 'root' / 'tiny'}."]
    asked = len(tiny.asked)
    fetch_set("tiny", tmp_path / "root")
    assert len(tiny.asked) == asked  # nothing is fetched twice
    (tmp_path / "root" / "tiny" / "more" / "5").unlink()
    (tmp_path / "root" / "tiny" / "more").rmdir()
    fetch_set("tiny", tmp_path / "root")  # what has gone is fetched again, and only that
    assert len(tiny.asked) == asked + 1
    assert list_files(tmp_path / "root" / "tiny") == whole


def test_foreign_folders_are_never_replaced(tiny: Any, tmp_path: Path) -> None:
    (tmp_path / "tiny" / "more").mkdir(parents=True)
    (tmp_path / "tiny" / "more" / "mine").write_text("my only copy")
    with pytest.raises(LmrError, match="--check"):
        fetch_set("tiny", tmp_path)
    assert tiny.asked == []
    assert list_files(tmp_path) == {"tiny/more/mine": b"my only copy"}


def test_archive_that_is_there_is_verified_and_kept(tiny: Any, tmp_path: Path) -> None:
    (tmp_path / "one.tar").write_bytes(make_tar({"set/evil": b"not the published one"}))
    with pytest.raises(LmrError, match="published"):
        fetch_set("tiny", tmp_path)
    assert not tiny.asked
    (tmp_path / "one.tar").write_bytes(tiny.files["/one"])
    fetch_set("tiny", tmp_path)
    assert len(tiny.asked) == 1  # the other one
    assert list_files(tmp_path / "tiny") == FILES | {"more/5": b"five"}
    assert sorted(os.listdir(tmp_path)) == [".fetched", "one.tar", "tiny"]


def test_only_listed_images_are_kept(serve: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = [f"fog/5/{LISTED[0]}", f"fog/5/{LISTED[1]}", "fog/5/n01440764/ILSVRC2012_val_99999999.JPEG"]
    content = make_tar(dict.fromkeys(names, b"x"))
    server, url = serve({"/file": content})
    archive = Archive("weather.tar", (url,), "md5:" + hashlib.md5(content).hexdigest(), ("fog",))
    monkeypatch.setitem(SOURCES, "imagenet-c-5000", SetSource("listed", (archive,), "imagenet-c", True))
    monkeypatch.setitem(SOURCES, "imagenet-c", SetSource("all", (archive,), "imagenet-c"))
    fetch_set("imagenet-c", tmp_path / "whole")
    fetch_set("imagenet-c-5000", tmp_path / "whole")  # which has it all: nothing is fetched, and nothing taken away
    assert set(list_files(tmp_path / "whole" / "imagenet-c")) == set(names)
    assert len(server.asked) == 1
    fetch_set("imagenet-c-5000", tmp_path / "some")
    assert set(list_files(tmp_path / "some" / "imagenet-c")) == set(names[:2])
    with pytest.raises(LmrError, match="exists"):
        fetch_set("imagenet-c", tmp_path / "some")


def test_sources_are_complete() -> None:
    assert set(NAMES) - {*EMBEDDED_SETS, *DOMAIN_SETS} <= set(SOURCES)
    lengths = {"md5": 32, "sha256": 64}
    for source in SOURCES.values():
        assert source.archives or source.by_hand
        for archive in source.archives:
            algorithm, _, digits = archive.checksum.partition(":")
            assert len(digits) == lengths[algorithm]
            assert int(digits, 16) >= 0
            assert archive.brings
            assert all(url.startswith("https://") and archive.file in url for url in archive.urls)
    for files in map(read_checksums, (10, 100)):
        assert len(files) == len(set(files.values())) == 20


def run(*words: str) -> str | None:
    options = parse(["fetch", *words])
    complaint: str | None = options.run(options)
    return complaint


def test_check_of_a_whole_set(tmp_path: Path) -> None:
    folder = tmp_path / "val"
    folder.mkdir()
    maker.Image.new("RGB", (4, 4)).save(tmp_path / "image.jpeg")
    for place in range(1000):
        (folder / str(place)).mkdir()
        for number in range(10):
            os.link(tmp_path / "image.jpeg", folder / str(place) / f"{number}.jpeg")
    assert check_set("imagenet-v2", folder) == []
    name = list(read_imagenet().values())[7]
    for number in range(10):
        (folder / "7" / f"{number}.jpeg").unlink()
    problems = check_set("imagenet-v2", folder)
    assert problems[0] == "Expected 10000 images, found 9990."
    assert f"1 of 1000 classes have no image, for example {name!r}" in problems[1]


def test_check_of_cifar(tmp_path: Path) -> None:
    images, labels = maker.make_cifar(10_000, 10)
    folder = tmp_path / "cifar10"
    folder.mkdir()
    np.savez(folder / "cifar10_test.npz", images=images, labels=labels)
    for place in (tmp_path, folder):  # the root, or the folder itself
        assert "are not the official test set" in check_set("cifar10", place)[0]
    if (FOLDER / "cifar10_test.npz").is_file():
        assert check_set("cifar10", FOLDER) == []


def test_check_of_corrupted_cifar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "CIFAR-100-C"
    folder.mkdir()
    np.save(folder / "labels.npy", np.zeros(50_000, np.uint8))
    rows = np.lib.format.open_memmap(folder / "fog.npy", "w+", np.uint8, (50_000, 32, 32, 3))
    rows.flush()
    digest = hashlib.md5((folder / "labels.npy").read_bytes()).hexdigest()
    monkeypatch.setitem(read_checksums(100), "labels", digest)
    said: list[str] = []
    problems = check_set("cifar100-c", tmp_path, report=said.append)
    assert len(problems) == 15
    assert "fog.npy does not match the published checksum (md5 4efc7ebd5e82b028bdbe13048e3ea564)." in problems
    assert "frost.npy is missing." in problems
    assert said == [f"{folder}: 1 of 16 files match the published checksums."]


def write_listed(folder: Path, files: tuple[str, ...]) -> None:
    """Write one image and link it under all the names."""
    first = folder.with_name("image.jpeg")
    maker.write_image(first, 50)
    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(first, path)
    first.unlink()


def test_check_of_corrupted_imagenet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lmr.data.fetch.check, "CORRUPTIONS", ("fog", "snow"))
    monkeypatch.setattr(lmr.data.fetch.check, "SEVERITIES", (3,))
    for domain in ("fog", "snow"):
        write_listed(tmp_path / domain / "3", LISTED)
    assert check_set("imagenet-c-5000", tmp_path) == []
    problems = check_set("imagenet-c", tmp_path)
    assert len(problems) == 2
    assert "Expected the 50,000 validation images" in problems[0]
    (tmp_path / "fog" / "3" / LISTED[4]).unlink()
    assert check_set("imagenet-c-5000", tmp_path) == [
        f"'{tmp_path / 'fog' / '3'}' lacks 1 of the 5,000 images, for example {LISTED[4]}."
    ]


def test_check_of_other_folders(tmp_path: Path) -> None:
    assert "There is no folder" in check_set("imagenet-a", tmp_path / "no")[0]
    assert "no image in class folders" in check_set("imagenet-a", tmp_path)[0]
    (tmp_path / "imagenet-r" / "stranger").mkdir(parents=True)
    assert "'stranger' is not a class" in check_set("imagenet-r", tmp_path)[0]
    assert "Expected folders such as gaussian_noise/5" in check_set("imagenet-c", tmp_path)[0]
    assert "No file of CIFAR-10" in check_set("cifar10", tmp_path)[0]


def test_command_lists_and_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() is None
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown] == list(SOURCES)
    with pytest.raises(LmrError, match="Did you mean 'cifar10-c'"):
        run("cifar10c")
    for words in (["--check", "."], ["cifar10", "cifar100", "--check", "."]):
        with pytest.raises(LmrError, match="one dataset"):
            run(*words)
    for name in (*EMBEDDED_SETS, "pacs"):
        with pytest.raises(LmrError, match=name):
            find_source(name)


def test_command_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "CIFAR-10-C").mkdir()
    complaint = run("cifar10-c", "--check", str(tmp_path))
    shown = capsys.readouterr().out
    assert complaint == f"The dataset 'cifar10-c' in '{tmp_path}' is incomplete or incorrect."
    assert shown.count("is missing.") == 16
    if (FOLDER / "cifar100_test.npz").is_file():
        assert run("cifar100", "--check", str(FOLDER)) is None
        assert "complete and correct" in capsys.readouterr().out
