"""Build the package, check what is in it, install it into an empty environment and run it there: `make wheel-test`."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def run(*words: str | Path, cwd: Path = ROOT, **options: str) -> str:
    """Return what a command prints on standard output; raise SystemExit if it fails."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(list(map(str, words)), cwd=cwd, env=environment | options, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))} ended with {done.returncode}\n{done.stdout}")
    return done.stdout


def build(kind: str, source: Path, folder: Path) -> Path:
    """Build a wheel or an sdist from a tree and return its path."""
    run(sys.executable, "-m", "build", f"--{kind}", "--outdir", folder, source)
    (built,) = folder.iterdir()
    return built


def read_wheel(path: Path) -> dict[str, bytes]:
    """Return the files of a wheel, without the list of their digests."""
    with zipfile.ZipFile(path) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/RECORD")}


def list_package() -> set[str]:
    """Return every file of the package that git does not ignore, by its name in a wheel."""
    paths = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "src/lmr").splitlines()
    return {path.removeprefix("src/") for path in paths}


def check_contents(files: dict[str, bytes]) -> None:
    """Check that the wheel has the whole package, and nothing else."""
    inside = {name for name in files if ".dist-info/" not in name}
    if missing := list_package() - inside:
        raise SystemExit(f"The wheel lacks {sorted(missing)}.")
    if foreign := inside - list_package():
        raise SystemExit(f"The wheel has files that do not belong to the package: {sorted(foreign)}.")


def main() -> None:
    """Build, compare, install, run."""
    with tempfile.TemporaryDirectory(prefix="lmr-wheel-") as name:
        folder = Path(name)
        print("Building the wheel and the sdist ...", flush=True)
        wheel = build("wheel", ROOT, folder / "wheel")
        files = read_wheel(wheel)
        check_contents(files)
        with tarfile.open(build("sdist", ROOT, folder / "sdist")) as sdist:
            sdist.extractall(folder / "unpacked", filter="data")
        (source,) = (folder / "unpacked").iterdir()
        if (source / "results").exists():
            raise SystemExit("The sdist has the published results, which are for the repository alone.")
        if read_wheel(build("wheel", source, folder / "again")) != files:
            raise SystemExit("The sdist builds another wheel than the tree.")

        print("Installing the wheel without extras into an empty environment ...", flush=True)
        venv.create(folder / "venv", with_pip=True)
        python, lmr = folder / "venv/bin/python", folder / "venv/bin/lmr"
        install = ("install", "-qq", "--disable-pip-version-check", "--constraint", ROOT / "constraints.txt")
        run(python, "-m", "pip", *install, wheel)

        home = folder / "elsewhere"  # not the tree, so that only what was installed can be imported
        home.mkdir()
        print("Running lmr doctor ...", flush=True)
        if "SELF-CHECK" not in run(lmr, "doctor", cwd=home, LMR_CACHE=str(home / "cache")):
            raise SystemExit("lmr doctor did not check the model.")
        print("Adding lmr[bench] and running lmr demo ...", flush=True)
        run(python, "-m", "pip", *install, f"{wheel}[bench]")
        run(lmr, "demo", "--images", "100", "--out", "demo", cwd=home, LMR_CACHE=str(home / "cache"))
        if not list((home / "demo").glob("*.png")):
            raise SystemExit("lmr demo drew no figure.")
    print(f"{wheel.name}: {len(files)} files, {sum(map(len, files.values())) / 1e6:.1f} MB; it installs and runs.")


if __name__ == "__main__":
    main()
