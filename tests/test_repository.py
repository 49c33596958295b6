"""The files that describe the repository to others: well formed, and of one mind about versions, names and commands."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINS = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read_yaml(path: Path) -> dict[Any, Any]:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_runs_targets_of_the_makefile_with_pinned_actions(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for line in path.read_text().splitlines():
        if "uses:" in line:  # the version is for people and Dependabot
            assert re.search(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+$", line), line
    for job in read_yaml(path)["jobs"].values():
        targets = [entry["target"] for entry in job.get("strategy", {}).get("matrix", {}).get("include", [])]
        for step in job["steps"]:
            targets += re.findall(r"make ([a-z][\w-]*)", step.get("run", ""))
        for target in targets:
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_workflow_has_the_oldest_python_and_what_has_to_pass() -> None:
    workflow = read_yaml(ROOT / ".github" / "workflows" / "check.yml")
    entries = workflow["jobs"]["check"]["strategy"]["matrix"]["include"]
    assert PROJECT["requires-python"].removeprefix(">=") in {entry["python"] for entry in entries}
    needed = set(re.findall(r"^make ([\w-]+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE))
    assert needed == {"test-all", "docs", "wheel-test"}
    assert {entry["target"] for entry in entries} == {*needed, "test"}


def test_a_release_is_built_from_one_index_and_published_by_a_job_that_does_nothing_else() -> None:
    path = ROOT / ".github" / "workflows" / "release.yml"
    jobs = read_yaml(path)["jobs"]
    assert "INDEX_URL" not in path.read_text()
    writing = [name for name, job in jobs.items() if "permissions" in job]
    assert writing == ["publish"]
    assert jobs["publish"]["needs"] == ["test", "build"]
    steps = [step.get("uses", "").partition("@")[0] for step in jobs["publish"]["steps"]]
    assert steps == ["actions/download-artifact", "pypa/gh-action-pypi-publish"]
    (install,) = (step["run"] for step in jobs["build"]["steps"] if "pip" in step.get("run", ""))
    assert "--require-hashes --requirement .ci/release.txt" in install
    lines = [line for line in (ROOT / ".ci" / "release.txt").read_text().splitlines() if not line.startswith("#")]
    pins = dict(re.fullmatch(r"([\w-]+)==(\S+) --hash=sha256:[0-9a-f]{64}", line).groups() for line in lines)  # type: ignore[union-attr]
    assert pins.keys() >= {"build", "hatchling"}
    assert all(PINS.get(name, version) == version for name, version in pins.items())


def test_every_dependency_is_pinned() -> None:
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *(line for lines in extras.values() for line in lines)]
    names = {re.split(r"[\[><=,]", line)[0] for line in wanted} - {"lmr"}
    assert names <= set(PINS), names - set(PINS)
