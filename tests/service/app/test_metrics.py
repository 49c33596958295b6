"""What is counted, and what is not."""

from __future__ import annotations

import pytest

from lmr.service.app.metrics import ServiceMetrics
from lmr.service.engine.status import EventKind, Overview, ServiceEvent


@pytest.fixture
def metrics() -> ServiceMetrics:
    return ServiceMetrics(lambda: Overview("ready"))


def read(metrics: ServiceMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def tell(metrics: ServiceMetrics, kind: EventKind, after: str, *alarms: str) -> None:
    metrics.add_event(ServiceEvent(1, 0.0, "cam", kind, "ok", after, "Words.", {"alarms": list(alarms)}))


def test_rollbacks_by_reason(metrics: ServiceMetrics) -> None:
    tell(metrics, "health", "suspected", "entropy")
    tell(metrics, "health", "rolled back", "entropy", "drift")
    tell(metrics, "health", "paused", "entropy")
    tell(metrics, "operator", "rolled back")
    tell(metrics, "operator", "paused")
    assert read(metrics, "lmr_rollbacks_total", health="rolled back", reason="entropy") == 1
    assert read(metrics, "lmr_rollbacks_total", health="rolled back", reason="drift") == 1
    assert read(metrics, "lmr_rollbacks_total", health="paused", reason="entropy") == 1
    assert read(metrics, "lmr_rollbacks_total", health="rolled back", reason="operator") == 1
    assert read(metrics, "lmr_rollbacks_total", health="suspected", reason="entropy") is None


def test_two_services_in_one_process_count_apart(metrics: ServiceMetrics) -> None:
    other = ServiceMetrics(lambda: Overview("draining"))
    metrics.add_request("/", 200, 0.1)
    assert read(other, "lmr_requests_total", route="/", code="200") is None
    assert (read(metrics, "lmr_ready"), read(other, "lmr_ready")) == (1, 0)
    assert b"process_resident_memory_bytes" in other.render()
