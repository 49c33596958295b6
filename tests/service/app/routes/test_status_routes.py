"""The model, the probes and the metrics over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import lmr
from lmr.service.app.app_factory import make_service_app
from lmr.service.app.live_service import LiveService
from lmr.service.app.server import Server
from lmr.service.engine.stream_types import Overview
from lmr.service.settings import ServiceSettings
from service_maker import NAMES, TIMEOUT, ScriptedService, make_file


@pytest.fixture(scope="module")
def loading() -> Iterator[httpx.Client]:
    with (
        Server(make_service_app(LiveService(ServiceSettings()))) as server,
        httpx.Client(base_url=server.url, timeout=TIMEOUT) as client,
    ):
        yield client


def test_model(service: ScriptedService) -> None:
    card = service.client.get("/v1/model").json()
    assert (card["model"], card["classes"], card["spec"], card["watch"]) == ("pocket", NAMES, "zeroshot()", "off")
    assert card["settings"]["max_images"] == 32
    assert card["version"] == lmr.__version__


@pytest.mark.parametrize(
    ("state", "code"), [("ready", 200), ("degraded", 200), ("draining", 503), ("loading", 503), ("closed", 503)]
)
def test_readiness(service: ScriptedService, state: str, code: int) -> None:
    service.engine.overview = Overview(state, "The disk is full." if state == "degraded" else "")  # type: ignore[arg-type]
    try:
        answer = service.client.get("/readyz")
        assert (answer.status_code, answer.json()["status"]) == (code, state)
        assert answer.json().get("reason") == ("The disk is full." if state == "degraded" else None)
        assert service.client.get("/v2/health/ready").status_code == code
        assert service.client.get("/healthz").status_code == 200
    finally:
        service.engine.overview = Overview("ready")


def test_while_the_model_loads(loading: httpx.Client) -> None:
    """The socket is open: probes and the page work, requests are told to come back."""
    assert loading.get("/healthz").status_code == 200
    assert loading.get("/readyz").status_code == 503
    assert loading.get("/").status_code == 200
    assert loading.get("/metrics").status_code == 200
    for path in ("/v1/streams", "/v1/model", "/v1/streams/a", "/v2/models/pocket"):
        answer = loading.get(path)
        assert answer.status_code == 503
        assert answer.headers["Retry-After"]
    posted = loading.post("/v1/streams/a/images", content=make_file(), headers={"Content-Type": "image/jpeg"})
    assert posted.status_code == 503
    assert posted.json()["error"]["code"] == "not_ready"


def test_metrics(service: ScriptedService) -> None:
    service.engine.overview = Overview("ready", by_health={"ok": 3, "watch": 1}, queue_images=7, store_bytes=1000)
    service.post()
    service.post(content=b"no image")
    text = service.client.get("/metrics").text
    service.engine.overview = Overview("ready")
    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    route = ("route", "/v1/streams/{stream}/images")
    assert found["lmr_requests_total", (("code", "200"), route)] >= 1
    assert found["lmr_requests_total", (("code", "422"), route)] >= 1
    assert found["lmr_images_total", ()] >= 1
    assert found["lmr_steps_total", ()] >= 1
    assert found["lmr_queue_images", ()] == 7
    assert found["lmr_store_bytes", ()] == 1000
    assert found["lmr_streams", (("health", "watch"),)] == 1
    assert found["lmr_batch_images_count", ()] >= 1
    assert found["lmr_commit_seconds_sum", ()] > 0
    assert found["lmr_ready", ()] == 1
    assert not any("stream" in dict(labels) for _, labels in found)


def test_openapi_describes_every_route(service: ScriptedService) -> None:
    described = service.client.get("/openapi.json").json()
    paths = described["paths"]
    assert "/v1/streams/{stream}/images" in paths
    assert "/v2/models/{model}/infer" in paths
    for path, verbs in paths.items():
        for route in verbs.values():
            assert route.get("description"), path
            assert route["summary"], path
    codes = set(paths["/v1/streams/{stream}/images"]["post"]["responses"])
    assert codes >= {"200", "400", "401", "404", "409", "413", "415", "422", "429", "503", "504"}
    for verbs in (paths["/v1/streams/{stream}:reset"], paths["/v1/streams/{stream}/state"]):
        for route in verbs.values():  # they wait for their turn in the same queue
            assert set(route["responses"]) >= {"200", "404", "409", "429", "503", "504"}
    kinds = set(paths["/v1/streams/{stream}/images"]["post"]["requestBody"]["content"])
    assert kinds == {"image/jpeg", "image/png", "image/webp", "multipart/form-data", "application/json"}
