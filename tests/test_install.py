"""The package as a user has it: imported beside a clone, and with its core dependencies alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lmr.cli import EXTRAS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
# Modules whose names differ from those of their packages.
MODULES = {
    "opencv-python-headless": "cv2",
    "python-multipart": "multipart",
    "prometheus-client": "prometheus_client",
    "protobuf": "google",
    "imagecorruptions-imaug": "imagecorruptions",
}
# Hides the modules of all extras but those that come with torch, and runs commands in one process.
PROGRAM = """
import contextlib, io, json, sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

hidden, commands = json.loads(sys.argv[1])
sys.meta_path.insert(0, Hide())
import lmr
import torch
backbone = lmr.load("photo")
method = lmr.create("lmr", backbone.classifier(["cat", "dog"]))
prediction = method.step(torch.randn(4, *backbone.input_shape))
assert prediction.labels.shape == (4,)
from lmr.cli import main
results = []
for command in commands:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(command)
    results.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(results))
"""


def run(program: str, *words: str, cwd: Path, **options: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LMR_CACHE": str(cwd / "cache")} | options
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_beside_a_clone_finds_the_installed_package(tmp_path: Path) -> None:
    """A folder that is called lmr, as a clone is, must not be taken for the package."""
    (tmp_path / "lmr" / "src").mkdir(parents=True)
    found = run("import lmr; print(lmr.__file__); lmr.load", cwd=tmp_path, PYTHONPATH=str(ROOT / "src"))
    assert Path(found.strip()) == ROOT / "src" / "lmr" / "__init__.py"


def test_package_needs_its_core_dependencies_alone(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    from PIL import Image

    Image.new("RGB", (40, 30), "red").save(tmp_path / "photos" / "a.png")
    needs = {
        ("serve", "--labels", "cat,dog", "--model", "photo"): "serve",
        ("camera", "photos", "--to", "http://127.0.0.1:9", "--stream", "a"): "serve",
        ("predict", "photos", "--labels", "cat,dog", "--model", "photo", "--stream-by", "folder", "--ray",
         "--out", "o"): "ray",
        ("demo", "--images", "4", "--out", "demo"): "bench",
    }  # fmt: skip
    works = [
        ("list",),
        ("doctor", "photo"),
        ("predict", "photos", "--labels", "cat,dog", "--model", "photo"),
    ]
    hidden = [module for modules in EXTRAS.values() for module in modules]
    told = run(PROGRAM, json.dumps([hidden, [*works, *needs]]), cwd=tmp_path, PYTHONPATH=str(ROOT / "src"))
    results = json.loads(told)
    for command, (code, _, err) in zip(works, results, strict=False):
        assert code == 0, (command, err)
    for (command, extra), (code, _, err) in zip(needs.items(), results[len(works) :], strict=True):
        assert code == 2, (command, err)
        assert err.count("\n") == 1
        assert f"pip install 'lmr[{extra}]'" in err, command


@pytest.mark.parametrize("extra", EXTRAS)
def test_names_of_extras_are_those_of_the_project(extra: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    packages = [re.split(r"[\[><=]", line)[0] for line in project["optional-dependencies"][extra]]
    assert sorted(MODULES.get(name, name) for name in packages) == sorted(EXTRAS[extra])
