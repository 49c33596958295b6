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

from lmr.cli.parser import parse
from lmr.core.errors import LmrError
from lmr.data.catalogue import EMBEDDED_SETS, NAMES
from lmr.data.domains import DOMAIN_SETS
from lmr.data.fetch.fetch import download_file, fetch_set, find_source, unpack_archive
from lmr.data.fetch.sources import SOURCES, Archive, SetSource
from lmr.data.names import read_list

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
    with pytest.raises(LmrError, match="move it away"):
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
    for source in SOURCES.values():
        assert source.archives or source.by_hand
        for archive in source.archives:
            assert archive.brings
            assert all(url.startswith("https://") and archive.file in url for url in archive.urls)


def run(*words: str) -> None:
    options = parse(["fetch", *words])
    options.run(options)


def test_command_lists_and_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    run()
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown] == list(SOURCES)
    with pytest.raises(LmrError, match="Did you mean 'cifar10-c'"):
        run("cifar10c")
    run("imagenet")
    assert "image-net.org" in capsys.readouterr().out
    for name in (*EMBEDDED_SETS, "pacs"):
        with pytest.raises(LmrError, match=name):
            find_source(name)
