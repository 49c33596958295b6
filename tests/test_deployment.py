"""Container, compose file, proxy, Kubernetes, Prometheus and Grafana: well formed, and as the service needs them."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import lmr
from lmr.apps.serve import choose_token
from lmr.cli.parser import parse
from lmr.core.errors import LmrError
from lmr.service.app.gate import OPEN_PATHS
from lmr.service.app.metrics import ServiceMetrics
from lmr.service.client.client import STREAM_HEADER
from lmr.service.engine.batch import BatchReport
from lmr.service.engine.status import Overview, ServiceEvent
from lmr.service.settings import ServiceSettings

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
ALONE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
COMPOSE = yaml.safe_load((ROOT / "compose.replicas.yaml").read_text(encoding="utf-8"))
PROMETHEUS = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text(encoding="utf-8"))
NGINX = (ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8")
GRAFANA = ROOT / "deploy" / "grafana"
KUBERNETES = {
    one["kind"]: one
    for path in sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
    for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))
}
POD = KUBERNETES["Deployment"]["spec"]["template"]["spec"]["containers"][0]
REPLICAS = ["lmr-1", "lmr-2", "lmr-3"]
DASHBOARD = json.loads((GRAFANA / "dashboards" / "lmr.json").read_text(encoding="utf-8"))


def read_words(instruction: str) -> list[str]:
    (found,) = re.findall(rf"^{instruction} (\[.*\])$", DOCKERFILE, re.MULTILINE)
    words: list[str] = json.loads(found)
    return words


@pytest.mark.parametrize(
    "command",
    [
        read_words("CMD"),
        ALONE["services"]["lmr"]["command"],
        *(COMPOSE["services"][name]["command"] for name in REPLICAS),
        POD["args"],
    ],
)
def test_the_container_starts_a_service_that_its_parser_takes(command: list[str]) -> None:
    program, *words = read_words("ENTRYPOINT")
    assert program == "lmr"
    options = parse([*words, *command])
    assert (options.host, options.token_file) == ("0.0.0.0", "/run/secrets/token")
    assert f"EXPOSE {options.port}" in DOCKERFILE
    if options.store.startswith("sqlite:"):
        assert f'VOLUME ["{Path(options.store.removeprefix("sqlite:")).parent}"' in DOCKERFILE
    else:
        assert options.store in ("postgresql://lmr@postgres/lmr", "$(LMR_STORE)")
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


def test_the_container_installs_what_has_a_known_hash_and_fits_the_constraints() -> None:
    """A new version in constraints.txt needs a new list: python .ci/pin_container.py."""
    for command in re.findall(r"/bin/pip install (.*?)(?:&& |$)", DOCKERFILE.replace("\\\n", ""), re.MULTILINE):
        assert "--require-hashes" in command or "--no-deps /wheels/" in command, command
    lines = (ROOT / "deploy" / "requirements.txt").read_text().splitlines()
    found = [re.fullmatch(r"([\w.-]+)==(\S+) --hash=sha256:[0-9a-f]{64}", line) for line in lines if line[0] != "#"]
    assert all(found)
    pins = {make_key(one[1]): one[2].removesuffix("+cpu") for one in found if one}
    given = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert all(pins.get(make_key(name), version) == version for name, version in given)
    (extras,) = re.findall('^EXTRAS = "(.*)"$', (ROOT / ".ci" / "pin_container.py").read_text(), re.MULTILINE)
    assert {"serve", "mqtt", "video"} <= set(extras.split(","))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + [
        line for name in extras.split(",") for line in project["optional-dependencies"][name]
    ]
    assert {make_key(re.split(r"[\[><=,]", line)[0]) for line in wanted} <= pins.keys()


def make_key(name: str) -> str:
    return name.lower().replace("_", "-")


def test_one_machine_is_one_service_with_sqlite() -> None:
    (service,) = ALONE["services"].values()
    assert service["ports"] == ["127.0.0.1:8080:8080"]
    folders = {volume.partition(":")[2] for volume in service["volumes"]}
    assert folders == {"/state", "/models"}
    assert "--store" not in service["command"]  # that of the image is in /state
    assert int(service["stop_grace_period"].removesuffix("s")) > ServiceSettings().drain_s
    (secret,) = ALONE["secrets"].values()
    assert secret["file"].removeprefix(".") in (ROOT / ".gitignore").read_text().splitlines()


def test_compose_mounts_what_is_there_and_waits_for_the_queue() -> None:
    services = COMPOSE["services"]
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], volume
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), "nothing is open to other machines unless someone decides so"
        for name in service.get("depends_on", []):
            assert name in services
    assert [name for name in services if name.startswith("lmr")] == REPLICAS
    for name in REPLICAS:
        assert int(services[name]["stop_grace_period"].removesuffix("s")) > ServiceSettings().drain_s
        assert services[name]["environment"]["PGPASSWORD"] == services["postgres"]["environment"]["POSTGRES_PASSWORD"]
    assert set(COMPOSE["secrets"]) == {"token", "grafana_password"}
    assert services["prometheus"]["secrets"] == ["token"]
    (password,) = services["grafana"]["secrets"]
    assert services["grafana"]["environment"] == {"GF_SECURITY_ADMIN_PASSWORD__FILE": f"/run/secrets/{password}"}
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    for secret in COMPOSE["secrets"].values():
        assert secret["file"].removeprefix(".") in ignored


def test_prometheus_asks_the_service_with_its_token() -> None:
    (job,) = PROMETHEUS["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"{name}:8080" for name in REPLICAS]}]
    assert job["authorization"]["credentials_file"] == "/run/secrets/token"


def test_proxy_knows_the_replicas_and_takes_what_they_take() -> None:
    assert re.findall(r"server (\S+):8080", NGINX) == REPLICAS
    settings = ServiceSettings()
    assert f"client_max_body_size {settings.max_body // 1_000_000}m;" in NGINX
    (seconds,) = re.findall(r"proxy_read_timeout (\d+)s;", NGINX)
    assert int(seconds) > settings.timeout_ms / 1000
    notes = KUBERNETES["Ingress"]["metadata"]["annotations"]
    assert notes["nginx.ingress.kubernetes.io/proxy-body-size"] == f"{settings.max_body // 1_000_000}m"
    assert int(notes["nginx.ingress.kubernetes.io/proxy-read-timeout"]) > settings.timeout_ms / 1000
    for text in (NGINX, notes["nginx.ingress.kubernetes.io/upstream-hash-by"]):
        assert f"$http_{STREAM_HEADER.lower().replace('-', '_')}" in text


def test_kubernetes_objects_fit_together() -> None:
    spec = KUBERNETES["Deployment"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    for selector in (spec["selector"], KUBERNETES["PodDisruptionBudget"]["spec"]["selector"]):
        assert selector["matchLabels"] == labels
    service = KUBERNETES["Service"]["spec"]
    assert service["selector"] == labels
    (port,) = POD["ports"]
    assert f"EXPOSE {port['containerPort']}" in DOCKERFILE
    assert service["ports"][0]["targetPort"] == port["name"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert POD[probe]["httpGet"]["path"] in OPEN_PATHS
        assert POD[probe]["httpGet"]["port"] == port["name"]
    pod = spec["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > ServiceSettings().drain_s
    assert f"USER {pod['securityContext']['runAsUser']}" in DOCKERFILE
    secret = KUBERNETES["Secret"]
    (secret_volume,) = (volume["secret"] for volume in pod["volumes"] if "secret" in volume)
    mounts = {mount["name"] for mount in POD["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}
    used = {POD["env"][0]["valueFrom"]["secretKeyRef"]["key"], secret_volume["items"][0]["key"]}
    assert used == set(secret["stringData"])
    assert secret["metadata"]["name"] == secret_volume["secretName"]
    (metric,) = KUBERNETES["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] in list_metrics()
    assert int(metric["pods"]["target"]["averageValue"]) == ServiceSettings().max_batch // 2
    target = KUBERNETES["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert target == {key: KUBERNETES["Deployment"][key] for key in ("apiVersion", "kind")} | {"name": "lmr"}


def test_images_are_pinned() -> None:
    images = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    images += [service["image"] for name, service in COMPOSE["services"].items() if not name.startswith("lmr")]
    for image in images:
        assert re.fullmatch(r"[\w/]+:[\w.-]*\d+\.\d+[\w.-]*@sha256:[0-9a-f]{64}", image), image
    assert POD["image"] == f"lmr:{lmr.__version__}"


def test_a_pod_has_no_more_rights_than_it_needs(tmp_path: Path) -> None:
    pod = KUBERNETES["Deployment"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert POD["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    writable = {mount["mountPath"] for mount in POD["volumeMounts"] if not mount.get("readOnly")}
    places = re.findall(r"(?:HF_HOME|LMR_CACHE)=(/\w+)/", DOCKERFILE)
    assert len(places) == 2
    assert writable == {"/tmp", *places}
    (tmp_path / "token").write_text(KUBERNETES["Secret"]["stringData"]["token"])
    with pytest.raises(LmrError):  # the printed one is refused, so that nobody forgets it
        choose_token("0.0.0.0", tmp_path / "token")


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
