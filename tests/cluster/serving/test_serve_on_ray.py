"""``lmr serve --ray``: what it refuses before anything is started."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from lmr import LmrError
from lmr.apps.serve_classifier import plan_service
from lmr.cluster.serving import serve_on_ray as module
from lmr.cluster.serving.ray_service import ReplicaCount, import_serve
from lmr.service.service_settings import ServiceSettings

NAMES = "red ring,blue star"


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "needs a --state-dir"),
        ({"state_dir": "here", "partitions": 0}, "at least one partition, got 0"),
        ({"state_dir": "here", "host": "0.0.0.0"}, "needs a --token-file"),
    ],
)
def test_what_cannot_be_served_starts_no_cluster(
    given: dict[str, object], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "connect", None)
    with pytest.raises(LmrError, match=error):
        module.serve_on_ray("local", plan_service(NAMES), replicas=ReplicaCount(), **given)  # type: ignore[arg-type]
    loose = plan_service(NAMES, settings=ServiceSettings(durability="interval"))
    with pytest.raises(LmrError, match="leave --durability out"):
        module.serve_on_ray("local", loose, replicas=ReplicaCount(), state_dir="here")


@pytest.mark.parametrize(("bounds", "words"), [((0,), "got 0"), ((3, 2), "got 3:2"), ((1, None, 0.0), "cores")])
def test_wrong_numbers_of_replicas(bounds: tuple[int, ...], words: str) -> None:
    with pytest.raises(LmrError, match=words):
        ReplicaCount(*bounds)


def test_serve_that_is_not_installed_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'lmr[ray]'")
    monkeypatch.setitem(sys.modules, "ray.serve.experimental", None)
    with pytest.raises(LmrError, match=r"Ray Serve is not complete .* pip install 'lmr\[ray\]'"):
        import_serve()


def test_prompts_of_a_file_go_to_the_replicas(tmp_path: Path) -> None:
    content = {"red ring": ["a red ring."], "blue star": ["a blue star."]}
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps(content))
    assert module._spread(plan_service(NAMES, prompts=path)).wording == content
    assert module._spread(plan_service(NAMES, templates=["a {}."])).wording == ["a {}."]
