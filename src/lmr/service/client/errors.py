"""Errors of the client, each a kind of LmrError."""

from __future__ import annotations

from lmr.core.errors import LmrError


class ServiceError(LmrError):
    """The service could not be reached, or refused a request.

    ``status`` is the HTTP status, if there was one, and ``code`` the code of the reason, such as "queue_full".

    Examples:
        >>> import lmr
        >>> client = lmr.Client("http://127.0.0.1:9", patience=0)
        >>> try:
        ...     client.model()
        ... except lmr.ServiceError as error:
        ...     print(error)
        Cannot reach the service at http://127.0.0.1:9 (...): check the address, or start it with 'lmr serve'.
    """

    def __init__(self, message: str, status: int | None = None, code: str = "") -> None:
        super().__init__(message)
        self.status, self.code = status, code


class ServiceBusy(ServiceError):
    """The service refused for now (429, 503, 504) for as long as the client was patient; nothing was adapted."""
