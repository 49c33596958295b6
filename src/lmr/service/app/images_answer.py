"""The answer to a request with images, as JSON."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from lmr.service.engine.step_types import StepAnswer

_DIGITS = 6  # of a probability; more are not exact in float32
ERRORS_NOTE, COUNT_NOTE = "errors", "count"  # what a request notes, to be kept with its answer
NOT_FINITE = "The model gave no finite answer to this image."


class AnsweredImage(BaseModel):
    """One image: its label, or why it has none."""

    label: str | None = Field(None, description="The most probable class.")
    probability: float | None = None
    top: list[tuple[str, float]] | None = Field(None, description="The best classes with their probabilities.")
    error: str | None = Field(None, description="Instead of the others: why the image cannot be read.")


class ImagesAnswer(BaseModel):
    """The answer to a request, image by image in their order."""

    stream: str
    seq: int = Field(description="Counts the requests of the stream that may adapt.")
    saved: bool = Field(description="Whether the stream's state is on the disk.")
    answers: list[AnsweredImage]
    adaptation: dict[str, Any] = Field(description="What the request did to the stream, and the stream's health.")
    timing: dict[str, float] = Field(description="Milliseconds, and the batch that the request was part of.")
    model: str
    spec: str = Field(description="The method with all its values.")


def note_images(count: int, errors: dict[int, str]) -> dict[str, Any]:
    """What a request notes of its images, for ``place_answers``."""
    return {COUNT_NOTE: count, ERRORS_NOTE: {str(place): words for place, words in errors.items()}}


def place_answers(answer: StepAnswer) -> list[list[tuple[str, float]] | str]:
    """For every image of the request, in its place, its best classes, or why it has none."""
    errors: dict[str, str] = answer.note[ERRORS_NOTE]
    served = iter(answer.top)
    return [
        errors[str(place)] if str(place) in errors else next(served) or NOT_FINITE
        for place in range(answer.note[COUNT_NOTE])
    ]


def describe_answer(answer: StepAnswer, model: str, spec: str) -> dict[str, Any]:
    """The body of the answer."""
    return {
        "stream": answer.stream,
        "seq": answer.seq,
        "saved": answer.saved,
        "answers": [_describe_image(found) for found in place_answers(answer)],
        "adaptation": answer.adaptation,
        "timing": {key: round(value, 3) for key, value in answer.timing.items()},
        "model": model,
        "spec": spec,
    }


def _describe_image(found: list[tuple[str, float]] | str) -> dict[str, Any]:
    if isinstance(found, str):
        return {"error": found}
    top = [(label, round(share, _DIGITS)) for label, share in found]
    return {"label": top[0][0], "probability": top[0][1], "top": top}
