"""A tab of a browser that notes what it should not do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

WAIT = 60_000  # milliseconds; against hanging alone


@dataclass
class Tab:
    """A page, the addresses it asked for outside of the service, and the errors on its console."""

    page: Any
    foreign: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def wait_text(self, selector: str, text: str) -> None:
        self.page.locator(selector, has_text=text).first.wait_for(timeout=WAIT)

    def wait_texts(self, selector: str, texts: list[str]) -> None:
        """Wait until just these texts are there: the page is drawn some time after a click."""
        from playwright.sync_api import expect

        expect(self.page.locator(selector)).to_have_text(texts, timeout=WAIT)

    def wait_script(self, script: str) -> None:
        """Ask again and again: waiting within the page would need an eval, which its policy forbids."""
        deadline = time.monotonic() + WAIT / 1000
        while not self.page.evaluate(script):
            assert time.monotonic() < deadline, script
            self.page.wait_for_timeout(50)


@contextmanager
def open_tab(browser: Any, url: str, path: str = "/", **options: Any) -> Iterator[Tab]:
    context = browser.new_context(**options)
    tab = Tab(context.new_page())
    tab.page.set_default_timeout(WAIT)
    context.on("request", lambda request: None if request.url.startswith(url) else tab.foreign.append(request.url))
    tab.page.on("console", lambda line: tab.errors.append(line.text) if line.type in ("error", "warning") else None)
    tab.page.on("pageerror", lambda error: tab.errors.append(str(error)))
    try:
        tab.page.goto(url + path)
        yield tab
    finally:
        context.close()
