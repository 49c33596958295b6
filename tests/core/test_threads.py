"""Several threads on one classifier: every answer is the one a single thread gets."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import lmr
import small_world
from pocket import load_pocket

pytestmark = pytest.mark.usefixtures("tiny_models")

STEPS = 12


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    """Threads take turns ten thousand times a second, so that what can go wrong does."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def run_together(*jobs: Callable[[], Any]) -> list[Any]:
    """Run every job in a thread of its own, started at the same moment; their results, or the first exception."""
    results: list[Any] = [None] * len(jobs)
    failures: list[BaseException] = []
    gate = threading.Barrier(len(jobs))

    def work(k: int) -> None:
        try:
            gate.wait()
            results[k] = jobs[k]()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "two threads wait for each other"
    if failures:
        raise failures[0]
    return results


def flow(method: lmr.Method, first: int = 0) -> list[Tensor]:
    return [method.step(small_world.make_images(first + k)).logits for k in range(STEPS)]


PAIRS = [
    ("lmr", "zeroshot"),
    ("lmr", "lmr(lr=0.01)"),
    ("tent(lr=0.01)", "tda"),
    ("eta(margin=1.0, diversity=2.0)", "mint"),
    ("batclip", "lmr"),
    ("bitta", "batclip"),
    ("ecalp", "tent"),
]


@pytest.mark.parametrize("specs", PAIRS, ids=" and ".join)
def test_two_methods_on_one_classifier_do_not_meet(specs: tuple[str, str]) -> None:
    expected = [flow(lmr.create(spec, small_world.make_classifier()), 3 * k) for k, spec in enumerate(specs)]
    clip = small_world.make_classifier()
    plain = lmr.create("zeroshot", clip).predict(small_world.make_images(0)).logits
    for _ in range(3):
        methods = [lmr.create(spec, clip) for spec in specs]
        found = run_together(*(lambda method=method, k=k: flow(method, 3 * k) for k, method in enumerate(methods)))
        for one, other in zip(found, expected, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        assert torch.equal(lmr.create("zeroshot", clip).predict(small_world.make_images(0)).logits, plain)


def test_model_serves_threads_and_plain_calls() -> None:
    backbone = load_pocket()
    clip = backbone.classifier(["circle", "square", "star"])
    images = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    expected = [lmr.create("lmr(tau=0.0)", clip).step(images).logits for _ in range(1)]
    with torch.no_grad():
        plain = backbone.encoder(images)
    words = backbone.encode_text(["a red star", "a circle"])

    def call() -> bool:
        with torch.no_grad():
            return all(torch.equal(backbone.encoder(images), plain) for _ in range(15))

    def read() -> bool:
        return all(torch.equal(backbone.encode_text(["a red star", "a circle"]), words) for _ in range(15))

    def step() -> bool:
        return all(torch.equal(lmr.create("lmr(tau=0.0)", clip).step(images).logits, expected[0]) for _ in range(15))

    def step_both() -> bool:
        found = [lmr.create("batclip", clip).step(images).logits for _ in range(8)]
        return all(torch.equal(one, found[0]) for one in found)

    assert run_together(step, call, step, read, step_both) == [True] * 5


def test_one_method_counts_and_learns_every_step() -> None:
    clip = small_world.make_classifier()
    method, alone = lmr.create("lmr(tau=0.0)", clip), lmr.create("lmr(tau=0.0)", clip)
    images = small_world.make_images(1)
    run_together(*[lambda: [method.step(images) for _ in range(STEPS)] for _ in range(3)])
    for _ in range(3 * STEPS):
        alone.step(images)  # every step is the same, so their order does not matter
    assert method.state["images"].item() / len(images) == method.state["steps"].item() == 3 * STEPS
    assert method.state["predicted"].sum() == 3 * STEPS * len(images)
    assert all(torch.equal(method.state[key], value) for key, value in alone.state.items())


def test_state_is_that_of_a_whole_number_of_steps() -> None:
    """A copy that is made, or a reset that comes, while another thread steps is of before or after a step."""
    clip = small_world.make_classifier()
    method = lmr.create("lmr(tau=0.0)", clip)
    images = small_world.make_images(1)
    kept: list[dict[str, Tensor]] = []

    def watch() -> None:
        for k in range(3 * STEPS):
            kept.append(method.state_dict()["tensors"])
            if k % 7 == 6:
                method.reset()

    run_together(lambda: [method.step(images) for _ in range(STEPS)], watch)
    for tensors in kept:
        assert tensors["images"] / len(images) == tensors["steps"] == tensors["predicted"].sum() / len(images)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_child_of_a_fork_answers_while_another_thread_steps() -> None:
    """A fork copies locks that other threads hold."""
    clip = small_world.make_classifier()
    stepping, asked = lmr.create("lmr", clip), lmr.create("lmr", clip)
    images, stop = small_world.make_images(0), threading.Event()
    expected, plain = asked.predict(images).logits, clip(images)

    def work() -> None:
        while not stop.is_set():
            stepping.step(images)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        for _ in range(10):
            child = os.fork()
            if not child:
                same = torch.equal(asked.predict(images).logits, expected) and torch.equal(clip(images), plain)
                os._exit(0 if same else 1)
            assert wait_for_child(child) == 0
    finally:
        stop.set()
        thread.join(120)


def wait_for_child(child: int) -> int | None:
    """Return the exit code of a child; None if it does not end."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None
