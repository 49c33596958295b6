"""A full disk: the store is on a small file system of its own, which is filled and emptied."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from lab.load.bench import STORE_FILE, LoadBench, LoadResult, judge
from lab.load.child_service import ChildService
from lab.load.inputs import draw_image, find_pocket
from lmr.service.client.client import Client
from lmr.service.client.errors import ServiceError

DISK_MB = 64
STREAM = "load-00000"
RECOVERY_SECONDS = 60.0
MOST_REQUESTS = 200


def measure_full_disk(bench: LoadBench) -> LoadResult:
    """Send requests before the disk is full, while it is, and after there is space again."""
    model = find_pocket()
    images = [draw_image(number, model.side) for number in range(40)]
    disk = bench.make_state_dir("disk")
    mounted = _can_mount(disk)
    options = [*model.options, "--store", f"sqlite:{disk / STORE_FILE}"]
    wrap = _wrap_in_small_disk(disk) if mounted else ()
    with ChildService(options, bench.folder, wrap) as service, Client(service.url, patience=0) as client:
        for number in range(5):
            client.step(STREAM, images[number])
        codes, answered, adapted = list[int](), 0, 0
        before = during = client.state(STREAM)
        with _fill(service, disk, mounted):
            readiness = ""
            for number in range(MOST_REQUESTS):  # SQLite still writes while its own files have room
                try:
                    answer = client.step(STREAM, images[number % len(images)])
                except ServiceError as error:
                    codes.append(error.status or 0)
                    readiness = client.readiness()
                    break
                before = client.state(STREAM)
            for number in range(5):
                answer = client.step(STREAM, images[number])
                answered += 1
                adapted += bool(answer.adaptation.get("stepped"))
            during = client.state(STREAM)
        recovered = _wait_for_recovery(client, images[15])
        last = client.step(STREAM, images[16])
    unchanged = before == during
    figures = {
        "method": "tmpfs" if mounted else "RLIMIT_FSIZE", "refusals": codes, "answered_without_adapting": answered,
        "adapted": adapted, "readiness": readiness, "state_unchanged": unchanged, "recovered": recovered,
        "seq_after": last.seq,
    }  # fmt: skip
    return LoadResult(
        "disk full",
        f"pocket, store on a full {'file system (tmpfs)' if mounted else 'file (size limit of the process)'}",
        "503, then answers without adapting, reported as degraded; no state changed; recovers",
        f"{len(codes)} refused ({', '.join(map(str, sorted(set(codes)))) or 'none'}), {answered} answered without "
        f"adapting, readiness {readiness!r}, state {'unchanged' if unchanged else 'changed'}, "
        f"{'adapts again' if recovered else 'does not adapt again'} with space",
        judge(set(codes) == {503}, answered > 0, adapted == 0, readiness == "degraded", unchanged, recovered),
        figures,
    )


def _wait_for_recovery(client: Client, image: bytes) -> bool:
    """Return True if the stream adapts again in time."""
    end = time.monotonic() + RECOVERY_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(ServiceError):
            if client.step(STREAM, image).adaptation.get("stepped") and client.is_ready():
                return True
        time.sleep(0.2)
    return False


def _wrap_in_small_disk(disk: Path) -> tuple[str, ...]:
    """Return the prefix that runs a command with a small file system at ``disk``, which ends with the command."""
    script = f'mount -t tmpfs -o size={DISK_MB}m tmpfs "$0" && exec "$@"'
    return ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, str(disk))


def _can_mount(disk: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    done = subprocess.run([*_wrap_in_small_disk(disk), "true"], capture_output=True, check=False)
    return done.returncode == 0


@contextlib.contextmanager
def _fill(service: ChildService, disk: Path, mounted: bool) -> Iterator[None]:
    """Keep the store from growing within this context."""
    if not mounted:  # files of the service cannot grow beyond a size; what is written already stays
        soft, hard = resource.prlimit(service.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (1, hard))
        try:
            yield
        finally:
            resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (soft, hard))
        return
    filler = Path(f"/proc/{service.pid}/root{os.path.abspath(disk)}") / "filler"
    with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1_000_000, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    try:
        yield
    finally:
        filler.unlink()
