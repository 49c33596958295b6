"""Every reason for refusing has its code, and every error the one form."""

from __future__ import annotations

import httpx
import pytest

from lmr.core.errors import LmrError
from lmr.service.engine.requests import (
    CannotDo,
    DeadlinePassed,
    KeyInFlight,
    KeyReused,
    NotReady,
    QueueFull,
    StoreFailed,
    UnknownStream,
)
from service_maker import ScriptedService

REASONS = [
    (UnknownStream("There is no stream."), 404, "unknown_stream"),
    (KeyInFlight("It is being served."), 409, "key_in_flight"),
    (CannotDo("There is no snapshot."), 409, "cannot_do"),
    (KeyReused("The key has another body."), 422, "key_reused"),
    (LmrError("This cannot be used."), 422, "not_usable"),
    (QueueFull("The queue is full.", 2.2), 429, "queue_full"),
    (NotReady("The service has been stopped."), 503, "not_ready"),
    (StoreFailed("The disk is full."), 503, "store_failed"),
    (DeadlinePassed("It waited too long."), 504, "deadline_passed"),
]


def read_error(answer: httpx.Response) -> dict[str, str]:
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "message"}
    return body["error"]


@pytest.mark.parametrize(("reason", "status", "code"), REASONS, ids=[code for _, _, code in REASONS])
def test_reason_has_its_code(service: ScriptedService, reason: LmrError, status: int, code: str) -> None:
    service.engine.refusal = reason
    answer = service.post()
    assert answer.status_code == status
    assert read_error(answer) == {"code": code, "message": str(reason)}
    assert answer.headers.get("Retry-After") == {429: "3", 503: "5"}.get(status)


def test_failure_is_an_error_without_details(service: ScriptedService, caplog: pytest.LogCaptureFixture) -> None:
    """Its details are in the log, under the id that the answer has."""
    service.engine.refusal = RuntimeError("secret")
    answer = service.post()
    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.fields["request_id"] == answer.headers["X-Request-Id"]  # type: ignore[attr-defined]
    assert "secret" in str(record.exc_info)
    assert answer.status_code == 500
    assert read_error(answer)["code"] == "internal"
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/nothing", 404), ("PATCH", "/v1/streams", 405), ("GET", "/v1/streams?limit=0", 400)],
)
def test_what_the_framework_refuses_has_the_form_too(
    service: ScriptedService, method: str, path: str, status: int
) -> None:
    answer = service.client.request(method, path)
    assert answer.status_code == status
    assert read_error(answer)["message"].endswith(".")
