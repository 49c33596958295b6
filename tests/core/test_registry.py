"""Methods by name: found, configured, refused with the nearest name."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import lmr
from lmr.core import registry
from lmr.core.prediction import State
from lmr.core.registry import expand_methods, find_method_file
from lmr.core.spec import list_arguments
from lmr.core.streams import Streams


@pytest.fixture
def clip() -> lmr.ZeroShot:
    return lmr.ZeroShot(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), torch.eye(4)[:3])


@pytest.fixture
def _probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that is registered for one test."""
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))

    presets = {
        "default": lmr.Preset({}, "nobody"),
        "half": lmr.Preset({"rate": 0.5, "count": 7}, "somebody"),
    }

    @lmr.register("probe", lmr.Card(presets=presets))
    class Probe(lmr.Method):
        """Its only purpose is to be configured."""

        rate: float = 0.1
        count: int = 3
        mode: Literal["fast", "slow"] = "fast"

        def adapt(self, images: Tensor, state: State, streams: Streams) -> lmr.Step:
            return lmr.Step(self.answer(images, state, streams))

        def answer(self, images: Tensor, state: State, streams: Streams) -> Tensor:
            with torch.no_grad():
                return self.classifier.cosines(self.classifier.features(images))


def test_names_are_in_order_and_lead_to_their_classes() -> None:
    names = lmr.list_methods()
    assert names == sorted(names)
    assert {"lmr", "zeroshot"} <= set(names)
    for name in names:
        assert lmr.find_method(name).name == name
        assert issubclass(lmr.find_method(name), lmr.Method)
        assert lmr.find_method(name).__doc__


@pytest.mark.usefixtures("_probe")
def test_new_method_is_there_by_being_decorated(clip: lmr.ZeroShot) -> None:
    assert "probe" in lmr.list_methods()
    method = lmr.create("probe(count=4)", clip)
    assert method.spec == "probe(rate=0.1, count=4, mode='fast')"
    assert list_arguments(type(method)) == ["rate", "count", "mode"]
    assert method.step(torch.randn(2, 4)).logits.shape == (2, 3)


@pytest.mark.usefixtures("_probe")
def test_name_can_be_taken_only_once() -> None:
    with pytest.raises(lmr.LmrError, match="A method 'probe' already exists"):
        lmr.register("probe")(type("Other", (lmr.Method,), {}))


@pytest.mark.parametrize("name", ["my-method", "class"])
def test_name_that_no_spec_can_hold_is_refused(name: str) -> None:
    with pytest.raises(lmr.LmrError, match="Expected a Python name for a method"):
        lmr.register(name)(type("Other", (lmr.Method,), {}))


@pytest.mark.usefixtures("_probe")
@pytest.mark.parametrize(
    ("spec", "preset", "arguments", "expected"),
    [
        ("probe", None, {}, (0.1, 3)),
        ("probe", "half", {}, (0.5, 7)),
        ("probe(preset='half')", None, {}, (0.5, 7)),
        ("probe(rate=0.2, preset='half')", None, {}, (0.2, 7)),
        ("probe(rate=0.2, count=9)", "half", {"rate": 0.3}, (0.3, 9)),
        ("probe(preset='half')", "default", {}, (0.1, 3)),
        ("probe(preset='default', count=9)", "half", {}, (0.5, 9)),
    ],
)
def test_call_wins_over_string_over_preset_over_default(
    spec: str, preset: str | None, arguments: dict[str, Any], expected: tuple[float, int], clip: lmr.ZeroShot
) -> None:
    named = {} if preset is None else {"preset": preset}
    method: Any = lmr.create(spec, clip, **named, **arguments)
    assert (method.rate, method.count) == expected
    assert lmr.create(method.spec, clip).spec == method.spec


def test_every_argument_of_every_method_can_be_given_in_the_call(clip: lmr.ZeroShot) -> None:
    """lmr has an argument called clip: it must not be taken for the classifier."""
    method: Any = lmr.create("lmr", clip, clip=1.5)
    assert method.clip == 1.5
    for name in ("lmr", "zeroshot"):
        method = lmr.create(name, clip)
        values = {key: getattr(method, key) for key in list_arguments(type(method))}
        assert lmr.create(name, clip, **values).spec == method.spec


SENTENCES: list[tuple[str, dict[str, Any], str]] = [
    ("lnr", {}, r"There is no method 'lnr'\. Did you mean 'lmr'\? There are: .*lmr.*zeroshot"),
    ("LMR", {}, "There is no method 'LMR'"),
    ("qqqq", {}, r"There is no method 'qqqq'\. There are: "),
    ("lmr(detla=0.1)", {}, r"lmr has no argument 'detla'\. Did you mean 'delta'\? It has: lr, delta, negatives"),
    ("lmr", {"learning_rate": 1}, "lmr has no argument 'learning_rate'"),
    ("lmr(streams=3)", {}, "lmr has no argument 'streams'"),
    ("lmr(preset='cifar10c')", {}, r"lmr has no preset 'cifar10c'\. Did you mean 'cifar10-c'\? It has: default, cif"),
    ("lmr(lr='x')", {}, "Expected a number for 'lr' of lmr, got 'x'"),
    ("lmr(negatives=0)", {}, "Expected 'negatives' of lmr from 1"),
]


@pytest.mark.parametrize(("spec", "arguments", "words"), SENTENCES, ids=lambda value: str(value)[:30])
def test_wrong_configuration_gets_a_sentence(
    spec: str, arguments: dict[str, Any], words: str, clip: lmr.ZeroShot
) -> None:
    with pytest.raises(lmr.LmrError, match=words):
        lmr.create(spec, clip, **arguments)


# The preset "auto": what a method chooses for the number of classes.


@pytest.fixture
def _choosy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method with other values below five classes."""
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))

    @lmr.register("choosy")
    class Choosy(lmr.Method):
        """Its only purpose is to choose."""

        rate: float = 0.1
        count: int = 3

        @classmethod
        def choose_values(cls, classes: int) -> dict[str, Any]:
            return {"rate": 0.7} if classes < 5 else {}


def make_classes(count: int) -> lmr.ZeroShot:
    return lmr.ZeroShot(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), torch.eye(8)[:count])


@pytest.mark.usefixtures("_choosy")
def test_auto_is_what_the_method_chooses() -> None:
    assert lmr.create("choosy", make_classes(4), preset="auto").spec == "choosy(rate=0.7, count=3)"
    assert lmr.create("choosy(preset='auto', count=2)", make_classes(4)).spec == "choosy(rate=0.7, count=2)"
    assert lmr.create("choosy(preset='auto', rate=0.2)", make_classes(4)).spec == "choosy(rate=0.2, count=3)"
    assert lmr.create("choosy", make_classes(5), preset="auto").spec == "choosy(rate=0.1, count=3)"
    assert lmr.create("zeroshot", make_classes(4), preset="auto").spec == "zeroshot()"


@pytest.mark.usefixtures("_choosy")
def test_auto_is_the_preset_unless_another_is_named() -> None:
    assert lmr.create("choosy", make_classes(4)).spec == "choosy(rate=0.7, count=3)"
    assert lmr.create("choosy(preset='default')", make_classes(4)).spec == "choosy(rate=0.1, count=3)"
    assert lmr.create("choosy", make_classes(4), preset="default").spec == "choosy(rate=0.1, count=3)"


def test_words_for_several_methods() -> None:
    """Methods of files that were loaded, as tests do, are not of the package."""
    paper, everything = expand_methods("paper"), expand_methods("all")
    assert expand_methods("tent(lr=1e-3)") == ["tent(lr=1e-3)"]
    assert paper == [name for name in everything if lmr.find_method(name).card.in_paper]
    assert len(paper) == 9
    assert (everything[0], everything[-2:]) == ("zeroshot", ["lmr_variants", "steady"])
    assert set(everything) == {name for name in lmr.list_methods() if find_method_file(lmr.find_method(name)) is None}


@pytest.mark.usefixtures("own_methods")
def test_file_that_is_edited_within_a_second_is_imported_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python keeps bytecode by the second and the size of a file."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path, values = tmp_path / "own_quick.py", []
    for number in (1, 2):
        path.write_text(
            "import lmr\n\n\n@lmr.register('own_quick')\nclass Own(lmr.find_method('zeroshot')):\n"
            f"    power: int = {number}\n"
        )
        os.utime(path, (1e9, 1e9))
        values.append(lmr.find_method(f"{path}:own_quick").power)  # type: ignore[attr-defined]
    assert values == [1, 2]
