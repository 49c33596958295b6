"""The exception of the package: an error message for the person who can act on it."""

from __future__ import annotations


class LmrError(ValueError):
    """An input cannot be used; the message says what was expected, what was found and what to do next.

    Examples:
        >>> import lmr
        >>> lmr.load("VIT-B-16")
        Traceback (most recent call last):
        ...
        lmr.core.errors.LmrError: There is no model 'VIT-B-16'. Did you mean 'ViT-B-16'? ...
    """


class MissingFile(LmrError, FileNotFoundError):
    """A file or folder that is not there."""


class WrongType(LmrError, TypeError):
    """A value of another type than expected."""


def describe_error(error: Exception) -> str:
    """Return an error as text: an LmrError explains itself, any other error is named with its kind."""
    return str(error) if isinstance(error, LmrError) else f"{type(error).__name__}: {error}"
