"""One connection to a service: requests that are tried again where that is safe, and errors with clear messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from lmr.core.errors import LmrError
from lmr.service.client.client_errors import (
    ServiceBusy,
    ServiceError,
    ServiceUnreachable,
    StreamNotFound,
    TokenRefused,
)
from lmr.service.client.retry_rule import PASSING, RetryRule, read_retry_after
from lmr.service.network import is_loopback
from lmr.version import __version__

try:
    import httpx
except ImportError as error:
    raise LmrError("The client of the service needs httpx; install it with: pip install 'lmr[serve]'") from error

CONNECT_SECONDS = 5.0
NOT_POSSIBLE = "cannot_do"  # an action that makes no sense now, such as a rollback without a snapshot
MOVED = "stream_moved"  # the stream is served by another replica; nothing was done


class Connection:
    """Sends requests to one address; safe to use from several threads."""

    def __init__(self, url: str, token: str | None, timeout: float, rule: RetryRule) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise LmrError(f"Expected the address of a service, such as http://127.0.0.1:8080, got {url!r}.")
        token = None if token is None else token.strip()
        if token is not None and (not token or not token.isascii() or not token.isprintable()):
            raise LmrError("Expected a token of printable ASCII characters; is its file empty, or not a text file?")
        self.url, self.rule = url.rstrip("/"), rule
        headers = {"User-Agent": f"lmr/{__version__}"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        # A proxy of the environment is never asked for this machine.
        self._http = httpx.Client(
            base_url=self.url,
            headers=headers,
            timeout=httpx.Timeout(timeout, connect=CONNECT_SECONDS),
            trust_env=not is_loopback(parts.hostname),
        )

    def close(self) -> None:
        """Close the sockets."""
        self._http.close()

    def send(
        self,
        method: str,
        path: str,
        *,
        repeatable: bool = True,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        content: bytes | None = None,
        json: Any = None,
    ) -> httpx.Response:
        """The response to one request, whatever it took; raises a kind of ServiceError.

        A request that is not ``repeatable`` is tried again only where the service cannot have seen or done it.
        """
        request = self._http.build_request(method, path, headers=headers, params=params, content=content, json=json)
        began, attempt, unsure = self.rule.clock(), 0, False
        while True:
            asked, again = None, True
            try:
                response = self._http.send(request)
            except httpx.TransportError as error:
                problem: ServiceError = self._describe_break(error)
                unseen = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
                again, unsure = repeatable or unseen, unsure or not unseen
                problem.__cause__ = error
            else:
                # An attempt whose answer was lost has deleted it.
                gone = unsure and method == "DELETE" and response.status_code == 404
                if response.is_success or gone:
                    return response
                problem = self._describe_refusal(response)
                asked = read_retry_after(response.headers.get("Retry-After"))
                undone = response.status_code in (429, 503) or problem.code == MOVED
                again = isinstance(problem, ServiceBusy) and (repeatable or undone)
            if not (again and self.rule.wait(attempt, began, str(problem), asked)):
                raise problem
            attempt += 1

    def ask_readiness(self) -> str:
        """The word of the readiness probe, asked once; "unreachable" if there is no such service."""
        try:
            return str(self._http.get("/readyz", timeout=CONNECT_SECONDS).json()["status"])
        except (httpx.TransportError, ValueError, KeyError, TypeError):
            return "unreachable"

    def read_json(self, response: httpx.Response) -> Any:
        """The body of a response; a ServiceError if it is not JSON, as when something else listens there."""
        try:
            return response.json()
        except ValueError as error:
            raise self.describe_nonsense(error) from error

    def describe_nonsense(self, error: Exception) -> ServiceError:
        """The error for a body that this client does not understand."""
        return ServiceError(
            f"{self.url} did not answer as this version of lmr expects ({type(error).__name__}: {error}): check that "
            "the address is that of 'lmr serve', of the same version."
        )

    def _describe_break(self, error: httpx.TransportError) -> ServiceError:
        reason = str(error) or type(error).__name__
        if isinstance(error, httpx.ReadTimeout):
            return ServiceUnreachable(
                f"The service at {self.url} did not answer in time ({reason}): give the client a longer timeout, or "
                "look at its queue on its page."
            )
        return ServiceUnreachable(
            f"Cannot reach the service at {self.url} ({reason}): check the address, or start it with 'lmr serve'."
        )

    def _describe_refusal(self, response: httpx.Response) -> ServiceError:
        status, (code, words) = response.status_code, _read_reason(response)
        if status == 401:
            return TokenRefused(f"The service at {self.url} refused the token: {words}", status, code)
        if status == 404:
            return StreamNotFound(words, status, code)
        broken = status == 500 and not code  # from a proxy, whose replica has died; the service gives a code
        if (status in PASSING and code != NOT_POSSIBLE) or broken:
            return ServiceBusy(f"The service at {self.url} refused for now ({status}): {words}", status, code)
        return ServiceError(f"The service at {self.url} refused the request ({status}): {words}", status, code)


def _read_reason(response: httpx.Response) -> tuple[str, str]:
    """The word and the sentence in the body of a refusal; a proxy in between may send anything."""
    try:
        reason = response.json()["error"]
        return str(reason["code"]), str(reason["message"])
    except (ValueError, KeyError, TypeError):
        return "", f"{response.reason_phrase or 'no reason was given'}."
