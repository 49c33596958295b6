"""Class names that would cost much, mislead a reader, or be taken for something else, are refused."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import lmr
from lmr.apps.model_options import read_labels
from lmr.core.class_names import MOST_CHARACTERS, MOST_IN_ALL, check_class_names

REFUSED = [
    ("", "is empty"),
    (" _\u00a0", "is empty"),
    ("null", "is reserved"),
    ("Unknown", "is reserved"),
    ("cat\0dog", r"control character U\+0000"),
    ("cat\x1b[2Jdog", r"control character U\+001B"),
    ("cat\r\nlmr: serving at http://evil", r"control character U\+000D"),
    ("cat\u2028dog", r"control character U\+2028"),
    ("cat\u202egod", r"control character U\+202E"),
    ("cat\u2066god", r"control character U\+2066"),
    ("cat\udc80", r"control character U\+DC80"),
    ("x" * (MOST_CHARACTERS + 1), "501 characters; shorten it to 500"),
]


@pytest.mark.parametrize(("name", "reason"), REFUSED)
def test_name_is_refused_by_every_way_in(name: str, reason: str, tmp_path: Path) -> None:
    ways = (
        lambda: check_class_names(["ship", name]),
        lambda: read_labels(["ship", name]),
        lambda: lmr.load("photo").classifier(["ship", name]),
    )
    for way in ways:
        with pytest.raises(lmr.LmrError, match=reason) as caught:
            way()
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", ["cat", "unknown animal", "x" * MOST_CHARACTERS, "گربه‌ها", "خط", "👩‍🌾", "a\u200fb"])
def test_names_of_any_script_are_taken(name: str) -> None:
    check_class_names(["ship", name])


def test_characters_are_counted_before_names_are_read(tmp_path: Path) -> None:
    """Reading a name of 10 MB took 17 s and 4 GB."""
    backbone = lmr.load("photo")
    many = [f"{number} {'cat ' * 100}" for number in range(MOST_IN_ALL // 400)]
    (tmp_path / "names.txt").write_text("ship\n" + "cat " * 2_500_000)
    started = time.process_time()
    with pytest.raises(lmr.LmrError, match="9,999,999 characters"):
        read_labels(tmp_path / "names.txt")
    with pytest.raises(lmr.LmrError, match="10,000,000 characters"):
        backbone.classifier(["ship", "cat " * 2_500_000])
    for way in (read_labels, backbone.classifier):
        with pytest.raises(lmr.LmrError, match="2,000,000 characters together"):
            way(many)
    assert time.process_time() - started < 1
