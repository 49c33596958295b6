"""docs/scale.md: its table is what the command prints, its predictions are present ones, its commands parse."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.scale.__main__ import main, make_parser
from lab.scale.capacity import work_out
from lab.scale.options import ScaleOptions
from lab.scale.report import compare
from lab.scale.simulation import SimulationPlan, SimulationResult
from lmr.cli.parser import parse

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^((?:lmr bench|python -m lab\.scale) .+?)(?:\s+#.*)?$", PAGE, re.MULTILINE)
SCALE = [shlex.split(command)[3:] for command in COMMANDS if command.startswith("python")]


def test_table_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    (screen,) = re.findall(r"```\n(1,000,000 streams.*?)```", PAGE, re.DOTALL)
    assert main(SCALE[0]) == 0
    assert capsys.readouterr().out == screen


@pytest.mark.parametrize("number", [0, 1])
def test_predictions_beside_the_simulations_are_current(number: int) -> None:
    """The simulations take minutes and are not run again here."""
    arguments = [one for one in SCALE if "--simulate" in one][number]
    screen = re.findall(r"```\n(Simulation:.*?)\n```", PAGE, re.DOTALL)[number]
    given = vars(make_parser().parse_args(arguments))
    values: dict[str, Any] = {item.name: given[item.name] for item in fields(ScaleOptions)}
    capacity = work_out(ScaleOptions(**values | {"streams": 100_000}))
    nothing = SimulationResult(**{item.name: 1 for item in fields(SimulationResult)})
    made = compare(capacity, SimulationPlan(), nothing).splitlines()[4:]
    assert f"on {capacity.replicas} replicas" in screen
    assert [read_prediction(line) for line in screen.splitlines()[4:]] == [
        read_prediction(line) if line.split("  ")[0] != "answered" else ("answered", "1,200,000") for line in made
    ]


def read_prediction(line: str) -> tuple[str, str]:
    """The name of a row and what the table says; empty where it says nothing."""
    cells = re.split(r"\s{2,}", line.strip())
    return cells[0], cells[1] if len(cells) == 3 else ""


def test_commands_parse_and_links_exist() -> None:
    assert len(COMMANDS) >= 7
    for arguments in SCALE:
        make_parser().parse_args(arguments)
    for command in COMMANDS:
        if command.startswith("lmr"):
            parse(shlex.split(command)[1:])
    for link in re.findall(r"\]\(([^)#:]+)\)", PAGE):
        assert (ROOT / "docs" / link).exists(), link


def test_cluster_file_is_one() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    made = yaml.safe_load(text)
    assert made["head_node_type"] in made["available_node_types"]
