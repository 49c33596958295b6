"""KeyTable: the keys of requests that are being served, or whose answers are not committed yet."""

from __future__ import annotations

from dataclasses import replace

from lmr.service.engine.step_types import KeyInFlight, KeyReused, StepAnswer, StepRequest
from lmr.service.store.stored_types import KeptAnswer


class KeyTable:
    """What makes a retry safe, together with the answers in the store. Its owner keeps threads apart."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, str], tuple[str, StepAnswer | None]] = {}

    def take(self, request: StepRequest) -> StepAnswer | None:
        """Take the key of a request, or give the answer that is not committed yet; KeyInFlight or KeyReused."""
        if request.key is None:
            return None
        digest, answer = self._taken.setdefault((request.stream, request.key), (request.digest, _NEW))
        check_digest(request, digest)
        if answer is _NEW:
            self._taken[request.stream, request.key] = digest, None
            return None
        if answer is None:
            raise KeyInFlight(f"A request with the key {request.key!r} is being served; wait for its answer.")
        return replace(answer, replayed=True)

    def knows(self, stream: str, key: str) -> bool:
        """Whether a request with this key is being served, or was and is not committed yet."""
        return (stream, key) in self._taken

    def note_answer(self, request: StepRequest, answer: StepAnswer) -> None:
        """Keep an answer that was given before it is committed."""
        if request.key is not None:
            self._taken[request.stream, request.key] = request.digest, answer

    def release(self, stream: str, key: str | None) -> None:
        """The store has the answer, or there is none."""
        if key is not None:
            self._taken.pop((stream, key), None)


def check_digest(request: StepRequest, digest: str) -> None:
    """KeyReused if the key of a request belongs to another one."""
    if request.digest != digest:
        raise KeyReused(f"The key {request.key!r} belongs to a request with another body; use a new key.")


def replay(request: StepRequest, kept: KeptAnswer) -> StepAnswer:
    """The kept answer to a request; KeyReused if it was another one."""
    check_digest(request, kept.digest)
    return StepAnswer.from_json(kept.content)


_NEW = StepAnswer("", 0, False, [], {}, {})
