from __future__ import annotations

import lmr
from lmr.apps.listing import describe_everything


def test_every_method_preset_and_model_is_listed() -> None:
    text = describe_everything()
    for name in lmr.list_methods():
        method = lmr.find_method(name)
        assert f"\n  {name}(" in text
        assert (method.__doc__ or "").splitlines()[0] in text
        for preset in method.presets:
            assert f"preset {preset}:" in text
    for model, line in lmr.list_models().items():
        assert [model, line] in [row.strip().split(maxsplit=1) for row in text.splitlines()]
    assert "any folder, file or hub name" in text


def test_signatures_are_specs() -> None:
    classifier = lmr.load("pocket").classifier(["red star", "blue ring"])
    text = " ".join(describe_everything().split())
    for name in lmr.list_methods():
        assert lmr.create(name, classifier).spec in text
