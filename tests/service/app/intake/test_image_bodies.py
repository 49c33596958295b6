"""Bodies of the three kinds, and what is wrong with others."""

from __future__ import annotations

import base64
import json

import pytest

from lmr.images.image_files import UnreadableImage
from lmr.service.app.http_errors import HttpProblem
from lmr.service.app.intake import image_bodies
from lmr.service.app.intake.image_bodies import decode_base64, split_body
from service_maker import make_file

FILES = [make_file("JPEG"), make_file("PNG"), make_file("WEBP")]
FORM = "multipart/form-data; boundary=edge"


def make_form(*parts: tuple[str, bytes], name: bool = True, end: bool = True) -> bytes:
    body = b""
    for field, content in parts:
        file = '; filename="a.jpg"' if name else ""
        body += f'--edge\r\nContent-Disposition: form-data; name="{field}"{file}\r\n\r\n'.encode() + content + b"\r\n"
    return body + (b"--edge--\r\n" if end else b"")


def encode(*files: bytes) -> bytes:
    return json.dumps({"images": [{"b64": base64.b64encode(file).decode()} for file in files]}).encode()


def refuse(kind: str, body: bytes, most: int = 8) -> HttpProblem:
    with pytest.raises(HttpProblem) as caught:
        split_body(kind, body, most)
    assert caught.value.message.endswith(".")
    return caught.value


@pytest.mark.parametrize("kind", ["image/jpeg", "image/png", "image/webp", "IMAGE/JPEG", "image/jpeg; q=1"])
def test_one_file(kind: str) -> None:
    assert split_body(kind, FILES[0], 1) == [FILES[0]]


@pytest.mark.parametrize("name", [True, False])
def test_form_with_several_parts(name: bool) -> None:
    """A part without a file name is bytes too, and nothing of it is taken for text."""
    assert split_body(FORM, make_form(*(("image", file) for file in FILES), name=name), 3) == FILES


def test_json() -> None:
    assert split_body("application/json", encode(*FILES), 3) == FILES


def test_what_is_not_base64_has_its_place() -> None:
    body = json.dumps({"images": [{"b64": "?"}, {"b64": base64.b64encode(FILES[0]).decode()}]}).encode()
    first, second = split_body("application/json", body, 3)
    assert isinstance(first, UnreadableImage)
    assert second == FILES[0]
    assert isinstance(decode_base64("é"), UnreadableImage)


@pytest.mark.parametrize("kind", ["", "image/gif", "text/plain", "application/x-www-form-urlencoded", "nonsense"])
def test_other_types(kind: str) -> None:
    assert refuse(kind, FILES[0]).status == 415


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", make_form(("image", FILES[0]))),
        (FORM, b""),
        (FORM, b"nonsense"),
        (FORM, b"--edge--\r\n"),
        (FORM, make_form(("image", FILES[0]), end=False)),
        (FORM, make_form(("picture", FILES[0]))),
        (FORM, make_form(("image", FILES[0]), ("note", b"x"))),
        ("application/json", b""),
        ("application/json", b"{"),
        ("application/json", b"[]"),
        ("application/json", b'{"images": []}'),
        ("application/json", b'{"images": ["abc"]}'),
        ("application/json", b'{"images": [{"b64": 1}]}'),
        ("application/json", b"[" * 100_000),
    ],
)
def test_malformed(kind: str, body: bytes) -> None:
    assert refuse(kind, body).status == 400


@pytest.mark.parametrize("kind", [FORM, "application/json"])
def test_too_many(kind: str) -> None:
    body = make_form(*[("image", FILES[0])] * 3) if kind == FORM else encode(*[FILES[0]] * 3)
    assert len(split_body(kind, body, most=3)) == 3
    problem = refuse(kind, body, most=2)
    assert problem.status == 413
    assert "more than 2 images" in problem.message


def test_parts_beyond_the_limit_are_not_even_read() -> None:
    """A body may have a million parts of a few bytes."""
    body = make_form(*[("image", FILES[0])] * 3, end=False) + b"--edge\r\nnonsense"
    assert refuse(FORM, body, most=3).status == 400
    assert refuse(FORM, body, most=2).status == 413


def test_images_beyond_the_limit_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_bodies, "decode_base64", lambda text: pytest.fail("decoded"))
    assert refuse("application/json", encode(*[FILES[0]] * 3), most=2).status == 413
