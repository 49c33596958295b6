"""Fetching from servers that cut, lie and fail, which the tests run themselves; unpacking; and checks of folders."""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

import lmr.data.fetch.archives
import lmr.data.fetch.check
import set_maker as maker
from lmr.cli.parser import parse
from lmr.core.errors import LmrError
from lmr.data.catalogue import EMBEDDED_SETS, NAMES
from lmr.data.cifar import read_checksums
from lmr.data.domains import DOMAIN_SETS
from lmr.data.fetch.archives import download_file, unpack_archive
from lmr.data.fetch.check import check_set
from lmr.data.fetch.fetch import fetch_set, find_source
from lmr.data.fetch.sources import SOURCES, Archive, SetSource
from lmr.data.names import read_imagenet, read_list
from real_data import FOLDER

CONTENT = np.random.default_rng(0).bytes(3_000_000)
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()
LISTED = read_list("imagenet_c_5000")


class Server(http.server.ThreadingHTTPServer):
    """Serves ``files`` by path. ``cut`` ends every answer after so many bytes; ``ranges=False`` ignores ranges.

    ``status`` are codes it answers first, ``shift`` lies about a range, ``slow`` waits so many seconds after each
    100 kB, ``length`` is what it says as Content-Length, and ``asked`` are the ranges it was asked for.
    """

    files: dict[str, bytes]
    cut: int | None = None
    ranges = True
    shift = 0
    status: list[int]
    slow = 0.0
    length: str | None = None
    asked: list[str | None]
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A client that was killed is no news."""


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers.get("Range")
        server.asked.append(wanted)
        if server.status:
            self.send_error(server.status.pop(0))
            return
        content = server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and server.ranges else 0
        if start >= len(content) and start:
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            first = start + server.shift
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", server.length or str(len(content) - start))
        self.end_headers()
        end = len(content) if server.cut is None else min(len(content), start + server.cut)
        for place in range(start, end, 100_000):
            self.wfile.write(content[place : min(place + 100_000, end)])
            time.sleep(server.slow)

    def log_message(self, format: str, *values: Any) -> None:
        pass


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that starts a server on this machine -> the server and the address of /file."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    running: list[tuple[Server, threading.Thread]] = []

    def start(files: dict[str, bytes] | None = None, **how: Any) -> tuple[Server, str]:
        server = Server(("127.0.0.1", 0), Handler)
        server.files = {"/file": CONTENT} if files is None else files
        server.asked, server.status = [], []
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


def fetch(target: Path, *urls: str, checksum: str = MD5, **how: Any) -> None:
    download_file(urls, target, checksum, pause=0.01, **how)


def test_plain_download(serve: Any, tmp_path: Path) -> None:
    server, url = serve()
    fetch(tmp_path / "new" / "file", url)
    assert (tmp_path / "new" / "file").read_bytes() == CONTENT
    assert os.listdir(tmp_path / "new") == ["file"]
    assert server.asked == [None]
    fetch(tmp_path / "other", url, checksum="sha256:" + hashlib.sha256(CONTENT).hexdigest(), size=len(CONTENT))
    assert (tmp_path / "other").read_bytes() == CONTENT


def test_cut_connections_are_resumed(serve: Any, tmp_path: Path) -> None:
    server, url = serve(cut=700_000)
    fetch(tmp_path / "file", url)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == [None, *(f"bytes={k * 700_000}-" for k in range(1, 5))]


@pytest.mark.parametrize("known", [True, False])
def test_whole_part_needs_no_more_bytes(known: bool, serve: Any, tmp_path: Path) -> None:
    """A kill between the last byte and the new name."""
    server, url = serve()
    (tmp_path / "file.part").write_bytes(CONTENT)
    fetch(tmp_path / "file", url, size=len(CONTENT) if known else None)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == ([] if known else [f"bytes={len(CONTENT)}-"])


def test_server_without_ranges_sends_all_again(serve: Any, tmp_path: Path) -> None:
    _, url = serve(ranges=False)
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    fetch(tmp_path / "file", url)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_damaged_part_is_fetched_again(serve: Any, tmp_path: Path) -> None:
    server, url = serve()
    (tmp_path / "file.part").write_bytes(b"x" * 1000)
    fetch(tmp_path / "file", url)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == ["bytes=1000-", None]


def test_file_with_wrong_checksum_is_discarded(serve: Any, tmp_path: Path) -> None:
    _, url = serve({"/file": CONTENT[:-1] + b"?"})
    with pytest.raises(ValueError, match=rf"127\.0\.0\.1.*instead of {MD5[4:]} and was discarded"):
        fetch(tmp_path / "file", url)
    assert os.listdir(tmp_path) == []


def test_next_server_takes_over(serve: Any, tmp_path: Path) -> None:
    missing, first = serve({})
    liar, second = serve({"/file": b"<html>Please log in</html>"})
    good, third = serve()
    fetch(tmp_path / "file", first, second, "http://127.0.0.1:9/file", third)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert [server.asked for server in (missing, liar, good)] == [[None], [None], [None]]


def test_failing_server_is_retried(serve: Any, tmp_path: Path) -> None:
    server, url = serve(status=[503, 500, 429])
    fetch(tmp_path / "file", url)
    assert len(server.asked) == 4
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_error_when_no_server_works(serve: Any, tmp_path: Path) -> None:
    _, gone = serve({})
    stuck, url = serve(status=[503] * 99)
    (tmp_path / "file.part").write_bytes(CONTENT[:2000])
    with pytest.raises(ValueError, match=r"404.*503.*The 2,000 bytes received so far are kept"):
        fetch(tmp_path / "file", gone, url)
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:2000]
    assert len(stuck.asked) == 4
    (tmp_path / "file.part").unlink()
    with pytest.raises(ValueError, match=r"Could not fetch file \(127.*\)\.$"):
        fetch(tmp_path / "file", "http://127.0.0.1:9/file")
    assert os.listdir(tmp_path) == []


def test_server_that_sends_another_part(serve: Any, tmp_path: Path) -> None:
    _, url = serve(shift=5)
    (tmp_path / "file.part").write_bytes(CONTENT[:2000])
    with pytest.raises(ValueError, match="a different part of the file"):
        fetch(tmp_path / "file", url)
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:2000]


@pytest.mark.parametrize("length", ["-5", "many", "5, 5"])
def test_invalid_content_length_is_ignored(length: str, serve: Any, tmp_path: Path) -> None:
    server, url = serve(length=length)
    fetch(tmp_path / "file", url)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == [None]


FETCH = """
import sys
from pathlib import Path
from lmr.data.fetch.archives import download_file, unpack_archive
download_file([sys.argv[1]], Path(sys.argv[2]), sys.argv[3])
"""


def test_kill_in_the_middle_leaves_a_part_that_can_be_resumed(serve: Any, tmp_path: Path) -> None:
    server, url = serve(slow=0.1)
    part = tmp_path / "file.part"
    process = subprocess.Popen([sys.executable, "-c", FETCH, url, str(tmp_path / "file"), MD5])
    while process.poll() is None and not (part.exists() and part.stat().st_size > 1_000_000):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    kept = part.stat().st_size
    assert 1_000_000 < kept < len(CONTENT)
    assert not (tmp_path / "file").exists()
    assert part.read_bytes() == CONTENT[:kept]
    server.slow = 0.0
    server.asked.clear()
    fetch(tmp_path / "file", url)
    assert server.asked == [f"bytes={kept}-"]
    assert (tmp_path / "file").read_bytes() == CONTENT


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
    archive.write_bytes(make_zip(FILES) if kind == "zip" else make_tar(FILES, "w:gz" if kind == "tar.gz" else "w"))
    folder = tmp_path / "out"
    (folder / "set").mkdir(parents=True)
    (folder / "set" / "old").write_text("of an earlier try")
    (folder / "other").write_text("somebody's")
    with pytest.raises(ValueError, match=r"out/set' exists"):
        unpack_archive(archive, folder)
    assert list_files(folder) == {"set/old": b"of an earlier try", "other": b"somebody's"}
    assert unpack_archive(archive, folder, replace=["set"]) == ["readme", "set"]
    assert list_files(folder) == FILES | {"other": b"somebody's"}
    assert sorted(os.listdir(folder)) == ["other", "readme", "set"]
    assert unpack_archive(archive, tmp_path / "some", wanted=lambda name: "/a/" in name) == ["set"]
    assert list_files(tmp_path / "some") == {name: content for name, content in FILES.items() if "/a/" in name}
    with pytest.raises(ValueError, match="contains none of the expected files"):
        unpack_archive(archive, tmp_path / "none", wanted=lambda name: False)


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "zip"])
def test_damaged_archive_leaves_nothing(kind: str, tmp_path: Path) -> None:
    files = {f"set/{k}": np.random.default_rng(k).bytes(5000) for k in range(5)}
    archive = tmp_path / f"set.{kind}"
    whole = make_zip(files) if kind == "zip" else make_tar(files, "w:gz" if kind == "tar.gz" else "w")
    for size in (0, 100, len(whole) // 2):
        archive.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"Cannot unpack|contains none"):
            unpack_archive(archive, tmp_path / "out")
        assert os.listdir(tmp_path / "out") == []


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil"])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_names_that_lead_out_are_refused(kind: str, name: str, tmp_path: Path) -> None:
    archive = tmp_path / "inner" / f"set.{kind}"
    archive.parent.mkdir()
    archive.write_bytes(make_zip({name: b"x"}) if kind == "zip" else make_tar({name: b"x"}))
    with pytest.raises(ValueError, match="outside its folder"):
        unpack_archive(archive, tmp_path / "inner" / "out")
    assert os.listdir(tmp_path / "inner" / "out") == []
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "inner" / "evil").exists()
    assert not Path("/evil").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_are_refused(kind: bytes, tmp_path: Path) -> None:
    member = tarfile.TarInfo("set/link")
    member.type, member.linkname = kind, "/etc/passwd"
    archive = tmp_path / "set.tar"
    with tarfile.open(archive, "w") as file:
        file.addfile(member)
    with pytest.raises(ValueError, match="not a regular file"):
        unpack_archive(archive, tmp_path / "out")


@pytest.fixture
def tiny(serve: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A source "tiny" of two archives, the second from a server that does not always have it."""
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
    fetch_set("tiny", tmp_path / "root", report=said.append)
    whole = FILES | {"more/5": b"five"}
    assert list_files(tmp_path / "root" / "tiny") == whole
    assert sorted(os.listdir(tmp_path / "root")) == [".fetched", "tiny"]
    assert said == [f"The dataset 'tiny' is in {tmp_path / 'root' / 'tiny'}."]
    asked = len(tiny.asked)
    fetch_set("tiny", tmp_path / "root", report=said.append)
    assert len(tiny.asked) == asked  # nothing is fetched twice
    assert "one.tar has been fetched and unpacked before." in said
    (tmp_path / "root" / "tiny" / "more" / "5").unlink()
    (tmp_path / "root" / "tiny" / "more").rmdir()
    fetch_set("tiny", tmp_path / "root", keep=True)  # what has gone is fetched again, and only that
    assert len(tiny.asked) == asked + 1
    assert list_files(tmp_path / "root" / "tiny") == whole
    assert sorted(os.listdir(tmp_path / "root")) == [".fetched", "tiny", "two.tar"]


def test_two_processes_do_not_fetch_an_archive_at_once(tiny: Any, tmp_path: Path) -> None:
    (tmp_path / ".fetched").mkdir()
    with FileLock(tmp_path / ".fetched" / "two.tar.lock"):
        with pytest.raises(LmrError, match="fetching"):
            fetch_set("tiny", tmp_path)
        assert not (tmp_path / "tiny" / "more").exists()
    fetch_set("tiny", tmp_path)
    assert list_files(tmp_path / "tiny") == FILES | {"more/5": b"five"}


def test_foreign_folders_are_never_replaced(tiny: Any, tmp_path: Path) -> None:
    (tmp_path / "tiny" / "more").mkdir(parents=True)
    (tmp_path / "tiny" / "more" / "mine").write_text("my only copy")
    with pytest.raises(ValueError, match="--check"):
        fetch_set("tiny", tmp_path)
    assert tiny.asked == []
    assert list_files(tmp_path) == {"tiny/more/mine": b"my only copy"}
    for damaged in ("{damaged", "[]", '{"checksum": "md5:other", "names": ["more"]}'):
        (tmp_path / ".fetched").mkdir(exist_ok=True)
        (tmp_path / ".fetched" / "two.tar.json").write_text(damaged)
        with pytest.raises(ValueError, match="was not fetched by lmr"):
            fetch_set("tiny", tmp_path)


def test_kill_while_unpacking(tiny: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Stopped between the first folder and the second: the next call replaces what it had begun."""
    rename, done = os.replace, []

    def stop(old: Path, new: Path) -> None:
        if Path(new).name == "readme":
            done.append(rename(old, new))
            raise KeyboardInterrupt
        rename(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(lmr.data.fetch.archives.os, "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            fetch_set("tiny", tmp_path)
    assert done
    assert list_files(tmp_path / "tiny") == {"readme": b"four"}
    tiny.asked.clear()
    fetch_set("tiny", tmp_path)
    assert len(tiny.asked) == 1  # the first archive had come
    assert list_files(tmp_path / "tiny") == FILES | {"more/5": b"five"}


def test_archive_that_is_there_already_is_verified_first(tiny: Any, tmp_path: Path) -> None:
    (tmp_path / "one.tar").write_bytes(make_tar({"set/evil": b"not the published one"}))
    there = list_files(tmp_path)
    with pytest.raises(LmrError, match="published") as caught:
        fetch_set("tiny", tmp_path)
    assert hashlib.md5(tiny.files["/one"]).hexdigest() in str(caught.value)
    assert tiny.asked == []
    assert list_files(tmp_path) == there | {".fetched/one.tar.lock": b""}  # nothing unpacked, deleted or recorded


def test_archive_that_lmr_did_not_fetch_is_never_deleted(tiny: Any, tmp_path: Path) -> None:
    (tmp_path / "one.tar").write_bytes(tiny.files["/one"])
    said: list[str] = []
    fetch_set("tiny", tmp_path, report=said.append)
    assert len(tiny.asked) == 1  # the other one
    assert list_files(tmp_path / "tiny") == FILES | {"more/5": b"five"}
    assert (tmp_path / "one.tar").read_bytes() == tiny.files["/one"]
    assert not (tmp_path / "two.tar").exists()
    assert any("one.tar" in line and "kept" in line for line in said)


def test_archive_of_an_earlier_fetch_is_verified_and_deleted(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A kill between fetching and unpacking: the archive is lmr's own, and is deleted after it was unpacked."""

    def stop(*values: Any, **how: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("lmr.data.fetch.fetch.unpack_archive", stop)
        with pytest.raises(KeyboardInterrupt):
            fetch_set("tiny", tmp_path)
    whole = (tmp_path / "one.tar").read_bytes()
    (tmp_path / "one.tar").write_bytes(whole[:-1] + b"?")  # damaged since
    with pytest.raises(LmrError, match="published"):
        fetch_set("tiny", tmp_path)
    assert not (tmp_path / "tiny").exists()
    (tmp_path / "one.tar").write_bytes(whole)
    fetch_set("tiny", tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".fetched", "tiny"]
    # An archive that a person puts there later is not lmr's, although lmr once fetched one of that name.
    shutil.rmtree(tmp_path / "tiny" / "set")
    (tmp_path / "one.tar").write_bytes(whole)
    fetch_set("tiny", tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".fetched", "one.tar", "tiny"]


def test_only_listed_images_are_kept(serve: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = [f"fog/5/{LISTED[0]}", f"fog/5/{LISTED[1]}", "fog/5/n01440764/ILSVRC2012_val_99999999.JPEG"]
    content = make_tar(dict.fromkeys(names, b"x"))
    server, url = serve({"/file": content})
    archive = Archive("weather.tar", (url,), "md5:" + hashlib.md5(content).hexdigest(), ("fog",), len(content))
    monkeypatch.setitem(SOURCES, "imagenet-c-5000", SetSource("listed", (archive,), "imagenet-c", True))
    monkeypatch.setitem(SOURCES, "imagenet-c", SetSource("all", (archive,), "imagenet-c"))
    fetch_set("imagenet-c-5000", tmp_path)
    assert set(list_files(tmp_path / "imagenet-c")) == set(names[:2])
    fetch_set("imagenet-c", tmp_path)  # the rest of what is there
    assert set(list_files(tmp_path / "imagenet-c")) == set(names)
    fetch_set("imagenet-c-5000", tmp_path)  # which has it all: nothing is fetched, and nothing taken away
    assert set(list_files(tmp_path / "imagenet-c")) == set(names)
    assert len(server.asked) == 2


def test_full_disk_is_reported_before_the_download(serve: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server, url = serve()
    archive = Archive("file.tar", (url,), MD5, ("set",), 10**15)
    monkeypatch.setitem(SOURCES, "huge", SetSource("a huge set", (archive,)))
    with pytest.raises(ValueError, match=r"takes 2000000\.0 GB, but .* GB free"):
        fetch_set("huge", tmp_path)
    assert server.asked == []


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


def test_command_fetches_several(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    second = dataclasses.replace(SOURCES["tiny"], folder="second")
    monkeypatch.setitem(SOURCES, "second", second)
    with pytest.raises(ValueError, match="no dataset 'thirt'"):  # nothing is fetched before every name is known
        run("tiny", "thirt", "--root", str(tmp_path))
    assert not tiny.asked
    assert run("tiny", "second", "--root", str(tmp_path)) is None
    shown = capsys.readouterr().out
    assert "The dataset 'tiny' is in" in shown
    assert "The dataset 'second' is in" in shown
    assert list_files(tmp_path / "second") == list_files(tmp_path / "tiny")


def test_check_of_a_whole_set(tmp_path: Path) -> None:
    folder = tmp_path / "val"
    folder.mkdir()
    maker.Image.new("RGB", (4, 4)).save(tmp_path / "image.jpeg")
    for place in range(1000):
        (folder / str(place)).mkdir()
        for number in range(10):
            os.link(tmp_path / "image.jpeg", folder / str(place) / f"{number}.jpeg")
    assert check_set("imagenet-v2", folder) == []
    (folder / "7" / "3.jpeg").unlink()
    (folder / "8" / "3.jpeg").unlink()
    (folder / "8" / "3.jpeg").write_bytes(b"")
    name = list(read_imagenet().values())[7]
    problems = check_set("imagenet-v2", folder)
    assert problems[0] == "Expected 10000 images, found 9999."
    assert repr(name) in problems[1]
    for number in range(10):
        (folder / "7" / f"{number}.jpeg").unlink(missing_ok=True)
    assert any(
        f"1 of 1000 classes have no image, for example {name!r}" in problem
        for problem in check_set("imagenet-v2", folder)
    )


def test_check_of_cifar(tmp_path: Path) -> None:
    images, labels = maker.make_cifar(10_000, 10)
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    maker.write_cifar_binary(folder / "test_batch.bin", images, labels, coarse=False)
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
    (folder / "snow.npy").write_bytes(b"short")
    digest = hashlib.md5((folder / "labels.npy").read_bytes()).hexdigest()
    monkeypatch.setitem(read_checksums(100), "labels", digest)
    said: list[str] = []
    problems = check_set("cifar100-c", tmp_path, report=said.append)
    assert len(problems) == 15
    assert "fog.npy does not match the published checksum (md5 4efc7ebd5e82b028bdbe13048e3ea564)." in problems
    assert any(problem.startswith("snow.npy has 5 bytes") for problem in problems)
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
    with pytest.raises(ValueError, match="Did you mean 'cifar10-c'"):
        run("cifar10c")
    for words, sentence in (
        (["--check", "."], "Give the name of a dataset: lmr fetch NAME --check DIR."),
        (["--make"], "Give the name of a dataset: lmr fetch NAME --make."),
        (["cifar10-c", "--make", "--check", "."], "give one of them"),
        (["cifar10", "cifar100", "--check", "."], "one dataset at a time; got cifar10, cifar100"),
    ):
        with pytest.raises(ValueError, match=sentence):
            run(*words)
    for name in EMBEDDED_SETS:
        with pytest.raises(ValueError, match=f"The images of '{name}' come with lmr; there is nothing to fetch"):
            find_source(name)
    with pytest.raises(ValueError, match=r"lmr does not fetch 'pacs'; place it under --root as pacs/DOMAIN/CLASS"):
        find_source("pacs")


def test_command_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "CIFAR-10-C").mkdir()
    complaint = run("cifar10-c", "--check", str(tmp_path))
    shown = capsys.readouterr().out
    assert complaint == f"The dataset 'cifar10-c' in '{tmp_path}' is incomplete or incorrect."
    assert shown.count("is missing.") == 16
    if (FOLDER / "cifar100_test.npz").is_file():
        assert run("cifar100", "--check", str(FOLDER)) is None
        assert "complete and correct" in capsys.readouterr().out
