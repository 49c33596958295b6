"""What is put together for a service, and what is refused at its start."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import lmr
from lmr.apps.options import NO_STATE, ServerOptions
from lmr.apps.serve import (
    STORE_FILE,
    ServingPlan,
    check_packages,
    choose_threads,
    choose_token,
    create_served,
    keep_freed_memory,
    leave_if_loading,
    open_store,
    serve_classifier,
)
from lmr.core.errors import LmrError
from lmr.watch.settings import WatchSettings
from service_maker import NAMES, load_pocket

TOKEN = "0123456789abcdef"


def test_method_has_its_values_for_the_classes_and_counts_by_images() -> None:
    method = create_served("lmr", load_pocket().classifier(NAMES), 3)
    assert method.streams == 3
    assert (method.pace, method.gamma0) == ("image", 0.3)  # type: ignore[attr-defined]
    spoken = create_served("lmr(pace='batch', gamma0=2)", load_pocket().classifier(NAMES), 1)
    assert (spoken.pace, spoken.gamma0) == ("batch", 2.0)  # type: ignore[attr-defined]
    assert create_served("zeroshot", load_pocket().classifier(NAMES), 1).spec == "zeroshot()"


def test_threads_follow_the_size_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = load_pocket()
    assert choose_threads(None, backbone) == 1
    assert choose_threads(3, backbone) == 3
    monkeypatch.setattr(type(backbone), "is_small", False)
    assert choose_threads(None, backbone) == torch.get_num_threads()
    with pytest.raises(LmrError, match="at least one thread"):
        choose_threads(0, backbone)


def test_method_whose_state_grows_is_refused() -> None:
    with pytest.raises(LmrError, match=r"The state of ecalp grows with every image .* choose another method"):
        create_served("ecalp", load_pocket().classifier(NAMES), 1)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_this_machine_needs_no_token(host: str) -> None:
    assert choose_token(host, None) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org"])
def test_other_machines_need_one(host: str, tmp_path: Path) -> None:
    with pytest.raises(LmrError, match="needs a --token-file"):
        choose_token(host, None)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert choose_token(host, tmp_path / "token") == TOKEN


@pytest.mark.parametrize("content", ["", "short", "two words of a token", "a-token-with-ä-in-it"])
def test_weak_tokens(content: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(content)
    with pytest.raises(LmrError, match=r"openssl rand"):
        choose_token("127.0.0.1", tmp_path / "token")
    with pytest.raises(LmrError, match="Cannot read the token"):
        choose_token("127.0.0.1", tmp_path / "missing")


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    check_packages()
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(LmrError, match=r"lmr serve needs uvicorn; install it with: pip install 'lmr\[serve\]'"):
        check_packages()


def test_store_belongs_to_a_method_and_a_watch(tmp_path: Path) -> None:
    method = create_served("lmr", load_pocket().classifier(NAMES), 2)
    assert open_store(NO_STATE, method, None) is None
    store = open_store(tmp_path / "new" / "folder", method, WatchSettings())
    assert store is not None
    store.close()
    with pytest.raises(LmrError, match="another watch: on, not off"):
        open_store(tmp_path / "new" / "folder", method, None)
    other = create_served("lmr(lr=0.5)", load_pocket().classifier(NAMES), 2)
    with pytest.raises(LmrError, match="belongs to the method lmr, not to lmr"):
        open_store(tmp_path / "new" / "folder", other, WatchSettings())
    (tmp_path / "file").write_text("")
    with pytest.raises(LmrError, match="Cannot create the folder of states"):
        open_store(tmp_path / "file", method, None)


def test_garbage_is_looked_for_only_in_what_is_new() -> None:
    """Going through all modules and the model would stop every thread."""
    while_serving: list[int] = []

    def look(url: str, stop: Callable[[], None]) -> None:
        while_serving.append(gc.get_freeze_count())
        stop()

    before = gc.get_freeze_count()
    serve_classifier(ServingPlan(NAMES, model="pocket"), ServerOptions(port=0), report=lambda line: None, on_ready=look)
    assert while_serving[0] > before


@pytest.mark.skipif(sys.platform != "linux", reason="the setting is one of glibc")
def test_a_step_finds_its_memory_mapped() -> None:
    """By default glibc gives about 3,000 pages back after each of these steps."""
    keep_freed_memory()
    backbone = load_pocket()
    method = lmr.create("lmr", backbone.classifier(NAMES), preset="auto")
    images = torch.randn(64, *backbone.input_shape, generator=torch.Generator().manual_seed(0))

    def count_faults(steps: int) -> float:
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        for _ in range(steps):
            method.step(images)
        return (resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before) / steps

    count_faults(2)
    assert count_faults(3) < 500


def test_process_that_still_loads_is_ended_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    leave_if_loading()
    assert not codes
    done = threading.Event()
    loader = threading.Thread(target=done.wait, name="lmr-load")
    loader.start()
    leave_if_loading()
    done.set()
    loader.join()
    assert codes == [0]


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    keep_freed_memory()


def test_store_of_the_old_default_is_refused_with_how_to_go_on(tmp_path: Path) -> None:
    classifier, watch = load_pocket().classifier(NAMES), WatchSettings()
    for spec, shown in (("lmr", "lmr"), ("lmr(lr=0.5)", "'lmr(lr=0.5)'")):
        store = open_store(tmp_path / spec, create_served(spec, classifier, 2), watch)
        assert store is not None
        store.close()
        with pytest.raises(LmrError) as refused:
            open_store(tmp_path / spec, create_served(ServingPlan.method, classifier, 2), watch)
        assert str(refused.value) == (
            f"The store {str(tmp_path / spec / STORE_FILE)!r} belongs to the method {spec}, not to steady; give "
            f"--method {shown} to go on with it, or another --state-dir to start anew."
        )
        again = open_store(tmp_path / spec, create_served(spec, classifier, 2), watch)
        assert again is not None
        again.close()
