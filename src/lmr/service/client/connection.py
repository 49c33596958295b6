"""One connection to a service: requests that are retried where that is safe, and errors with clear messages."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit

from lmr.core.errors import LmrError
from lmr.core.extras import require
from lmr.core.foreign_text import hide_password
from lmr.service.client.errors import ServiceBusy, ServiceError
from lmr.service.json_text import find_adapter
from lmr.service.network import is_loopback
from lmr.version import __version__

if TYPE_CHECKING:
    import httpx
    import pydantic
else:
    httpx, pydantic = (require(name, "serve", "The client of the service") for name in ("httpx", "pydantic"))

CONNECT_SECONDS = 5.0
FIRST, LONGEST = 0.2, 10.0  # seconds before the second attempt; seconds at most
# Refused for now. 409: an earlier attempt whose connection broke is still computed; its answer is kept under the key.
PASSING = frozenset({409, 429, 502, 503, 504})
NOT_POSSIBLE = "cannot_do"  # an action that makes no sense now, such as a rollback without a snapshot
MOVED = "stream_moved"  # the stream is served by another replica; nothing was done
Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class RetryRule:
    """Exponential backoff with jitter over ``patience`` seconds; the other fields are replaced in tests."""

    patience: float = 60.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    draw: Callable[[], float] = random.random
    on_wait: Callable[[str], object] = lambda message: None

    def wait(self, attempt: int, began: float, reason: str, requested: float | None = None) -> bool:
        """Wait after the failed attempt of this number (from 0); False, without waiting, if patience would end.

        ``on_wait`` gets the ``reason`` from the second time on: a single refusal is usual. ``requested`` are the
        seconds that the service asks the client to wait. Half of a waiting time is random, so that many clients that
        were refused together do not come back together.
        """
        delay = min(LONGEST, FIRST * 2.0 ** min(attempt, 16)) * (0.5 + 0.5 * self.draw())
        if requested is not None and requested > delay:
            delay = requested + FIRST * self.draw()
        if self.clock() - began + delay > self.patience:
            return False
        if attempt:
            self.on_wait(f"{reason} Trying again in {delay:.1f} s.")
        self.sleep(delay)
        return True


class Connection:
    """Sends requests to one address; safe to use from several threads."""

    def __init__(self, url: str, token: str | None, timeout: float, rule: RetryRule) -> None:
        parts = urlsplit(url)
        shown = hide_password(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise LmrError(f"Expected the address of a service, such as http://127.0.0.1:8080, got {shown!r}.")
        token = None if token is None else token.strip()
        if token is not None and (not token or not token.isascii() or not token.isprintable()):
            raise LmrError("Expected a token of printable ASCII characters; is its file empty, or not a text file?")
        self.url, self.rule = shown.rstrip("/"), rule  # for messages
        headers = {"User-Agent": f"lmr/{__version__}"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        local = is_loopback(parts.hostname)
        self._http = httpx.Client(
            base_url=url.rstrip("/"),
            headers=headers,
            timeout=httpx.Timeout(timeout, connect=CONNECT_SECONDS),
            trust_env=not local,  # a proxy of the environment is not used for this machine
            verify=not local or parts.scheme == "https",  # to read all certificates takes longer than a request
        )

    def close(self) -> None:
        """Close the sockets."""
        self._http.close()

    def send(self, method: str, path: str, *, repeatable: bool = True, **parts: Any) -> httpx.Response:
        """Return the response to one request, after as many attempts as it takes; raise a kind of ServiceError.

        A request that is not ``repeatable`` is tried again only where the service cannot have seen or done it.
        ``parts`` are those of an httpx request: headers, params, content, json.
        """
        request = self._http.build_request(method, path, **parts)
        began, attempt = self.rule.clock(), 0
        while True:
            requested, again = None, True
            try:
                response = self._http.send(request)
            except httpx.TransportError as error:
                problem: ServiceError = self._describe_break(error)
                unseen = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
                again = repeatable or unseen
                problem.__cause__ = error
            else:
                if response.is_success:
                    return response
                problem = self._describe_refusal(response)
                requested = read_retry_after(response.headers.get("Retry-After"))
                undone = response.status_code in (429, 503) or problem.code == MOVED
                again = isinstance(problem, ServiceBusy) and (repeatable or undone)
            if not (again and self.rule.wait(attempt, began, str(problem), requested)):
                raise problem
            attempt += 1

    def read_status(self) -> str:
        """Return the status of the readiness probe, after one attempt; "unreachable" if there is no such service."""
        try:
            return str(self._http.get("/readyz", timeout=CONNECT_SECONDS).json()["status"])
        except (httpx.TransportError, ValueError, KeyError, TypeError):
            return "unreachable"

    def parse(self, response: httpx.Response, kind: type[Parsed]) -> Parsed:
        """Return the JSON of a response as ``kind``; a ServiceError if another program listens at the address."""
        try:
            parsed: Parsed = find_adapter(cast("Any", kind)).validate_json(response.content)
            return parsed
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "the body"
            raise ServiceError(
                f"{self.url} did not answer as this version of lmr expects ({first['msg']}, at {where}): check that "
                "the address is that of 'lmr serve', of the same version."
            ) from error

    def _describe_break(self, error: httpx.TransportError) -> ServiceError:
        reason = str(error) or type(error).__name__
        if isinstance(error, httpx.ReadTimeout):
            return ServiceError(
                f"The service at {self.url} did not answer in time ({reason}): give the client a longer timeout, or "
                "check the queue on its page."
            )
        return ServiceError(
            f"Cannot reach the service at {self.url} ({reason}): check the address, or start it with 'lmr serve'."
        )

    def _describe_refusal(self, response: httpx.Response) -> ServiceError:
        status = response.status_code
        try:
            reason = response.json()["error"]
            code, message = str(reason["code"]), str(reason["message"])
        except (ValueError, KeyError, TypeError):  # a proxy in between may send anything
            code, message = "", f"{response.reason_phrase or 'no reason was given'}."
        if status == 401:
            return ServiceError(f"The service at {self.url} refused the token: {message}", status, code)
        if status == 404:
            return ServiceError(message, status, code)
        broken = status == 500 and not code  # from a proxy, whose replica has died; the service gives a code
        if (status in PASSING and code != NOT_POSSIBLE) or broken:
            return ServiceBusy(f"The service at {self.url} refused for now ({status}): {message}", status, code)
        return ServiceError(f"The service at {self.url} refused the request ({status}): {message}", status, code)


def read_retry_after(value: str | None) -> float | None:
    """Return the seconds in a Retry-After header; None where it is missing or a date, which the service never sends."""
    try:
        seconds = float(value or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
