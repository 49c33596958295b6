"""transformers is silent where we use it, and nothing else is."""

from __future__ import annotations

import logging
import warnings

import pytest

from lmr.models.transformers_library import quiet_transformers


def warn_from(module: str) -> None:
    """A warning as code of this module gives it."""
    exec("import warnings\nwarnings.warn('said by ' + __name__, stacklevel=1)", {"__name__": module})


def test_only_transformers_is_silenced(caplog: pytest.LogCaptureFixture) -> None:
    from transformers.utils import logging as own

    before = own.get_verbosity(), own.is_progress_bar_enabled()
    with warnings.catch_warnings(record=True) as seen, caplog.at_level(logging.DEBUG):
        warnings.simplefilter("always")
        with quiet_transformers():
            assert not own.is_progress_bar_enabled()
            own.get_logger("transformers.somewhere").error("a notice")
            for module in (
                "transformers",
                "transformers.models.clip",
                "sentencepiece",
                "lmr.models.siglip",
                "torch.nn",
            ):
                warn_from(module)
    assert [str(warning.message) for warning in seen] == ["said by lmr.models.siglip", "said by torch.nn"]
    assert caplog.records == []
    assert (own.get_verbosity(), own.is_progress_bar_enabled()) == before
