"""The inference protocol with Triton's own client, and by hand where the client would not do it."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from lmr.service.app import inference
from lmr.service.app.inference import find_inference_name
from service_maker import NAMES, ScriptedService, load_pocket, make_file, serve_scripted

INFER = "/v2/models/pocket/infer"
IMAGE = {"name": "image", "datatype": "BYTES", "shape": [1]}


@pytest.fixture(scope="module")
def client(service: ScriptedService) -> Iterator[Any]:
    made = triton.InferenceServerClient(service.server.url.removeprefix("http://"))
    yield made
    made.close()


def make_input(*files: bytes, shape: list[int] | None = None) -> Any:
    made = triton.InferInput("image", shape or [len(files)], "BYTES")
    return made.set_data_from_numpy(np.array(files, dtype=object).reshape(shape or [len(files)]))


def test_client_finds_the_model(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("pocket")
    assert client.is_model_ready("pocket", "1")
    assert not client.is_model_ready("other")
    assert not client.is_model_ready("pocket", "2")
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data", "sequence"]
    described = client.get_model_metadata("pocket")
    assert described["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
    assert described["outputs"][1] == {"name": "probabilities", "datatype": "FP32", "shape": [-1, len(NAMES)]}


def test_images_of_a_sequence_are_a_step_of_its_stream(service: ScriptedService, client: Any) -> None:
    files = [make_file(), make_file("PNG", colour="blue")]
    found = client.infer("pocket", [make_input(*files)], sequence_id="cam-9", request_id="r1")
    assert found.as_numpy("label").tolist() == [b"red ring", b"red ring"]
    assert found.as_numpy("probabilities").dtype == np.float32
    np.testing.assert_allclose(found.as_numpy("probabilities"), [[0.9, 0.1, 0.1]] * 2)
    answer = found.get_response()
    assert (answer["id"], answer["model_name"]) == ("r1", "pocket")
    assert answer["parameters"] == {"sequence_id": "cam-9", "seq": 1, "saved": True}
    (request,) = service.engine.requests
    assert (request.stream, request.mode, request.top) == ("cam-9", "adapt", len(NAMES))
    assert torch.equal(request.images, load_pocket().preprocess(files))


def test_sequences_have_numbers_or_names(service: ScriptedService, client: Any) -> None:
    for sequence in (7, "left", 0):
        client.infer("pocket", [make_input(make_file())], sequence_id=sequence)
    assert [request.stream for request in service.engine.requests] == ["7", "left", "default"]
    with pytest.raises(InferenceServerException, match=r"\[400\] Expected the name of a stream"):
        client.infer("pocket", [make_input(make_file())], sequence_id="no good")


def test_mode_and_key(service: ScriptedService, client: Any) -> None:
    client.infer("pocket", [make_input(make_file())], parameters={"mode": "answer"}, headers={"Idempotency-Key": "k"})
    (request,) = service.engine.requests
    assert (request.mode, request.key) == ("answer", "k")
    with pytest.raises(InferenceServerException, match=r"parameters\.mode"):
        client.infer("pocket", [make_input(make_file())], parameters={"mode": "learn"})


def test_outputs_in_json(client: Any) -> None:
    outputs = [triton.InferRequestedOutput("label", binary_data=False)]
    found = client.infer("pocket", [make_input(make_file())], outputs=outputs)
    assert found.get_response()["outputs"] == [
        {"name": "label", "datatype": "BYTES", "shape": [1], "data": ["red ring"]}
    ]


def test_images_in_json(service: ScriptedService, client: Any) -> None:
    made = triton.InferInput("image", [1], "BYTES")
    made.set_data_from_numpy(np.array([base64.b64encode(make_file())], dtype=object), binary_data=False)
    assert client.infer("pocket", [made]).as_numpy("label").tolist() == [b"red ring"]
    coded = base64.b64encode(make_file()).decode()
    for data in ([coded], [[coded]], [{"b64": coded}]):
        answer = service.client.post(INFER, json={"inputs": [{**IMAGE, "data": data}]})
        assert answer.json()["outputs"][0]["data"] == ["red ring"]
        assert answer.json()["outputs"][1]["data"] == pytest.approx([0.9, 0.1, 0.1])
    assert len({request.digest for request in service.engine.requests}) == 1


def test_unreadable_image_has_no_label(client: Any) -> None:
    found = client.infer("pocket", [make_input(b"no image", make_file())])
    assert found.as_numpy("label").tolist() == [b"", b"red ring"]
    assert found.as_numpy("probabilities")[0].tolist() == [0.0, 0.0, 0.0]
    assert found.get_response()["parameters"]["errors"].startswith("image 0: Cannot read")
    with pytest.raises(InferenceServerException, match=r"\[422\] Cannot read"):
        client.infer("pocket", [make_input(b"no image")])


def test_unknown_output_is_refused_before_anything_adapts(service: ScriptedService, client: Any) -> None:
    with pytest.raises(InferenceServerException, match=r"\[400\] Expected outputs among label, probabilities"):
        client.infer("pocket", [make_input(make_file())], outputs=[triton.InferRequestedOutput("logits")])
    assert not service.engine.requests


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"inputs": []},
        {"inputs": [{**IMAGE, "name": "x", "data": ["a"]}]},
        {"inputs": [{**IMAGE, "datatype": "FP32", "data": [1.0]}]},
        {"inputs": [{**IMAGE, "shape": [2], "data": ["a"]}]},
        {"inputs": [{**IMAGE, "shape": [0], "data": []}]},
        {"inputs": [{**IMAGE, "parameters": {"binary_data_size": 99}}]},
        {"inputs": [{**IMAGE, "parameters": {"binary_data_size": "9"}}]},
        {"inputs": "image"},
    ],
    ids=str,
)
def test_malformed_json(service: ScriptedService, body: dict[str, Any]) -> None:
    answer = service.client.post(INFER, json=body)
    assert answer.status_code == 400
    assert isinstance(answer.json()["error"], str)  # as the protocol has it
    assert not service.engine.requests


@pytest.mark.parametrize(
    ("rest", "length"),
    [
        (b"\x01", None),
        (b"\xff\xff\xff\xff", None),
        (b"\x05\x00\x00\x00abc", None),
        (b"", "x"),
        (b"", "99999"),
        (b"", "9" * 5000),
    ],
    ids=["no length", "far too long", "cut off", "no number", "beyond the end", "thousands of digits"],
)
def test_malformed_bytes(service: ScriptedService, rest: bytes, length: str | None) -> None:
    head = json.dumps({"inputs": [{**IMAGE, "parameters": {"binary_data_size": len(rest)}}]}).encode()
    headers = {"Inference-Header-Content-Length": length or str(len(head))}
    assert service.client.post(INFER, content=head + rest, headers=headers).status_code == 400
    assert not service.engine.requests


MANY = 15_000


@pytest.mark.parametrize(
    ("tensor", "rest"),
    [
        ({"shape": [MANY], "data": [1] * MANY}, b""),
        ({"shape": [MANY], "data": [[[[1] * MANY]]]}, b""),
        ({"shape": [MANY], "parameters": {"binary_data_size": 4 * MANY}}, bytes(4 * MANY)),
    ],
    ids=["JSON", "nested", "bytes"],
)
def test_elements_beyond_the_limit_are_not_looked_at(
    service: ScriptedService, monkeypatch: pytest.MonkeyPatch, tensor: dict[str, Any], rest: bytes
) -> None:
    """Each of them would become an object of its own: gigabytes, from a body of ten million bytes."""
    monkeypatch.setattr(inference, "_decode_element", lambda element: pytest.fail("decoded"))
    head = json.dumps({"inputs": [{**IMAGE, **tensor}]}).encode()
    answer = service.client.post(
        INFER, content=head + rest, headers={"Inference-Header-Content-Length": str(len(head))}
    )
    assert (answer.status_code, answer.json()["code"]) == (413, "too_many_images")


@pytest.mark.parametrize(
    "shape", [[10**4000] * 100, [1] * 1000 + [2], [-1, -1], [0, 1]], ids=["huge", "long", "-", "0"]
)
def test_odd_shapes_cost_nothing_and_are_refused(service: ScriptedService, shape: list[int]) -> None:
    answer = service.client.post(INFER, json={"inputs": [{**IMAGE, "shape": shape, "data": ["a"]}]})
    assert answer.status_code == 400
    assert len(answer.text) < 500


@pytest.mark.parametrize(
    "parameters",
    [{"sequence_id": 10**5000}, {"mode": 10**5000}, {"sequence_id": "x" * 5000}, {"mode": ["x"] * 5000}],
    ids=["number", "number as mode", "name", "mode"],
)
def test_odd_parameters_are_refused_in_a_short_sentence(service: ScriptedService, parameters: dict[str, Any]) -> None:
    sys.set_int_max_str_digits(0)
    try:
        body = json.dumps({"inputs": [{**IMAGE, "data": ["a"]}], "parameters": parameters})
    finally:
        sys.set_int_max_str_digits(sys.int_info.default_max_str_digits)
    answer = service.client.post(INFER, content=body)
    assert answer.status_code == 400
    assert len(answer.text) < 500


@pytest.mark.parametrize(
    "nested",
    [b'{"x": ' * 100_000, b"[" * 2_000_000, b'{"inputs": [' + b"[]," * 1_000_000, b'{"a":{"b":[' + b'"",' * 1_000_000],
)
def test_json_of_very_many_values_is_refused_before_it_is_parsed(
    service: ScriptedService, monkeypatch: pytest.MonkeyPatch, nested: bytes
) -> None:
    monkeypatch.setattr(inference.InferenceRequest, "model_validate_json", lambda content: pytest.fail("parsed"))
    for path, kind in ((INFER, ""), ("/v1/streams/cam/images", "application/json")):
        answer = service.client.post(path, content=nested, headers={"Content-Type": kind})
        assert answer.status_code == 413
        assert "more than 20,000 values" in answer.text


def test_parameters_are_scalars(service: ScriptedService) -> None:
    for value in ([], {}, [1], {"x": 1}):
        body = {"inputs": [{**IMAGE, "data": ["x"], "parameters": {"x": value}}]}
        answer = service.client.post(INFER, json=body)
        assert answer.status_code == 400
        assert "expected texts, numbers, true, false or null" in answer.json()["error"]
    good = [base64.b64encode(make_file()).decode()]
    body = {"inputs": [{**IMAGE, "data": good, "parameters": {"a": "x", "b": 1, "c": 0.5, "d": True, "e": None}}]}
    assert service.client.post(INFER, json=body).status_code == 200


def test_errors_do_not_repeat_what_was_sent(service: ScriptedService) -> None:
    image = {**IMAGE, "data": ["x"]}
    for body in (
        {"inputs": [image], "outputs": [{"name": "x" * 1_000_000}]},
        {"inputs": [{**image, "parameters": {"y" * 1_000_000: []}}]},
        {"inputs": [{**image, "name": "x" * 1_000_000}]},
    ):
        answer = service.client.post(INFER, json=body)
        assert answer.status_code == 400
        assert len(answer.content) < 3000


def test_bodies_are_parsed_one_at_a_time(service: ScriptedService, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, busy, most = inference.InferenceRequest.model_validate_json, list[int](), list[int]()

    def parse(content: bytes) -> inference.InferenceRequest:
        busy.append(1)
        most.append(len(busy))
        time.sleep(0.01)
        busy.pop()
        return plain(content)

    monkeypatch.setattr(inference.InferenceRequest, "model_validate_json", parse)
    body = {"inputs": [{**IMAGE, "data": [base64.b64encode(make_file()).decode()]}]}
    with ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(lambda _: service.client.post(INFER, json=body).status_code, range(8)))
    assert codes == [200] * 8
    assert most == [1] * 8


def test_compressed_requests_are_refused(service: ScriptedService) -> None:
    assert service.client.post(INFER, content=b"", headers={"Content-Encoding": "gzip"}).status_code == 415


def test_token_through_the_client() -> None:
    token = "a-token-of-many-letters"
    with serve_scripted(token=token) as made:
        client = triton.InferenceServerClient(made.server.url.removeprefix("http://"))
        with pytest.raises(InferenceServerException, match=r"\[401\] Expected the service's token"):
            client.infer("pocket", [make_input(make_file())])
        headers = {"Authorization": f"Bearer {token}"}
        assert client.infer("pocket", [make_input(make_file())], headers=headers).as_numpy("label")[0] == b"red ring"
        client.close()


@pytest.mark.parametrize(
    ("model", "name"),
    [("pocket", "pocket"), ("openai/clip-vit-base-patch16", "openai-clip-vit-base-patch16"), ("/", "model")],
)
def test_name_of_the_model_fits_in_a_path(model: str, name: str) -> None:
    assert find_inference_name(model) == name
    assert httpx.URL(f"http://x/v2/models/{name}").path.count("/") == 3
