"""The commands and the cluster file of docs/scale.md can be used as they are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import yaml

from lmr.cli.parser import parse

PAGE = (Path(__file__).parent.parent / "docs" / "scale.md").read_text(encoding="utf-8")


def test_commands_parse() -> None:
    commands = re.findall(r"^(lmr .+?)(?:\s+#.*)?$", PAGE, re.MULTILINE)
    assert len(commands) >= 5
    for command in commands:
        parse(shlex.split(command)[1:])


def test_cluster_file_is_one() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    made = yaml.safe_load(text)
    assert made["head_node_type"] in made["available_node_types"]
