"""The one exception of the package: a sentence for the person who can act on it."""

from __future__ import annotations


class LmrError(ValueError):
    """Something a user gave cannot be used; the message says what was expected, what came and what to do."""
