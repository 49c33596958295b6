"""Small tensors gain nothing from threads, and a test run should leave the other core to its neighbour."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")  # also for the programs that tests start
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # programs that tests start need not compile the package each time
os.environ["COLUMNS"] = "120"  # what a test reads must not depend on the width of the terminal it runs in
os.environ["LMR_CACHE"] = tempfile.mkdtemp(prefix="lmr-cache-")  # nothing of a test stays in anybody's home

import hypothesis
import pytest
import torch

import pocket
from lab.load.postgres_server import MISSING, PostgresServer
from lmr.bench.inputs import describe_backbone, is_small_model, load_backbone, load_classifier
from lmr.core import registry
from lmr.models import embedded
from tiny_models import FILES, make_file

hypothesis.settings.register_profile("same", derandomize=True)  # a change is judged by itself, not by chance
hypothesis.settings.load_profile("same")
sys.dont_write_bytecode = False  # the next run need not rewrite the assertions of all tests
torch.set_num_threads(1)
MODELS = {embedded: "photo", pocket: "pocket"}
atexit.register(shutil.rmtree, os.environ["LMR_CACHE"], ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regenerate-golden", action="store_true", help="write tests/golden.json anew, on purpose")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts a database or a browser as slow."""
    for item in items:
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if "postgres" in map(str, values) or {"postgres", "browser"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Thousands of collected tests and all that they import stay to the end: no collection of garbage looks at them."""
    gc.freeze()


@pytest.fixture(scope="module")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For tests of a module that load photo or pocket in this process, whatever it answers."""
    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        for module, name in MODELS.items():
            (folder / name).write_bytes(make_file(name))
            patch.setattr(module, name.upper(), folder / name)
        _forget_models()
        yield
    _forget_models()


def _forget_models() -> None:
    """A bench keeps the model that it used last."""
    for find in (load_backbone, load_classifier, describe_backbone, is_small_model):
        find.cache_clear()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server for all tests of this process; it need not survive a power cut."""
    if MISSING:
        pytest.skip(MISSING)
    server = PostgresServer("fsync=off", "full_page_writes=off")
    yield server
    server.remove()


@pytest.fixture
def real_models(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For a test among them that compares with another process, or needs a good model."""
    for module, name in MODELS.items():
        monkeypatch.setattr(module, name.upper(), FILES[name])
    _forget_models()
    yield
    _forget_models()


@pytest.fixture
def own_methods() -> Iterator[None]:
    """Methods that a test registers are forgotten afterwards, so that other tests do not see them."""
    modules, methods = set(sys.modules), dict(registry._METHODS)
    yield
    registry._METHODS.clear()
    registry._METHODS.update(methods)
    for name in set(sys.modules) - modules:
        if name.startswith("lmr_method_file_"):
            del sys.modules[name]
