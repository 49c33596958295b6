"""Bodies in JSON: what is wrong is said once, however often it is."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from lmr.service.app.http_errors import HttpProblem
from lmr.service.app.inference.inference_tensors import InferenceRequest
from lmr.service.app.intake.image_bodies import ImagesBody
from lmr.service.app.intake.json_bodies import read_json_body
from lmr.service.app.routes.stream_routes import LabelsBody

TENSOR = '{"name": "image", "datatype": "BYTES", "shape": [ITEMS]}'


@pytest.mark.parametrize(
    ("kind", "body", "item"),
    [
        (ImagesBody, '{"images": [ITEMS]}', "{}"),
        (ImagesBody, '{"images": [ITEMS]}', "1"),
        (LabelsBody, '{"seq": 1, "labels": [ITEMS]}', "1"),
        (InferenceRequest, '{"inputs": [ITEMS]}', "{}"),
        (InferenceRequest, '{"inputs": [ITEMS]}', '{"name": "image"}'),
        (InferenceRequest, f'{{"inputs": [{TENSOR}]}}', '"x"'),
        (InferenceRequest, '{"inputs": [], "outputs": [ITEMS]}', "{}"),
    ],
    ids=["no b64", "no image", "no label", "no input", "a part of an input", "no number", "no output"],
)
def test_wrong_items_are_not_collected(kind: type[BaseModel], body: str, item: str) -> None:
    """Three errors for each of three million items took eleven gigabytes and a minute and a half."""
    content = body.replace("ITEMS", ", ".join([item] * 500)).encode()
    with pytest.raises(ValidationError) as caught:
        kind.model_validate_json(content)
    assert caught.value.error_count() <= 3  # those of one item
    with pytest.raises(HttpProblem, match=r"Expected a body, but .*\.0.* is wrong: ") as refused:
        read_json_body(kind, content, "a body")
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ImagesBody, b'{"images": [' + b", ".join([b'{"b64": ""}'] * 100_001) + b"]}"),
        (InferenceRequest, b'{"inputs": [' + b", ".join([TENSOR.replace("ITEMS", "1").encode()] * 101) + b"]}"),
    ],
    ids=["images", "inputs"],
)
def test_lists_are_bounded(kind: type[BaseModel], body: bytes) -> None:
    with pytest.raises(HttpProblem, match="List should have at most"):
        read_json_body(kind, body, "a body")
