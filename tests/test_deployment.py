"""Container, compose file, Prometheus and Grafana: well formed, and in agreement with the flags and metrics."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from lmr.cli.parser import parse
from lmr.service.app.gate import OPEN_PATHS
from lmr.service.app.metrics import ServiceMetrics
from lmr.service.engine.batch import BatchReport
from lmr.service.engine.status import Overview, ServiceEvent
from lmr.service.settings import ServiceSettings

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
PROMETHEUS = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text(encoding="utf-8"))
GRAFANA = ROOT / "deploy" / "grafana"
DASHBOARD = json.loads((GRAFANA / "dashboards" / "lmr.json").read_text(encoding="utf-8"))


def read_words(instruction: str) -> list[str]:
    (found,) = re.findall(rf"^{instruction} (\[.*\])$", DOCKERFILE, re.MULTILINE)
    words: list[str] = json.loads(found)
    return words


@pytest.mark.parametrize("command", [read_words("CMD"), COMPOSE["services"]["lmr"]["command"]])
def test_the_container_starts_a_service_that_its_parser_takes(command: list[str]) -> None:
    program, *words = read_words("ENTRYPOINT")
    assert program == "lmr"
    options = parse([*words, *command])
    assert (options.host, options.token_file) == ("0.0.0.0", "/run/secrets/token")
    assert f"EXPOSE {options.port}" in DOCKERFILE
    assert f'VOLUME ["{options.state_dir}"' in DOCKERFILE
    assert len(options.labels.split(",")) == 10


def test_what_the_container_copies_exists_and_its_probe_needs_no_token() -> None:
    sent = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert sent[0] == "*"
    for line in re.findall(r"^COPY (?!--)(.+) \S+$", DOCKERFILE, re.MULTILINE):
        for name in line.split():
            assert (ROOT / name).exists(), name
            assert f"!{name}" in sent, name
    (path,) = re.findall(r"urlopen\('http://127.0.0.1:8080(/\w+)'", DOCKERFILE)
    assert path in OPEN_PATHS
    assert "USER 10001" in DOCKERFILE


def test_compose_mounts_what_is_there_and_waits_for_the_queue() -> None:
    services = COMPOSE["services"]
    for service in services.values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], volume
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), "nothing is open to other machines unless someone decides so"
    assert int(services["lmr"]["stop_grace_period"].removesuffix("s")) > ServiceSettings().drain_s
    assert set(COMPOSE["secrets"]) == {"token"} == set(services["prometheus"]["secrets"])


def test_prometheus_asks_the_service_with_its_token() -> None:
    (job,) = PROMETHEUS["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["lmr:8080"]}]
    assert job["authorization"]["credentials_file"] == "/run/secrets/token"


def test_grafana_finds_its_source_and_its_dashboards() -> None:
    source = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "prometheus.yaml").read_text())["datasources"][
        0
    ]
    provider = yaml.safe_load((GRAFANA / "provisioning" / "dashboards" / "lmr.yaml").read_text())["providers"][0]
    mounts = [volume.split(":")[1] for volume in COMPOSE["services"]["grafana"]["volumes"]]
    assert provider["options"]["path"] in mounts
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]} == {source["uid"]}


def list_metrics() -> dict[str, set[str]]:
    """The names of all samples that the service gives, each with its labels."""
    now = Overview("ready", by_health={"ok": 1})
    metrics = ServiceMetrics(lambda: now)
    metrics.add_request("/v1/streams/{stream}/images", 200, 0.1)
    metrics.add_batch(BatchReport(1, 1, 1, 0.1, 0.1))
    metrics.add_event(ServiceEvent(1, 0.0, "a", "operator", "ok", "reset", ""))
    found: dict[str, set[str]] = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_the_dashboard_uses_metrics_and_labels_that_exist() -> None:
    known, used = list_metrics(), set()
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            expression: str = target["expr"]
            names = set(re.findall(r"\b((?:lmr|process)_\w+)", expression))
            assert names, expression
            assert names <= set(known), expression
            labels = set(re.findall(r"[{,]\s*(\w+)\s*=", expression))
            labels |= {name.strip() for part in re.findall(r"by \(([^)]*)\)", expression) for name in part.split(",")}
            labels |= set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert labels <= set().union(*(known[name] for name in names)), expression
            used |= names
    own = {name for name in known if name.startswith("lmr_") and not name.endswith("_created")}
    parts = ("_bucket", "_sum", "_count")
    seen = {name.removesuffix(part) for name in used for part in ("", *parts)}
    missing = {name for name in own if not seen & {name.removesuffix(part) for part in ("", *parts)}}
    assert missing == set(), "a metric that nobody sees on the dashboard"


def test_panels_do_not_overlap() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place: dict[str, Any] = panel["gridPos"]
        own = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not own & cells, panel["title"]
        assert max(x for x, _ in own) < 24
        cells |= own
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
