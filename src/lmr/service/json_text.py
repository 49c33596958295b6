"""JsonText: dataclasses that are stored as JSON texts, or read from them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Self

from lmr.core.extras import require

if TYPE_CHECKING:
    import pydantic
    import pydantic_core
else:
    pydantic, pydantic_core = (require(name, "serve", "The service") for name in ("pydantic", "pydantic_core"))


class JsonText:
    """Base class of dataclasses that are stored as a JSON text."""

    def to_json(self) -> str:
        """Return the text."""
        return pydantic_core.to_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the value that a text was made of; ValueError if it is of another form."""
        kind: Any = cls  # mypy does not know that a type of Self has a hash
        found: Self = find_adapter(kind).validate_json(text)
        return found


@cache
def find_adapter(kind: Any) -> pydantic.TypeAdapter[Any]:
    """Return pydantic's adapter of a type."""
    return pydantic.TypeAdapter(kind)
