from __future__ import annotations

import json
from pathlib import Path

import pytest

import lmr
from lmr.bench.plans.prompts import PromptSet, read_prompt_set


def test_prompt_files(tmp_path: Path) -> None:
    (tmp_path / "cupl.json").write_text(json.dumps({"tench": ["A tench is a fish."], "goldfish": ["It is orange."]}))
    found = read_prompt_set("cupl.json", tmp_path)
    assert found.name == "cupl.json"
    facts = found.describe(["Goldfish", "tench"])
    assert facts["count"] == 2
    (tmp_path / "templates.json").write_text('["a {}.", "the {}."]')
    several = read_prompt_set("templates.json", tmp_path)
    assert several == PromptSet("templates.json", ("a {}.", "the {}."))
    assert several.write(["red_star", "ring"]) == [["a red star.", "the red star."], ["a ring.", "the ring."]]
    for broken in ("{", "[" * 100_000, f"[{'1' * 10_001}]"):
        (tmp_path / "broken.json").write_text(broken)
        with pytest.raises(lmr.LmrError, match="Cannot read"):
            read_prompt_set("broken.json", tmp_path)
    with pytest.raises(lmr.LmrError, match="imagenet_prompts/CuPL_image_prompts"):
        read_prompt_set("cupl.json", tmp_path / "elsewhere")


def test_lists_of_as_many_templates_have_names_of_their_own(tmp_path: Path) -> None:
    lists = [["a {}.", "the {}."], ["a {}.", "some {}."]]
    names = [read_prompt_set(entry, tmp_path).name for entry in lists]
    assert all(name.startswith("2 templates ") for name in names)
    assert names[0] != names[1]
