from __future__ import annotations

import re
from pathlib import Path

import pytest

import lmr
from lmr.apps.listing import describe_everything, describe_method, describe_name
from lmr.core import registry
from lmr.core.registry import sort_methods
from lmr.core.spec import list_arguments
from lmr.models.catalog import DEFAULT_MODEL

MINE = '''
import lmr
from typing import Literal

CARD = lmr.Card(
    source="Doe et al. 2030",
    year=2030,
    presets={"default": lmr.Preset({}, "a guess"), "strong": lmr.Preset({"strength": 2.0}, "another", 7)},
)

@lmr.register("mine_for_the_listing", CARD)
class Mine(lmr.Method):
    """Answers what it likes."""

    strength: float = 0.25  # of the push
    kind: Literal["soft", "hard"] = "soft"  # a long comment
    #                                         that continues
    # not about the field above
    pair: tuple[int, int] = (1, 2)
    """Two numbers."""

    limit: int | None = None
'''


def test_the_list_is_a_short_table_of_methods_and_models() -> None:
    text = describe_everything()
    lines = text.splitlines()
    starts = {line.split()[0]: k for k, line in enumerate(lines) if re.match(r"  \S", line)}
    places = [starts[name] for name in sort_methods(lmr.list_methods())]
    assert places == sorted(places)
    joined = " ".join(text.split())
    for name in lmr.list_methods():
        method = lmr.find_method(name)
        row = lines[starts[name]]
        assert (method.__doc__ or "").split()[0] in row
        assert row.endswith(method.card.source)
    for model, line in lmr.list_models().items():
        assert f"{model} {line}" in joined
    assert joined.count("; the default ") == 1
    assert f"{DEFAULT_MODEL} {lmr.list_models()[DEFAULT_MODEL]}; the default " in joined
    assert "lmr list NAME" in text
    assert len(lines) < 40 + 2 * len(lmr.list_methods())


@pytest.mark.parametrize("name", lmr.list_methods())
def test_one_method_has_its_arguments_and_presets(name: str) -> None:
    method = lmr.find_method(name)
    text = describe_method(method)
    assert text.startswith(f"{method.card.label}: ")
    assert f"Source: {method.card.source}." in text
    rows = [line.split() for line in text.splitlines()]
    for argument in list_arguments(method):
        assert any(row[:1] == [argument] and repr(getattr(method, argument)) in " ".join(row) for row in rows), argument
    for preset, given in method.card.presets.items():
        assert any(row[:2] == [preset, str(given.batch_size)] for row in rows), preset
    classifier = lmr.load().classifier(["cat", "dog"])
    assert lmr.create(name, classifier, preset="default").spec in " ".join(text.split())


def test_a_method_in_a_file_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_METHODS", {name: lmr.find_method(name) for name in lmr.list_methods()})
    (tmp_path / "mine.py").write_text(MINE)
    text = describe_name(f"{tmp_path / 'mine.py'}:mine_for_the_listing")
    assert text.splitlines()[:2] == ["MINE_FOR_THE_LISTING: Answers what it likes.", "Source: Doe et al. 2030."]
    rows = [" ".join(line.split()) for line in text.splitlines()]
    for row in (
        "strength 0.25 float of the push",
        "kind 'soft' 'soft' or 'hard' a long comment",
        "pair (1, 2) tuple[int, int] Two numbers.",
        "limit None int | None",
        "strong 7 strength=2.0 another",
    ):
        assert row in rows
    assert "mine_for_the_listing" in describe_everything()  # from then on it is one of them


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(lmr.LmrError, match=r"no method 'tnt'\. Did you mean 'tent'"):
        describe_name("tnt")
    with pytest.raises(lmr.LmrError, match="'photo' is a model, not a method; 'lmr doctor photo' describes it"):
        describe_name("photo")
    with pytest.raises(lmr.LmrError, match="Cannot read the method file"):
        describe_name("nowhere.py:mine")
