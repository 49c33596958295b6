from __future__ import annotations

import pytest

from closed_port import hold_closed_port
from lab.load.inputs import draw_image
from lab.load.senders import run_senders
from lmr.service.client.client import Client
from lmr.service.engine.requests import ServiceAnswer
from scripted_service import run_scripted_service

IMAGE = draw_image(0, 8)


def send(client: Client, thread: int, number: int) -> ServiceAnswer:
    return client.step(f"load-{thread}", [IMAGE, IMAGE])


def test_every_thread_sends_and_codes_are_counted() -> None:
    with run_scripted_service() as service:
        service.script = [429, 500]
        stats, seconds = run_senders(service.url, 3, send, 60, most=4)
    assert stats.codes == {200: 10, 429: 1, 500: 1}
    assert stats.images == 20
    assert 0 < seconds < 60


def test_a_fault_of_the_experiment_is_not_swallowed() -> None:
    def fail(client: Client, thread: int, number: int) -> ServiceAnswer:
        raise RuntimeError("a fault of the experiment")

    with hold_closed_port() as place, pytest.raises(RuntimeError, match="fault of the experiment"):
        run_senders(f"http://{place}", 1, fail, 60)
