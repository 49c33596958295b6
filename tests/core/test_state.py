"""The state file: small, plain, whole or not there; and whatever is not one is answered with a sentence."""

from __future__ import annotations

import errno
import json
import os
import random
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load, save
from torch import Tensor

import lmr
from lmr.core import state
from lmr.core.errors import LmrError
from lmr.core.files import write_atomically
from lmr.core.state import decode_state, encode_state, join_header, read_state, split_header

MAKE = """
import torch
from torch import nn
import lmr

def make_method(streams=1):
    generator = torch.Generator().manual_seed(3)
    encoder = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8))
    for parameter in encoder.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    return lmr.create("lmr", lmr.ZeroShot(encoder, torch.randn(4, 8, generator=generator), 20.0), streams=streams)

def make_images(count, seed):
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
"""
exec(MAKE)  # the same lines serve the processes that are started, and killed, below
make_method: Callable[..., lmr.Method] = globals()["make_method"]
make_images: Callable[[int, int], Tensor] = globals()["make_images"]


def run(script: str, *arguments: str, limit: float = 300) -> str:
    """Run a script in a process of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def method() -> lmr.Method:
    method = make_method()
    for seed in range(3):
        method.step(make_images(8, seed))
    assert method.state["steps"].item() > 0
    return method


@pytest.fixture
def path(method: lmr.Method, tmp_path: Path) -> Path:
    method.save(tmp_path / "state.safetensors", notes={"camera": "gate 7", "größe": "日本 \n {}"})
    return tmp_path / "state.safetensors"


def refuse(path: Path, words: str) -> None:
    """A method in the middle of its life is given the file: a sentence, and not one bit changes."""
    method = make_method()
    method.step(make_images(8, 9))
    before = {key: value.clone() for key, value in method.state.items()}
    with pytest.raises(lmr.LmrError, match=f"(?s){words}") as caught:
        method.load(path)
    assert path.name in str(caught.value)
    assert all(torch.equal(value, before[key]) for key, value in method.state.items())


# What is in it.


def test_file_gives_back_what_was_saved(method: lmr.Method, path: Path) -> None:
    tensors, facts = read_state(path)
    assert tensors.keys() == method.state.keys()
    for key, value in method.state.items():
        assert torch.equal(tensors[key], value)
        assert tensors[key].dtype == value.dtype
    assert facts["spec"] == method.spec
    fresh = make_method()
    assert fresh.load(path) == {"camera": "gate 7", "größe": "日本 \n {}"}
    assert torch.equal(fresh.step(make_images(8, 5)).logits, method.step(make_images(8, 5)).logits)


def test_file_can_be_read_without_torch_and_without_lmr(path: Path, method: lmr.Method) -> None:
    script = """
        import json, sys
        sys.modules["torch"] = None
        from safetensors import safe_open
        with safe_open(sys.argv[1], framework="np") as file:
            print(json.dumps([file.metadata(), sorted(file.keys()), file.get_tensor("images").tolist()]))
        assert "lmr" not in sys.modules
    """
    facts, keys, images = json.loads(run(script, str(path)))
    assert facts["format"] == "lmr-state"
    assert facts["version"] == "1"
    assert facts["spec"] == method.spec
    assert facts["note.camera"] == "gate 7"
    assert facts.keys() >= {"backbone", "classes"}
    assert keys == sorted(method.state)
    assert images == [24]


# What is not one.


def test_truncated_anywhere_is_refused(path: Path, tmp_path: Path) -> None:
    content = path.read_bytes()
    header = 8 + struct.unpack("<Q", content[:8])[0]
    edges = {0, 1, 7, 8, 9, header - 1, header, header + 1, len(content) - 1}
    places = sorted(edges | set(random.Random(0).sample(range(len(content)), 60)))
    for place in places:
        part = tmp_path / f"first {place}"
        part.write_bytes(content[:place])
        refuse(part, "not a complete state file")


def test_missing_file_and_folder_get_a_sentence(tmp_path: Path) -> None:
    refuse(tmp_path / "nowhere", "There is no state file")
    (tmp_path / "folder").mkdir()
    refuse(tmp_path / "folder", "directory")


def test_foreign_safetensors_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(save({"weight": torch.zeros(3)}))
    refuse(tmp_path / "plain", "not a saved state of lmr")
    (tmp_path / "other").write_bytes(save({"weight": torch.zeros(3)}, metadata={"format": "pt"}))
    refuse(tmp_path / "other", "not a saved state of lmr")


def rewrite(path: Path, change: Callable[[dict[str, Tensor], dict[str, str]], Any]) -> None:
    """Change tensors or facts of a good file, with a digest that fits."""
    tensors = load(path.read_bytes())
    _, facts = read_state(path)
    assert "digest" not in facts
    change(tensors, facts)
    facts["digest"] = state._digest(tensors, facts)
    path.write_bytes(save(tensors, metadata=facts))


CHANGES: dict[str, tuple[Callable[[dict[str, Tensor], dict[str, str]], Any], str]] = {
    "future": (lambda tensors, facts: facts.update(version="2"), "has state format '2', this lmr reads '1'; upgrade"),
    "spec": (lambda tensors, facts: facts.update(spec="tent()"), r"belongs to tent\(\), not to lmr"),
    "no weights": (lambda tensors, facts: facts.pop("backbone"), "other weights"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_file_is_refused(change: str, path: Path) -> None:
    rewrite(path, CHANGES[change][0])
    refuse(path, CHANGES[change][1])


def test_content_that_does_not_match_its_digest_is_refused(path: Path) -> None:
    content = path.read_bytes()
    with safe_open(path, framework="pt") as file:
        facts = dict(file.metadata())
    tensors = load(content)
    path.write_bytes(save(tensors, metadata=facts))
    make_method().load(path)  # another order of the header is the same state
    tensors["mass"][0, 0] += 1
    path.write_bytes(save(tensors, metadata=facts))
    refuse(path, "is damaged: its content does not match its digest")
    path.write_bytes(save(load(content), metadata=facts | {"note.camera": "gate 8"}))
    refuse(path, "is damaged: its content does not match its digest")


# Written whole, or not at all.


@pytest.mark.parametrize("call", ["replace", "fsync"])
@pytest.mark.parametrize("code", [errno.ENOSPC, None])
def test_failing_disk_leaves_the_old_file(
    call: str, code: int | None, method: lmr.Method, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or an interrupt."""
    before = path.read_bytes()
    method.step(make_images(8, 20))

    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt if code is None else OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(KeyboardInterrupt if code is None else lmr.LmrError):
            method.save(path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]
    make_method().load(path)
    method.save(path)
    assert path.read_bytes() != before


def test_data_reach_the_disk_before_the_name(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other order can leave an empty file under the good name after a power cut."""
    calls: list[tuple[str, int]] = []
    fsync, replace = os.fsync, os.replace

    def watch_fsync(descriptor: int) -> None:
        calls.append(("fsync", os.fstat(descriptor).st_size))
        fsync(descriptor)

    def watch_replace(source: Any, target: Any) -> None:
        calls.append(("replace", os.stat(source).st_size))
        assert Path(source).parent == Path(target).parent  # a rename across file systems is a copy
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watch_fsync)
    monkeypatch.setattr(os, "replace", watch_replace)
    write_atomically(path, b"new content")
    assert calls[:2] == [("fsync", 11), ("replace", 11)]
    assert path.read_bytes() == b"new content"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_process_leaves_a_whole_file(tmp_path: Path) -> None:
    script = (
        MAKE
        + """
import os, random, signal, sys, time
torch.set_num_threads(1)
path = sys.argv[1]
method = make_method(streams=40)
method.save(path, notes={"count": "0"})
reader = make_method(streams=40)
seen, last, turn = set(), 0, 0
while turn < 20 or (len(seen) < 6 and turn < 1000):  # on a busy machine many a child is killed before its first save
    turn += 1
    child = os.fork()
    if child == 0:
        while True:
            last += 1
            method.state["images"].fill_(last)
            method.state["norms"].fill_(last)
            method.save(path, notes={"count": str(last)})
    time.sleep(random.uniform(0.001, 0.025))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    count = int(reader.load(path)["count"])
    assert count >= last, (count, last)
    for key in ("images", "norms"):
        assert count == 0 or (reader.state[key] == count).all(), (key, count)
    last = count
    seen.add(count)
assert len(seen) > 5, seen
assert not [name for name in os.listdir(os.path.dirname(path)) if not (name == 'state' or name.endswith('.part'))]
print("whole")
"""
    )
    assert run(script, str(tmp_path / "state")) == "whole"


# The same as bytes.


def test_content_is_what_is_written_to_a_file(method: lmr.Method, path: Path) -> None:
    method.save(path, notes={"place": "here"})
    content = method.dump(notes={"place": "here"})
    assert content == path.read_bytes()
    other = make_method()
    assert other.restore(content) == {"place": "here"}
    assert other.dump() == method.dump()


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.update(__metadata__=None),
        lambda header: header.update(__metadata__={}),
        lambda header: header["x"].update(dtype="F8_E8M0"),
        lambda header: header["x"].update(shape=[2**62]),
        lambda header: header["x"].update(shape=None),
    ],
)
def test_forged_header_is_an_error_of_lmr(change: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    header, rest = split_header(encode_state({"x": torch.zeros(4)}, {}))
    header["__metadata__"].pop("digest")
    change(header)
    content = join_header(header) + rest
    with pytest.raises(LmrError):
        decode_state(content, "It")
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(LmrError):
        read_state(tmp_path / "state")
