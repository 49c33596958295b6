"""Container, compose file, Kubernetes and Grafana: what the service takes, and as few rights as it needs."""

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
from lmr.service.engine.batch import BatchReport
from lmr.service.engine.status import Overview, ServiceEvent

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
ALONE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
COMPOSE = yaml.safe_load((ROOT / "compose.replicas.yaml").read_text(encoding="utf-8"))
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


def test_secrets_are_files_that_the_repository_does_not_hold() -> None:
    grafana = COMPOSE["services"]["grafana"]
    (password,) = grafana["secrets"]
    assert grafana["environment"] == {"GF_SECURITY_ADMIN_PASSWORD__FILE": f"/run/secrets/{password}"}
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    for secret in (*ALONE["secrets"].values(), *COMPOSE["secrets"].values()):
        assert secret["file"].removeprefix(".") in ignored
    ports = [
        port for part in (ALONE, COMPOSE) for service in part["services"].values() for port in service.get("ports", [])
    ]
    assert all(port.startswith("127.0.0.1:") for port in ports), "nothing is open to others unless someone decides so"


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


def list_metrics() -> set[str]:
    """The names of all samples that the service gives."""
    now = Overview("ready", by_health={"ok": 1})
    metrics = ServiceMetrics(lambda: now)
    metrics.add_request("/v1/streams/{stream}/images", 200, 0.1)
    metrics.add_batch(BatchReport(1, 1, 1, 0.1, 0.1))
    metrics.add_event(ServiceEvent(1, 0.0, "a", "operator", "ok", "reset", ""))
    return {sample.name for family in metrics.registry.collect() for sample in family.samples}


def test_the_dashboard_uses_metrics_that_exist() -> None:
    known = list_metrics()
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            expression: str = target["expr"]
            names = set(re.findall(r"\b((?:lmr|process)_\w+)", expression))
            assert names, expression
            assert names <= known, expression
