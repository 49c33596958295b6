"""Write deploy/requirements.txt: what the container installs, with the hash of each file.

Run it with the Python and on the processor of the container, and with PIP_EXTRA_INDEX_URL set to the index of torch in
the Dockerfile. pip chooses the files and reports their hashes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXTRAS = "serve,postgres,mqtt,video"
HEAD = """\
# What the container installs: wheels for Python 3.11 on Linux x86-64, with their hashes.
# After a change of a version: python .ci/pin_container.py
"""


def main() -> None:
    """Write the file."""
    options = ("--dry-run", "--ignore-installed", "--only-binary", ":all:", "--quiet", "--report", "-")
    command = (sys.executable, "-m", "pip", "install", *options, "--constraint", "constraints.txt", f".[{EXTRAS}]")
    report = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    lines = [
        f"{one['metadata']['name'].lower()}=={one['metadata']['version']}"
        f" --hash=sha256:{one['download_info']['archive_info']['hashes']['sha256']}\n"
        for one in report["install"]
        if "archive_info" in one["download_info"]  # not this package
    ]
    (ROOT / "deploy" / "requirements.txt").write_text(HEAD + "".join(sorted(lines)), encoding="utf-8")


if __name__ == "__main__":
    main()
