"""ServiceMetrics: the metrics for Prometheus.

There may be any number of streams, so only the estimated accuracy, of a few that a person labels, names its stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from lmr.service.engine.batch import BatchReport
from lmr.service.engine.status import Overview, ServiceEvent, StreamStatus

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_ESTIMATED = 100  # streams whose estimated accuracy is given, the last changed ones
_ROLLBACKS = ("rolled back", "reset")  # the health levels that undo adaptation


class ServiceMetrics(Collector):
    """A registry of its own, so that several services may live in one process."""

    def __init__(
        self,
        read_overview: Callable[[], Overview],
        list_estimated: Callable[[int], Sequence[StreamStatus]] = lambda limit: [],
    ) -> None:
        self.registry = kept = CollectorRegistry()
        self._requests = Counter("lmr_requests", "Requests by route and code.", ["route", "code"], registry=kept)
        self._request_seconds = Histogram(
            "lmr_request_seconds", "From the head of a request to the end of its answer.", ["route"], buckets=_SECONDS,
            registry=kept,
        )  # fmt: skip
        self._images = Counter("lmr_images", "Images that were answered.", registry=kept)
        self._steps = Counter("lmr_steps", "Steps: requests that adapted a stream.", registry=kept)
        self._batch_images = Histogram("lmr_batch_images", "Images in a batch.", buckets=_SIZES, registry=kept)
        self._batch_streams = Histogram("lmr_batch_streams", "Streams in a batch.", buckets=_SIZES, registry=kept)
        self._batch_seconds = Histogram("lmr_batch_seconds", "Computation of a batch.", buckets=_SECONDS, registry=kept)
        self._commit_seconds = Histogram("lmr_commit_seconds", "Commit of a batch.", buckets=_SECONDS, registry=kept)
        self._rollbacks = Counter(
            "lmr_rollbacks", "Times that the watch or an operator undid adaptation, by health level and reason.",
            ["health", "reason"], registry=kept,
        )  # fmt: skip
        self._read_overview, self._list_estimated = read_overview, list_estimated
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def add_request(self, route: str, code: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests.labels(route, str(code)).inc()
        self._request_seconds.labels(route).observe(seconds)

    def add_batch(self, report: BatchReport) -> None:
        """Count a batch that was computed, from a thread of the engine. One without images is an operator's action."""
        if report.commit_seconds is not None:
            self._commit_seconds.observe(report.commit_seconds)
        if not report.images:
            return
        self._images.inc(report.images)
        self._steps.inc(report.steps)
        self._batch_images.observe(report.images)
        self._batch_streams.observe(report.streams)
        self._batch_seconds.observe(report.seconds)

    def add_event(self, event: ServiceEvent) -> None:
        """Count an event, if it undoes adaptation."""
        if event.kind == "operator" and event.after in _ROLLBACKS:
            self._rollbacks.labels(event.after, "operator").inc()
        elif event.kind == "health" and event.after in (*_ROLLBACKS, "paused"):  # after too many, reset and paused
            for alarm in event.signals.get("alarms") or ["unknown"]:
                self._rollbacks.labels(event.after, alarm).inc()

    def render(self) -> bytes:
        """Return the text that Prometheus reads."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges, which are read from the engine when Prometheus reads them."""
        now = self._read_overview()
        values = {
            "lmr_ready": ("1 if the service takes requests and can write its store.", now.state == "ready"),
            "lmr_queue_images": ("Images that wait.", now.queue_images),
            "lmr_queue_requests": ("Requests that wait.", now.queue_requests),
            "lmr_in_flight_requests": ("Requests in a batch that is computed or committed.", now.in_flight),
            "lmr_resident_streams": ("Streams whose state is in memory.", now.resident),
            "lmr_store_bytes": ("Size of the store.", now.store_bytes),
            "lmr_unsaved_requests": ("Answered requests whose state is not committed yet.", now.unsaved),
            "lmr_last_commit_timestamp_seconds": ("Unix time of the last commit.", now.last_commit or 0),
        }
        for name, (help_text, value) in values.items():
            yield GaugeMetricFamily(name, help_text, value=float(value))
        phases = "Streams that changed since the start: quiet (answered as the frozen model), looking or adapting."
        cameras = "Streams that changed since the start, by what is wrong with their camera, such as black or stuck."
        for title, meaning, label, counts in (
            ("lmr_streams", "Streams by health.", "health", now.by_health),
            ("lmr_phase_streams", phases, "phase", now.by_phase),
            ("lmr_camera_streams", cameras, "camera", now.by_camera),
        ):
            family = GaugeMetricFamily(title, meaning, labels=[label])
            for kind, number in sorted(counts.items()):
                family.add_metric([kind], number)
            yield family
        shown = self._list_estimated(_ESTIMATED)
        ends = [one.estimated_interval or (0.0, 1.0) for one in shown]
        accuracies = [one.estimated_accuracy or 0.0 for one in shown]
        labels = [float(one.estimated_labels) for one in shown]
        for title, meaning, numbers in (
            ("lmr_estimated_accuracy", "Accuracy that the labels of a stream show.", accuracies),
            ("lmr_estimated_accuracy_low", "Lower end of its 95 % interval.", [low for low, _ in ends]),
            ("lmr_estimated_accuracy_high", "Upper end of its 95 % interval.", [high for _, high in ends]),
            ("lmr_estimated_labels", "Labels of images like the present ones.", labels),
        ):
            family = GaugeMetricFamily(title, meaning, labels=["stream"])
            for one, share in zip(shown, numbers, strict=True):
                family.add_metric([one.stream], share)
            yield family
