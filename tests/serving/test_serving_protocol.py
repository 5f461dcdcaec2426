"""What the clients of the open inference protocol see of a served bundle, on both engines."""

from __future__ import annotations

import json
import struct
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from loads.server import Server, post, serving

from attnport_bundle import Model, Tokenizer, load

pytestmark = pytest.mark.timeout(300)
TEXTS = ["The kettle has just boiled.", "Übung macht den Meister — 練習", "It rained all night, and all day after."]
VECTOR = "sentence_embedding"
OPTIONS = ("--max-request-bytes", "200000", "--max-request-tokens", "600")


@pytest.fixture(scope="module", params=["kserve", "ray"])
def server(request: pytest.FixtureRequest, minilm: Path, small: Path) -> Iterator[Server]:
    # On Ray, gRPC is there where others reach the machine alone.
    host = ("--host", "0.0.0.0") if request.param == "ray" else ()
    with serving(request.param, {"minilm": minilm, "two": small}, *OPTIONS, *host) as running:
        yield running


@pytest.fixture(scope="module")
def model(minilm: Path) -> Iterator[Model]:
    with load(minilm) as opened:
        yield opened


@pytest.fixture
def feeds(minilm: Path, model: Model) -> dict[str, np.ndarray[Any, Any]]:
    return Tokenizer(minilm / "tokenizer.json", model.io).encode(TEXTS)


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[Any]:
    module = getattr(tritonclient, request.param)
    address = f"127.0.0.1:{server.port if request.param == 'http' else server.grpc_port}"
    with module.InferenceServerClient(address) as made:
        made.module = module
        yield made


def tensors(client: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> list[Any]:
    made = []
    for name, array in arrays.items():
        kind = {"O": "BYTES", "i": "INT64" if array.itemsize == 8 else "INT32"}[array.dtype.kind]
        made.append(client.module.InferInput(name, list(array.shape), kind))
        made[-1].set_data_from_numpy(array)
    return made


def texts(values: list[str]) -> dict[str, np.ndarray[Any, Any]]:
    return {"text": np.array([value.encode() for value in values], object)}


def refusal(client: Any, name: str, arrays: dict[str, np.ndarray[Any, Any]], **options: Any) -> str:
    with pytest.raises(tritonclient.utils.InferenceServerException) as caught:
        client.infer(name, tensors(client, arrays), **options)
    return str(caught.value)


def test_the_contract_is_the_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("minilm")
    options = {"as_json": True} if client.module is tritonclient.grpc else {}
    found = client.get_model_metadata("minilm", **options)
    described = {
        side: [(one["name"], one["datatype"], [int(size) for size in one["shape"]]) for one in found[side]]
        for side in ("inputs", "outputs")
    }
    ids = [(name, "INT64", [-1, -1]) for name in ("input_ids", "attention_mask", "token_type_ids")]
    assert described["inputs"] == [*ids, ("text", "BYTES", [-1])]
    assert described["outputs"] == [("last_hidden_state", "FP32", [-1, -1, 384]), (VECTOR, "FP32", [-1, 384])]


def test_tensors_are_answered_as_the_bundle_answers_them(client: Any, feeds: Any, model: Model) -> None:
    wanted = [client.module.InferRequestedOutput(name) for name in (VECTOR, "last_hidden_state")]
    answer, own = client.infer("minilm", tensors(client, feeds), outputs=wanted), model.run(**feeds)
    np.testing.assert_allclose(answer.as_numpy(VECTOR), own[VECTOR], atol=2e-5)
    real = feeds["attention_mask"] > 0
    assert answer.as_numpy("last_hidden_state").shape == own["last_hidden_state"].shape
    np.testing.assert_allclose(answer.as_numpy("last_hidden_state")[real], own["last_hidden_state"][real], atol=2e-4)


def test_texts_are_answered_with_a_vector_each(client: Any, model: Model) -> None:
    answer = client.infer("minilm", tensors(client, texts(TEXTS)))
    np.testing.assert_allclose(answer.as_numpy(VECTOR), model.embed(TEXTS), atol=2e-5)
    assert answer.as_numpy("last_hidden_state") is None


def test_a_classifier_names_its_classes(client: Any, feeds: Any) -> None:
    answer = client.infer("two", tensors(client, feeds))
    assert answer.as_numpy("logits").shape == (3, 5)
    output = answer.get_output("logits")
    by_grpc = client.module is tritonclient.grpc
    said = output.parameters["labels"].string_param if by_grpc else output["parameters"]["labels"]
    assert json.loads(said) == ["bad", "poor", "fair", "good", "best"]


def test_a_classifier_scores_texts_and_pairs_of_texts(client: Any, small: Path) -> None:
    pairs = list(zip(TEXTS, reversed(TEXTS), strict=True))
    given = np.array([[text.encode() for text in pair] for pair in pairs], object)
    with load(small) as model:
        for values, asked in ((texts(TEXTS), TEXTS), ({"text": given}, pairs)):
            answer = client.infer("two", tensors(client, values))
            np.testing.assert_allclose(answer.as_numpy("logits"), model.predict(asked), atol=2e-5)
    assert "expected BYTES [number], or [number, 2]" in refusal(client, "two", {"text": given.reshape(1, -1, 2)})


def test_an_embedder_gives_its_vectors_alone_and_other_outputs_by_their_names(client: Any, feeds: Any) -> None:
    answer = client.infer("minilm", tensors(client, feeds))
    assert answer.as_numpy(VECTOR).shape == (3, 384)
    assert answer.as_numpy("last_hidden_state") is None
    wanted = [client.module.InferRequestedOutput("last_hidden_state")]
    answer = client.infer("minilm", tensors(client, feeds), outputs=wanted)
    assert answer.as_numpy(VECTOR) is None
    assert answer.as_numpy("last_hidden_state").shape == (*feeds["input_ids"].shape, 384)
    message = refusal(client, "minilm", feeds, outputs=[client.module.InferRequestedOutput("nothing")])
    assert "output 'nothing': the model has no such output; expected last_hidden_state, sentence_embedding." in message


def test_more_items_than_a_batch_may_have_are_answered(client: Any, model: Model) -> None:
    many = [f"Number {at}." for at in range(90)]
    answer = client.infer("minilm", tensors(client, texts(many)))
    np.testing.assert_allclose(answer.as_numpy(VECTOR), model.embed(many), atol=2e-5)


def test_wrong_tensors_are_refused_with_the_readers_message(client: Any, feeds: Any) -> None:
    assert "input 'token_type_ids' is missing; expected" in refusal(
        client, "minilm", {name: feeds[name] for name in ("input_ids", "attention_mask")}
    )
    assert "input 'input_ids': got dtype int32; expected int64." in refusal(
        client, "minilm", {name: array.astype("int32") for name, array in feeds.items()}
    )
    assert "expected rank 2" in refusal(client, "minilm", {name: array[0] for name, array in feeds.items()})
    assert "expected 0 to 30521." in refusal(client, "minilm", {**feeds, "input_ids": feeds["input_ids"] + 30522})
    assert "the model has no such input" in refusal(client, "minilm", {**feeds, "more": feeds["input_ids"]})
    assert "expected text alone" in refusal(client, "minilm", {**feeds, **texts(TEXTS)})
    assert "text: got []; expected a list" in refusal(client, "minilm", {"text": np.array([], object)})
    assert "expected BYTES [number]" in refusal(client, "minilm", {"text": np.ones(2, np.int64)})
    wide = {name: np.ones((1, 513), np.int64) for name in feeds}
    assert "got seq=513 on axis 1; expected 1 to 512." in refusal(client, "minilm", wide)


def test_a_text_that_is_not_utf_8_is_refused(client: Any) -> None:
    assert "UTF-8" in refusal(client, "minilm", {"text": np.array([b"\xff\xfe"], object)})


def test_a_request_of_too_many_tokens_is_refused(client: Any) -> None:
    # A text is cut at 256 tokens, as sentence-transformers cuts it.
    assert "got 768 tokens; expected at most 600." in refusal(client, "minilm", texts(["word " * 600] * 3))


def test_a_prompt_is_named_by_a_parameter(client: Any) -> None:
    asked = tensors(client, texts(["A word."]))
    plain = client.infer("minilm", asked).as_numpy("sentence_embedding")
    named = client.infer("minilm", asked, parameters={"prompt": "query"}).as_numpy("sentence_embedding")
    np.testing.assert_array_equal(named, plain)  # MiniLM has no prompts, and every model takes this name
    with pytest.raises(tritonclient.utils.InferenceServerException, match="expected the name of one"):
        client.infer("minilm", asked, parameters={"prompt": "nothing"})


def test_a_request_of_too_many_bytes_is_refused(client: Any) -> None:
    refused = refusal(client, "minilm", texts(["word " * 50_000]))
    assert "Too Large" in refused or "larger than max" in refused or "expected at most 200000" in refused, refused


def test_an_unknown_model_is_not_found(client: Any, feeds: Any) -> None:
    assert "does not exist" in refusal(client, "nothing", feeds)


def test_versions_stand_side_by_side_under_their_names(client: Any, model: Model, small: Path) -> None:
    assert client.is_model_ready("two")
    with load(small) as second:
        own = second.predict(TEXTS)
    answer = client.infer("two", tensors(client, texts(TEXTS))).as_numpy("logits")
    np.testing.assert_allclose(answer, own, atol=2e-5)
    first = client.infer("minilm", tensors(client, texts(TEXTS)), model_version="").as_numpy(VECTOR)
    np.testing.assert_allclose(first, model.embed(TEXTS), atol=2e-5)
    assert "version" in refusal(client, "minilm", texts(TEXTS), model_version="3")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "not of the protocol"),
        (b"[1]", "not of the protocol"),
        ({"inputs": [{"name": "text", "datatype": "BYTES"}]}, "not of the protocol"),
        ({"inputs": [{"name": "input_ids", "datatype": "INT64", "shape": [1, 2], "data": [1, 2, 3]}]}, "has 2"),
        ({"inputs": [{"name": "input_ids", "datatype": "INT64", "shape": [1, 2], "data": [1.5, 2]}]}, "got a number"),
        ({"inputs": [{"name": "input_ids", "datatype": "INT64", "shape": [2, 2], "data": [[1, 2], [3]]}]}, "input_ids"),
        ({"inputs": [{"name": "input_ids", "datatype": "INT64", "shape": [1], "data": [2**70]}]}, "input_ids"),
        ({"inputs": [{"name": "input_ids", "datatype": "BF16", "shape": [1], "data": [1]}]}, "got datatype BF16"),
        ({"inputs": []}, "input 'input_ids' is missing"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_not_of_the_protocol_is_a_bad_request(server: Server, body: Any, message: str) -> None:
    status, answer = post(f"{server.url}/v2/models/minilm/infer", body)
    assert (status, message in answer["error"]) == (400, True), answer


def test_binary_data_that_is_cut_short_is_a_bad_request(server: Server) -> None:
    head = b'{"inputs":[{"name":"input_ids","datatype":"INT64","shape":[1,2],"parameters":{"binary_data_size":16}}]}'
    for data, length in ((struct.pack("<q", 1), len(head)), (b"", len(head)), (b"", "x"), (b"", 5)):
        headers = {"content-type": "application/octet-stream", "Inference-Header-Content-Length": str(length)}
        status, answer = post(f"{server.url}/v2/models/minilm/infer", head + data, headers)
        assert status == 400, answer


def test_a_body_that_is_too_large_is_not_read(server: Server) -> None:
    status, _ = post(f"{server.url}/v2/models/minilm/infer", b" " * 300_000)
    assert status == 413


def test_a_client_unloads_no_model(client: Any) -> None:
    with pytest.raises(tritonclient.utils.InferenceServerException):
        client.unload_model("minilm")
    assert client.is_model_ready("minilm")


def page(port: int) -> str:
    """The page of metrics at a port; "" where there is none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as found:
            return str(found.read().decode())
    except OSError:
        return ""


def test_metrics_count_requests_for_prometheus(server: Server, client: Any) -> None:
    client.infer("minilm", tensors(client, texts(TEXTS)))
    wanted = {server.port: 'request_predict_seconds_count{model_name="minilm"}', server.metrics_port: "ray_serve_"}
    end = time.monotonic() + 30  # Ray collects them every few seconds
    while not any(name in page(port) for port, name in wanted.items()):
        assert time.monotonic() < end
        time.sleep(1)
