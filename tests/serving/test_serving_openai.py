"""What clients of OpenAI's protocol see of served bundles: vectors, scores, texts that grow, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import talker
from fastapi import FastAPI
from loads.server import Server, post, serving
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from attnport_bundle import Model, Tokenizer, load
from attnport_bundle.errors import BundleError, FeedError
from attnport_bundle.serve import Options
from attnport_bundle.serve.bundles import DataPlane, Failed, ModelRepository, Served, answer_errors
from attnport_bundle.serve.openai import Template, add_routes

pytestmark = pytest.mark.timeout(600)
TEXTS = ["The kettle has just boiled.", "Übung macht den Meister — 練習", "It rained all night, and all day after."]
PROMPT = "ba ke di"
MESSAGES = [{"role": "system", "content": "ba be"}, {"role": "user", "content": " ko ku la "}]
LIMITS = ("--max-request-bytes", "400000", "--max-request-tokens", "600", "--max-new-tokens", "400")


@pytest.fixture(scope="module")
def server(minilm: Path, small: Path, pairs: Path, speaker: Path) -> Iterator[Server]:
    models = {"minilm": minilm, "classes": small, "pairs": pairs, "speaker": speaker}
    with serving("kserve", models, *LIMITS) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def model(minilm: Path) -> Iterator[Model]:
    with load(minilm) as opened:
        yield opened


@pytest.fixture(scope="module")
def decoder(speaker: Path) -> Iterator[Model]:
    with load(speaker) as opened:
        yield opened


def ask(server: Server, path: str, **body: Any) -> Any:
    """The answer to a request that is right."""
    status, answer = post(f"{server.url}/v1/{path}", body)
    assert status == 200, answer
    return answer


def test_models_are_listed_by_the_names_that_they_are_served_under(client: openai.OpenAI) -> None:
    assert [each.id for each in client.models.list()] == ["minilm", "classes", "pairs", "speaker"]
    assert client.models.retrieve("pairs").id == "pairs"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.models.retrieve("nothing")


@pytest.mark.parametrize("form", ["float", "base64"])
def test_vectors_are_those_of_embed(client: openai.OpenAI, server: Server, model: Model, form: str) -> None:
    answer = ask(server, "embeddings", model="minilm", input=TEXTS, encoding_format=form)
    values = [each["embedding"] for each in answer["data"]]
    if form == "base64":
        values = [np.frombuffer(base64.b64decode(value), "<f4") for value in values]
    np.testing.assert_allclose(np.array(values, np.float32), model.embed(TEXTS), atol=2e-5)
    assert [each["index"] for each in answer["data"]] == [0, 1, 2]
    tokens = int(Tokenizer(model._tokenizer_file(), model.io).encode(TEXTS)["attention_mask"].sum())
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    (one,) = client.embeddings.create(model="minilm", input=TEXTS[0]).data
    np.testing.assert_allclose(one.embedding, model.embed(TEXTS[:1])[0], atol=2e-5)


def test_token_ids_are_taken_as_they_are(client: openai.OpenAI, model: Model) -> None:
    feeds = Tokenizer(model._tokenizer_file(), model.io).encode(TEXTS)
    rows = [row[kept > 0].tolist() for row, kept in zip(feeds["input_ids"], feeds["attention_mask"], strict=True)]
    answer = client.embeddings.create(model="minilm", input=rows)
    np.testing.assert_allclose([each.embedding for each in answer.data], model.embed(TEXTS), atol=2e-5)
    assert answer.usage.prompt_tokens == sum(map(len, rows))
    (one,) = client.embeddings.create(model="minilm", input=rows[1]).data
    np.testing.assert_allclose(one.embedding, model.embed(TEXTS)[1], atol=2e-5)


def test_fewer_dimensions_are_the_first_ones_of_length_1(client: openai.OpenAI, model: Model) -> None:
    answer = client.embeddings.create(model="minilm", input=TEXTS, dimensions=100)
    own = model.embed(TEXTS)[:, :100]
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    np.testing.assert_allclose([each.embedding for each in answer.data], own, atol=2e-5)


def test_documents_are_ranked_as_rank_ranks_them(server: Server, pairs: Path) -> None:
    query, documents = "boiling water", [*TEXTS, "Tea is made of it."]
    with load(pairs) as own:
        expected = own.rank(query, documents)
    answer = ask(server, "rerank", model="pairs", query=query, documents=documents)
    assert [each["index"] for each in answer["results"]] == [each["corpus_id"] for each in expected]
    got = [each["relevance_score"] for each in answer["results"]]
    np.testing.assert_allclose(got, [each["score"] for each in expected], atol=2e-5)
    assert "document" not in answer["results"][0]
    given = [{"text": text} for text in documents]
    two = ask(server, "rerank", model="pairs", query=query, documents=given, top_n=2, return_documents=True)
    best = [each["corpus_id"] for each in expected[:2]]
    assert [each["document"]["text"] for each in two["results"]] == [documents[at] for at in best]
    assert two["usage"]["total_tokens"] == answer["usage"]["total_tokens"] > 0


def test_a_prompt_is_continued_as_generate_continues_it(client: openai.OpenAI, decoder: Model) -> None:
    answer = client.completions.create(model="speaker", prompt=PROMPT, max_tokens=20)
    assert answer.choices[0].text == decoder.generate(PROMPT, max_tokens=20)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (4, 20, 24)
    drawn = client.completions.create(model="speaker", prompt=PROMPT, max_tokens=20, temperature=0.9, top_p=0.8, seed=3)
    assert drawn.choices[0].text == decoder.generate(PROMPT, max_tokens=20, temperature=0.9, top_p=0.8, seed=3)
    ids = client.completions.create(model="speaker", prompt=[1, 7, 9], max_tokens=5)
    assert ids.choices[0].text == decoder.generate([[1, 7, 9]], max_tokens=5, as_text=True)[0]
    usual = client.completions.create(model="speaker", prompt=PROMPT).usage
    assert usual is not None
    assert usual.completion_tokens == 16


def test_several_prompts_are_continued_each_by_itself(client: openai.OpenAI, decoder: Model) -> None:
    prompts = [PROMPT, "ma", "zu zo za ze zi " * 30, "lu"]
    answer = client.completions.create(model="speaker", prompt=prompts, max_tokens=12)
    assert [each.text for each in answer.choices] == [decoder.generate(each, max_tokens=12) for each in prompts]
    pieces = client.completions.create(model="speaker", prompt=prompts, max_tokens=12, stream=True)
    grown = [""] * len(prompts)
    for piece in pieces:
        for choice in piece.choices:
            grown[choice.index] += choice.text
    assert grown == [each.text for each in answer.choices]


def test_a_text_ends_before_a_stop_text_also_one_of_several_tokens(client: openai.OpenAI, decoder: Model) -> None:
    whole = decoder.generate(PROMPT, max_tokens=20)
    words = whole.split()
    stop = f"{words[8]} {words[9]}"
    expected = whole[: whole.index(stop)]
    answer = client.completions.create(model="speaker", prompt=PROMPT, max_tokens=20, stop=["never", stop])
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (expected, "stop")
    streamed = client.completions.create(model="speaker", prompt=PROMPT, max_tokens=20, stop=stop, stream=True)
    pieces = list(streamed)
    assert "".join(piece.choices[0].text for piece in pieces) == expected
    assert [piece.choices[0].finish_reason for piece in pieces][-1] == "stop"
    assert len(pieces) > 3


def test_messages_are_answered_behind_the_models_template(
    client: openai.OpenAI, decoder: Model, speaker_model: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(speaker_model, trust_remote_code=False)
    ids = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=True, return_dict=False)
    (own,) = decoder.generate([ids], max_tokens=15, as_text=True)
    messages: Any = MESSAGES
    answer = client.chat.completions.create(model="speaker", messages=messages, max_completion_tokens=15)
    assert answer.choices[0].message.content == own
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(ids)
    parts: Any = [MESSAGES[0], {"role": "user", "content": [{"type": "text", "text": MESSAGES[1]["content"]}]}]
    again = client.chat.completions.create(model="speaker", messages=parts, max_tokens=15)
    assert again.choices[0].message.content == own
    # Without a number, as many as the model has room for, or the server gives.
    long = client.chat.completions.create(model="speaker", messages=messages)
    assert long.usage is not None
    ended = long.choices[0].finish_reason == "stop"
    assert ended or long.usage.completion_tokens == 400


def test_an_answer_is_streamed_with_its_role_its_end_and_its_usage(client: openai.OpenAI, server: Server) -> None:
    messages: Any = MESSAGES
    whole = client.chat.completions.create(model="speaker", messages=messages, max_tokens=15)
    *pieces, last = client.chat.completions.create(
        model="speaker", messages=messages, max_tokens=15, stream=True, stream_options={"include_usage": True}
    )
    said = [piece.choices[0] for piece in pieces]
    assert "".join(choice.delta.content or "" for choice in said) == whole.choices[0].message.content
    assert [choice.delta.role for choice in said] == ["assistant", *[None] * (len(said) - 1)]
    ends = [choice.finish_reason for choice in said]
    assert ends == [*[None] * (len(said) - 1), whole.choices[0].finish_reason]
    assert (last.choices, last.usage) == ([], whole.usage)
    body = json.dumps({"model": "speaker", "messages": MESSAGES, "max_tokens": 3, "stream": True}).encode()
    request = urllib.request.Request(f"{server.url}/v1/chat/completions", body)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.read().decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    assert all(json.loads(line.removeprefix("data: "))["choices"] for line in lines[:-2])


WRONG: list[tuple[str, Any, str]] = [
    ("embeddings", b"{", "not of the protocol"),
    ("embeddings", b"[1]", "not of the protocol"),
    ("embeddings", b'{"model": "minilm", "input": NaN}', "not of the protocol"),
    ("embeddings", b'{"model": "minilm", "input": ' + b"[" * 2000 + b"]" * 2000 + b"}", "not of the protocol"),
    ("embeddings", b'{"model": "minilm", "input": ' + b"[" * 300_000, "'[', '{' and ':'"),
    ("embeddings", {"input": "a"}, "model: Field required"),
    ("embeddings", {"model": "minilm"}, "input: Field required"),
    ("embeddings", {"model": "minilm", "input": None}, "input: Field required"),
    ("embeddings", {"model": ["minilm"], "input": "a"}, "model: Input should be a valid string"),
    ("embeddings", {"model": "minilm", "input": []}, "input: got []"),
    ("embeddings", {"model": "minilm", "input": {}}, "input: got {}"),
    ("embeddings", {"model": "minilm", "input": [1.5]}, "input: got [1.5]"),
    ("embeddings", {"model": "minilm", "input": [True]}, "input: got [True]"),
    ("embeddings", {"model": "minilm", "input": ["a", 1]}, "input: got ['a', 1]"),
    ("embeddings", {"model": "minilm", "input": ["a", None]}, "input: got ['a', None]"),
    ("embeddings", {"model": "minilm", "input": [[1], []]}, "input: got [[1], []]"),
    ("embeddings", {"model": "minilm", "input": [-1]}, "expected token ids of 0 to 30521"),
    ("embeddings", {"model": "minilm", "input": [2**70]}, "input: got [1.18"),
    ("embeddings", {"model": "minilm", "input": [2**63]}, "expected token ids of 0 to 30521"),
    ("embeddings", {"model": "minilm", "input": [1] * 257}, "got 257 token ids; expected 1 to 256"),
    ("embeddings", {"model": "minilm", "input": "\ud800"}, "surrogate"),
    ("embeddings", {"model": "minilm", "input": ["a"] * 601}, "got 601 texts; expected at most 600"),
    ("embeddings", {"model": "minilm", "input": "a" * 20_000}, "letters of text"),
    ("embeddings", {"model": "minilm", "input": ["word " * 300] * 3}, "got 768 tokens; expected at most 600"),
    ("embeddings", {"model": "minilm", "input": ["word " * 300] + ["a"] * 90}, "padded to 256"),
    ("embeddings", {"model": "minilm", "input": "a", "dimensions": 385}, "expected 1 to 384"),
    ("embeddings", {"model": "minilm", "input": "a", "dimensions": 0}, "dimensions"),
    ("embeddings", {"model": "minilm", "input": "a", "dimensions": True}, "dimensions"),
    ("embeddings", {"model": "minilm", "input": "a", "encoding_format": "int8"}, "encoding_format"),
    ("embeddings", {"model": "minilm", "input": "a", "depth": 3}, "got 'depth', which is not served here"),
    ("embeddings", {"model": "minilm", "input": "a", "prompt": "nothing"}, "expected the name of one"),
    ("embeddings", {"model": "minilm", "input": [5], "prompt": "query"}, "it stands before texts"),
    ("embeddings", {"model": "classes", "input": "a"}, "embed: got the outputs"),
    ("embeddings", {"model": "speaker", "input": "a"}, "of this decoder; expected"),
    ("embeddings", {"model": "minilm", "input": ""}, "input: got ''"),
    ("embeddings", {"model": "minilm", "input": ["a", ""]}, "input[1]: got ''"),
    ("embeddings", {"model": "minilm", "input": [[5], [5] * 600]}, "input[1]: got 600 token ids"),
    ("embeddings", {"model": "minilm", "input": [5] * 600}, "input: got 600 token ids"),
    ("rerank", {"model": "pairs", "query": "a", "documents": []}, "documents: got []"),
    ("rerank", {"model": "pairs", "query": "a", "documents": [{"texts": "b"}]}, "documents: got"),
    ("rerank", {"model": "pairs", "query": "a", "documents": ["b", 1]}, "documents: got"),
    ("rerank", {"model": "pairs", "query": ["a"], "documents": ["b"]}, "query: Input should be a valid string"),
    ("rerank", {"model": "pairs", "query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
    ("rerank", {"model": "pairs", "query": "a" * 1000, "documents": ["b"] * 20}, "letters of text"),
    ("rerank", {"model": "classes", "query": "a", "documents": ["b"]}, "one score for a query and a document"),
    ("rerank", {"model": "minilm", "query": "a", "documents": ["b"]}, "one score for a query and a document"),
    ("completions", {"model": "minilm", "prompt": "a"}, "minilm does not generate"),
    ("completions", {"model": "speaker", "prompt": []}, "prompt: got []"),
    ("completions", {"model": "speaker", "prompt": [[1], ["a"]]}, "prompt: got"),
    ("completions", {"model": "speaker", "prompt": [999]}, "999"),
    ("completions", {"model": "speaker", "prompt": [2**63]}, "prompt: got"),
    ("completions", {"model": "speaker", "prompt": "ba", "max_tokens": 0}, "max_tokens: got 0"),
    ("completions", {"model": "speaker", "prompt": "ba", "max_tokens": 401}, "max_tokens: got 401; expected 1 to 400"),
    ("completions", {"model": "speaker", "prompt": ["ba"] * 30, "max_tokens": 16}, "expected 1 to 13"),
    ("completions", {"model": "speaker", "prompt": "ba", "max_tokens": "5"}, "max_tokens: got '5'"),
    ("completions", {"model": "speaker", "prompt": "ba " * 520, "max_tokens": 2}, "prompt: 521 tokens and 2 new ones"),
    ("completions", {"model": "speaker", "prompt": "ba " * 700, "max_tokens": 2}, "got 701 tokens"),
    ("completions", {"model": "speaker", "prompt": "ba", "temperature": -1}, "temperature: got -1"),
    ("completions", {"model": "speaker", "prompt": "ba", "temperature": True}, "temperature: got True"),
    ("completions", {"model": "speaker", "prompt": "ba", "top_p": 0}, "top_p: got 0"),
    ("completions", {"model": "speaker", "prompt": "ba", "seed": 1.5}, "seed: got 1.5"),
    ("completions", {"model": "speaker", "prompt": "ba", "stop": ""}, "stop: got ''"),
    ("completions", {"model": "speaker", "prompt": "ba", "stop": ["a"] * 5}, "stop: got"),
    ("completions", {"model": "speaker", "prompt": "ba", "stop": [1]}, "stop: got [1]"),
    ("completions", {"model": "speaker", "prompt": "ba", "n": 2}, "n: got 2; expected none or 1"),
    ("completions", {"model": "speaker", "prompt": "ba", "logprobs": 1}, "logprobs: got 1"),
    ("completions", {"model": "speaker", "prompt": "ba", "frequency_penalty": 0.5}, "frequency_penalty"),
    ("completions", {"model": "speaker", "prompt": "ba", "stream": 1}, "stream: Input should be a valid boolean"),
    ("completions", {"model": "speaker", "prompt": "ba", "max_tokens": 1000, "stream": True}, "max_tokens: got 1000"),
    ("completions", {"model": "speaker", "prompt": "ba", "top_p": 2, "stream": True}, "top_p: got 2"),
    ("chat/completions", {"model": "speaker", "messages": [], "max_tokens": 1}, "messages"),
    ("chat/completions", {"model": "speaker", "messages": MESSAGES, "max_tokens": 0}, "max_tokens: got 0"),
    (
        "chat/completions",
        {"model": "speaker", "messages": MESSAGES, "max_completion_tokens": 0},
        "max_completion_tokens: got 0",
    ),
    (
        "chat/completions",
        {"model": "speaker", "messages": [{"role": "user", "content": "ba " * 520}], "max_tokens": 2},
        "messages: 5",
    ),
    ("chat/completions", {"model": "speaker", "messages": ["a"]}, "messages[0]: got 'a'"),
    ("chat/completions", {"model": "speaker", "messages": [{"role": "user"}]}, "messages[0]: got"),
    ("chat/completions", {"model": "speaker", "messages": [{"role": 1, "content": "a"}]}, "messages[0]: got"),
    ("chat/completions", {"model": "speaker", "messages": [{"role": "user", "content": [{}]}]}, "messages[0]: got"),
    ("chat/completions", {"model": "speaker", "messages": [{"role": "robot", "content": "a"}]}, "no such role: robot"),
    ("chat/completions", {"model": "speaker", "messages": MESSAGES, "tools": [{"type": "function"}]}, "tools: got"),
    ("chat/completions", {"model": "minilm", "messages": MESSAGES}, "minilm does not generate"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "message"), WRONG, ids=lambda value: str(value)[:60])
def test_what_is_wrong_or_not_served_is_a_bad_request_in_words(
    server: Server, path: str, body: Any, message: str
) -> None:
    status, answer = post(f"{server.url}/v1/{path}", body)
    assert status == 400, answer
    assert answer["error"].keys() == {"message", "type", "param", "code"}
    assert answer["error"]["type"] == "invalid_request_error"
    assert message in answer["error"]["message"], answer
    assert len(answer["error"]["message"]) <= 1000


def test_errors_have_the_status_by_which_the_client_names_them(client: openai.OpenAI, server: Server) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.embeddings.create(model="nothing", input="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="expected 1 to 384"):
        client.embeddings.create(model="minilm", input="a", dimensions=1000)
    with pytest.raises(openai.APIStatusError) as large:
        client.embeddings.create(model="minilm", input="word " * 100_000)
    assert large.value.status_code == 413
    for path in ("nothing", "embeddings/minilm"):
        status, answer = post(f"{server.url}/v1/{path}", {})
        assert (status, answer["error"]["type"]) == (404, "invalid_request_error")
    assert post(f"{server.url}/v1/models", {})[0] == 405


def test_an_answer_that_would_be_too_large_is_refused_before_it_is_computed(minilm: Path) -> None:
    with serving("kserve", {"minilm": minilm}, "--max-response-bytes", "20000") as running:
        status, answer = post(f"{running.url}/v1/embeddings", {"model": "minilm", "input": ["a"] * 4})
        assert (status, "Send fewer texts" in answer["error"]["message"]) == (413, True)
        assert post(f"{running.url}/v1/embeddings", {"model": "minilm", "input": ["a"] * 3})[0] == 200


def test_ray_answers_the_same_routes(minilm: Path, speaker: Path, decoder: Model, model: Model) -> None:
    with (
        serving("ray", {"minilm": minilm, "speaker": speaker}) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client,
    ):
        (one,) = client.embeddings.create(model="minilm", input=TEXTS[0]).data
        np.testing.assert_allclose(one.embedding, model.embed(TEXTS[:1])[0], atol=2e-5)
        pieces = client.completions.create(model="speaker", prompt=PROMPT, max_tokens=9, stream=True)
        assert "".join(piece.choices[0].text for piece in pieces) == decoder.generate(PROMPT, max_tokens=9)
        with pytest.raises(openai.BadRequestError, match="minilm does not generate"):
            client.completions.create(model="minilm", prompt="a")


class Slow:
    """An application with a decoder that takes its time, and what a client without a connection sees of it."""

    def __init__(self, speaker: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.served = Served("speaker", speaker, Options(**options), None, lambda together: together)
        self.tokens, self.ended = 0, threading.Event()
        own = self.served.model.generate

        def slow(*given: Any, on_token: Callable[[int, Any], None], **more: Any) -> Any:
            def paced(row: int, token: Any) -> None:
                time.sleep(0.02)
                self.tokens += 1
                on_token(row, token)

            try:
                return own(*given, on_token=paced, **more)
            finally:
                self.ended.set()

        monkeypatch.setattr(self.served.model, "generate", slow)
        repository = ModelRepository()
        repository.update(self.served)
        self.app = FastAPI()
        add_routes(self.app, DataPlane(repository))
        answer_errors(self.app, 100_000)

    async def ask(self, leaves_after_s: float | None = None, **body: Any) -> list[Any]:
        """What the application sends to a client, which leaves after a time if one is given."""
        sent: list[Any] = []
        given = json.dumps({"model": "speaker", "prompt": PROMPT, **body}).encode()
        messages = iter([{"type": "http.request", "body": given}])

        async def receive() -> Any:
            for message in messages:
                return message
            await asyncio.sleep(1000 if leaves_after_s is None else leaves_after_s)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "method": "POST", "headers": [],
            "path": "/v1/completions", "raw_path": b"/v1/completions", "query_string": b"", "http_version": "1.1",
            "scheme": "http", "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 9), "root_path": "",
        }  # fmt: skip
        await self.app(scope, receive, send)
        return sent


def test_a_tokenizer_that_cannot_be_read_is_the_servers_fault(
    speaker: Path, minilm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(*given: Any) -> Any:
        raise BundleError("tokenizer.json cannot be read.")

    monkeypatch.setattr("attnport_bundle.serve.openai.Words", unread)
    start, body = asyncio.run(Slow(speaker, monkeypatch).ask())
    error = json.loads(body["body"])["error"]
    assert (start["status"], error["type"]) == (500, "server_error")
    assert error["message"] == "speaker cannot read and write text: tokenizer.json cannot be read."
    monkeypatch.setattr(Model, "_text", unread)
    with pytest.raises(Failed, match=r"minilm cannot read text: tokenizer\.json cannot be read"):
        Served("minilm", minilm, Options(), None, lambda together: together).require_readable()


@pytest.mark.parametrize("stream", [False, True])
def test_a_generation_ends_when_its_client_goes_away(
    speaker: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    slow = Slow(speaker, monkeypatch, generations=1)

    async def leave() -> None:
        # The second waits for the first one's place, and is gone before it begins.
        await asyncio.gather(slow.ask(0.5, stream=stream, max_tokens=200), slow.ask(0.3, stream=stream, max_tokens=200))
        assert await asyncio.to_thread(slow.ended.wait, 10)
        assert slow.tokens < 100
        before = slow.tokens
        sent = await slow.ask(stream=stream, max_tokens=5)  # its place is free again
        assert sent[0]["status"] == 200
        assert slow.tokens == before + 5

    asyncio.run(leave())
    assert slow.served._waiting == 0


def test_more_requests_than_there_is_room_for_are_refused_also_of_a_stream(
    speaker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(speaker, monkeypatch, max_waiting=2)

    async def crowd() -> list[Any]:
        return await asyncio.gather(*(slow.ask(stream=True, max_tokens=10) for _ in range(3)))

    assert sorted(sent[0]["status"] for sent in asyncio.run(crowd())) == [200, 200, 503]
    assert slow.served._waiting == 0


CHAT = [{"role": "user", "content": 'a <b> "c" é'}, {"role": "assistant", "content": "d"}]
TEMPLATES = {
    "plain": talker.TEMPLATE,
    "json": "{{ messages | tojson }} {{ messages | tojson(indent=1) }}",
    "loop": "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "namespace": "{% set n = namespace(a=1) %}{% for m in messages %}{% set n.a = n.a + 1 %}{% endfor %}{{ n.a }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "blocks": "{% for m in messages %}\n  {% if m.role == 'user' %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}\n",
    "tokens": "{{ bos_token }}{{ eos_token }}{{ pad_token }}{% if tools %}x{% endif %}{{ dict(a=1).a }}",
    "date": "{{ strftime_now('%Y') }}",
}


def template(text: str) -> Template:
    return Template(json.dumps({"template": text, "tokens": {"bos_token": "<s>", "eos_token": "</s>"}}).encode())


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_makes_what_transformers_makes_of_it(name: str) -> None:
    text = TEMPLATES[name]
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    ((own, *_), _) = render_jinja_template([CHAT], chat_template=text, add_generation_prompt=True, **tokens)
    assert template(text).rendered(CHAT, 10_000) == own


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ namespace(__init__=1) }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ strftime_now.__globals__['datetime'] }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{% for a in range(10000000) %}{{ a }}{% endfor %}",
        "{% for a in range(90000) %}{{ 'aaaa' }}{% endfor %}",
        "{{ 1 // 0 }}",
        "{{ messages.nothing.nothing }}",
        "{% include '/etc/passwd' %}",
        "{% if %}",
    ],
)
def test_a_template_leads_out_of_no_sandbox_and_makes_no_endless_text(text: str) -> None:
    with suppress(FeedError):
        assert not template(text).rendered(CHAT, 100_000)


@pytest.mark.parametrize(
    "text",
    [
        "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
        "{% for a in range(9) recursive %}{{ loop(range(9)) if loop.depth < 99 }}{% endfor %}",
        "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(90) }}",
        "{% set step = 1 %}{% for a in range(99999) if a > -1 %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    ],
)
def test_a_template_that_does_not_end_is_ended(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnport_bundle.serve.openai._TEMPLATE_S", 0.2)
    with pytest.raises(FeedError, match="takes more than"):
        template(text).rendered(CHAT, 100_000)


@pytest.mark.parametrize(
    "text",
    [
        "{{ 7 ** 9000000 % 10 }}",
        "{{ 'a' * 900000000000 }}",
        "{{ ([0] * 90000000) | length }}",
        "{{ '%0999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '%99999999d' | format(1) }}",
        "{{ '{:99999999}'.format(1) }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
    ],
)
def test_a_template_makes_nothing_large_of_little(text: str) -> None:
    began_s = time.monotonic()
    with pytest.raises(FeedError, match="it computes"):
        template(text).rendered(CHAT, 100_000)
    assert time.monotonic() - began_s < 5
    some = "{{ '-' * 3 ~ 2 * 4 ~ '%02d' % 7 ~ 7 % 4 ~ '**%s** 2024' % none ~ ('a' | center(3)) }}"
    assert template(some).rendered(CHAT, 100) == "---8073**None** 2024 a "


def test_chat_needs_jinja2_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2.exceptions", None)
    with pytest.raises(NotImplementedError, match="pip install jinja2"):
        template("a").rendered(CHAT, 100)
