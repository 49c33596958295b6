"""Bodies in JSON, checked.

A list in a body has the annotation FailFast: otherwise each of its items may be an error of its own, and a body of ten
million bytes takes gigabytes and minutes to refuse.
"""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from lmr.service.app.http_errors import HttpProblem

MOST_ITEMS = 100_000  # of a list in a body, whatever the settings allow
Body = TypeVar("Body", bound=BaseModel)


def read_json_body(kind: type[Body], content: bytes, expected: str) -> Body:
    """The body as ``kind``, or 400 with what was ``expected`` in words and the first place that is wrong."""
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        words = f"Expected {expected}, but {where} is wrong: {first['msg']}."
        raise HttpProblem(400, "malformed", words) from error
