"""Requests that would take a server's memory or time: each has its status at once, and others are answered meanwhile."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_embedder
from loads.server import Server, post, processes, serving

pytestmark = pytest.mark.timeout(300)
WIDTH = 512
MB = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    app = small_embedder.bundle_of(tmp_path_factory)
    with serving("kserve", {"small": app}, "--client-s", "3") as running:
        vector(running)
        yield running


def vector(server: Server) -> Any:
    """What a request that is right is answered with."""
    body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["A text."]}]}
    status, answer = post(f"{server.url}/v2/models/small/infer", body)
    assert status == 200, answer
    return answer["outputs"]


class Watched:
    """The memory and the health of a server while something is asked of it.

    Attributes:
        peak_bytes: What it held at most beyond what it held before.
        slowest_s: The longest that it took to answer whether it is healthy.
    """

    def __init__(self, server: Server) -> None:
        (self._process,), self._url = processes(server), f"{server.url}/v2/health/live"
        self._before = self._process.memory_info().rss
        self.idle_bytes, self.peak_bytes, self.slowest_s = self._before, 0, 0.0
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._memory, self._health)]

    def _memory(self) -> None:
        while not self._ended.wait(0.01):
            self.peak_bytes = max(self.peak_bytes, self._process.memory_info().rss - self._before)

    def _health(self) -> None:
        while not self._ended.wait(0.05):
            begin = time.monotonic()
            with urllib.request.urlopen(self._url, timeout=60):
                self.slowest_s = max(self.slowest_s, time.monotonic() - begin)

    def __enter__(self) -> Watched:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._ended.set()
        for each in self._threads:
            each.join()


def tensor(name: str, datatype: str, shape: list[int], data: str) -> bytes:
    head = json.dumps({"name": name, "datatype": datatype, "shape": shape})
    return head[:-1].encode() + b',"data":' + data.encode() + b"}"


def inputs(*tensors: bytes) -> bytes:
    return b'{"inputs":[' + b",".join(tensors) + b"]}"


def repeated(part: str, size: int) -> str:
    return "[" + ",".join([part] * (size // (len(part) + 1))) + "]"


def tokens(rows: int, more: bytes = b"") -> bytes:
    """Token ids of full length, and the masks of their model."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    ones = json.dumps([1] * (rows * WIDTH))
    return inputs(*(tensor(name, "INT64", [rows, WIDTH], ones) for name in names))[:-1] + more + b"}"


TEXT = tensor("text", "BYTES", [1], '["A text."]')
ATTACKS = {
    "items of the wrong type": (inputs(repeated("{}", 8 * MB - 100).encode()[1:-1], b"1"), 400, "'['"),
    "fewer items of the wrong type": (inputs(repeated("{}", 120_000).encode()[1:-1], b"1"), 400, "inputs.0.name"),
    "lists in lists": (inputs(tensor("text", "BYTES", [1], repeated("[[[[]]]]", 8 * MB - 200))), 400, "'['"),
    "one list, deep": (inputs(tensor("text", "BYTES", [1], "[" * 900 + "]" * 900)), 400, "got a list"),
    "deeper than JSON goes": (b"[" * 100_000, 400, "not of the protocol"),
    "an object of many names": (
        b'{"inputs":[],"parameters":{' + b",".join(b'"%06d":1' % at for at in range(700_000)) + b"}}", 400, "missing"
    ),
    "a shape of many dims": (
        inputs(b'{"name":"text","datatype":"BYTES","shape":%b,"data":[]}' % repeated("1", 4 * MB).encode()), 400, "shape"
    ),
    "an output many times": (
        inputs(TEXT)[:-1] + b',"outputs":[' + b",".join([b'{"name":"sentence_embedding"}'] * 1000) + b"]}",
        400, "is there twice",
    ),
    "too many outputs": (
        inputs(TEXT)[:-1] + b',"outputs":[' + b",".join([b'{"name":"sentence_embedding"}'] * 2000) + b"]}",
        400, "outputs: ",
    ),
    "an input twice": (inputs(TEXT, TEXT), 400, "is there twice"),
    "a large answer": (
        tokens(400, b',"outputs":[{"name":"last_hidden_state"}]'), 413, "Send fewer items at a time",
    ),
    "empty texts": (inputs(tensor("text", "BYTES", [1398000], repeated('""', 4 * MB))), 400, "texts; expected at most"),
    "texts that their shape leaves out": (inputs(tensor("text", "BYTES", [1], repeated('""', 4 * MB))), 400, "reshape"),
    "one long text": (inputs(tensor("text", "BYTES", [1], json.dumps(["word " * 1_400_000]))), 400, "letters of text"),
    "many short texts and a long one": (
        inputs(tensor("text", "BYTES", [40001], json.dumps(["a"] * 40_000 + ["word " * 2000]))), 400, "with padding"
    ),
    "a name of a megabyte": (inputs(tensor("x" * MB, "INT64", [1], "[1]")), 400, "input 'xxx"),
    "numbers that are texts": (inputs(tensor("text", "BYTES", [8], repeated("1.5", 8 * MB - 200))), 400, "a number"),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_what_asks_for_much_has_its_status_at_once_and_others_are_answered(server: Server, name: str) -> None:
    body, status, said = ATTACKS[name]
    with Watched(server) as watched:
        begin = time.monotonic()
        got, answer = post(f"{server.url}/v2/models/small/infer", body)
        took_s = time.monotonic() - begin
    assert (got, said in answer["error"]) == (status, True), (got, str(answer)[:300])
    assert len(answer["error"]) < 2000
    assert took_s < 10, took_s
    assert watched.slowest_s < 1
    assert watched.peak_bytes < watched.idle_bytes / 2 + len(body), watched.peak_bytes / MB
    assert vector(server)
