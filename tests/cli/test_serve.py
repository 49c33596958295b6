"""``lmr serve``: its options, what it refuses at the start, and how it ends."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from lmr.cli import main
from lmr.cli.parser import build_command, parse
from lmr.service.settings import ServiceSettings
from service_maker import TIMEOUT, make_file

pytestmark = pytest.mark.slow

NAMES = "cat,dog,aquarium fish"
PLAIN = ["serve", "--model", "photo", "--labels", NAMES, "--port", "0"]
FLAGS = [
    "demo", "for", "model", "labels", "method", "prior", "unknown", "watch", "show-frames", "host", "port",
    "token-file", "mqtt", "mqtt-password-file", "notify", "notify-host", "log-level",
    "store", "adopt", "resident", "max-streams", "durability", "interval-s",
    "max-body", "template", "prompts",
]  # fmt: skip


def test_defaults_are_those_of_the_settings() -> None:
    options = vars(parse(["serve", "--labels", NAMES]))
    for field in dataclasses.fields(ServiceSettings):
        assert options.get(field.name, field.default) == field.default, field.name
    assert (options["host"], options["port"], options["watch"]) == ("127.0.0.1", 8080, "on")


def test_help_names_every_option_with_its_default() -> None:
    words = " ".join(build_command("serve").format_help().split())
    for flag in FLAGS:
        assert f"--{flag} " in words, flag
    for text in ("(default: 256)", "(default: 10000000)", "(default: on)", "exit codes"):
        assert text in words


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--host", "0.0.0.0"], "needs a --token-file"),
        (["--token-file", "missing"], "Cannot read the token"),
        (["--labels", "one"], "Expected at least two class names"),
        (["--watch", "sometimes"], "for the watch"),
        (["--resident", "0"], "'resident' of the service to be positive"),
        (["--port", "99999"], "Cannot listen on"),
        (["--method", "ecalp"], "choose another method"),
        (["--model", "no-such-model"], "There is no model"),
        (["--store", "postgresql://lmr@127.0.0.1:1/lmr"], "Cannot reach the store 'lmr' at 127.0.0.1:1"),
        (["--store", "mysql://db/lmr"], "Expected a store as sqlite:FILE, postgresql://USER@HOST/DATABASE"),
        (["--mqtt", "localhost"], "Expected a broker as mqtt://host"),
        (["--notify", "http://example.com/x"], "this machine alone"),
    ],
)
def test_what_cannot_start_is_one_sentence(
    words: list[str], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*PLAIN, *words]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("{")]
    assert line.startswith("lmr: ")
    assert error in line


def start(*words: str) -> tuple[subprocess.Popen[str], str, list[str]]:
    """The process, its address, and what it said before it served."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lmr", *PLAIN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if found := re.search(r"serving at (\S+);", line):
            return process, found[1], said
    raise AssertionError(process.communicate()[1])


def stop(process: subprocess.Popen[str], number: int) -> list[dict[str, object]]:
    process.send_signal(number)
    log = process.communicate(timeout=TIMEOUT)[1]
    assert process.returncode == 0, log
    return [json.loads(line) for line in log.splitlines()]


def test_service_ends_and_comes_back(tmp_path: Path) -> None:
    """Two signals, two runs, one stream: the second run goes on where the first one ended."""
    words, seqs = ["--store", f"sqlite:{tmp_path / 'states'}"], []
    for number in (signal.SIGTERM, signal.SIGINT):
        process, url, said = start(*words)
        assert "model photo, 3 classes: cat, dog, aquarium fish" in said[0]
        assert "method steady(" in said[1]
        assert "gamma0=0.3, beta=3.0 as chosen for 3 classes" in said[1]
        assert f"watch on; states in {tmp_path / 'states'}; {len(seqs)} streams so far" in said[2]
        headers = {"Content-Type": "image/jpeg"}
        answer = httpx.post(f"{url}/v1/streams/cam/images", content=make_file(), headers=headers, timeout=TIMEOUT)
        seqs.append(answer.json()["seq"])
        log = stop(process, number)
        assert [line["status"] for line in log if line["message"] == "request"] == [200]
        assert "stopping" in {line["message"] for line in log}
    assert seqs == [1, 2]
