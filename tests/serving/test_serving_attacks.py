"""Requests that would take a server's memory or time: each has its status, and others are answered meanwhile.

Those that are refused are files of `tests/attacks`.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import small_embedder
from loads.server import Server, post, processes, serving

ATTACKS = Path(__file__).resolve().parents[1] / "attacks"
if str(ATTACKS) not in sys.path:
    sys.path.append(str(ATTACKS))

import attack as attacks  # noqa: E402 - see above

pytestmark = pytest.mark.timeout(300)
MB = 1 << 20
ROOM = 256 * MB
"""For reading a request: up to 222 MB were measured. What the process holds idle differs from run to run."""
CLIENT_S = 3
INFER, LIVE = (f"/inference.GRPCInferenceService/{name}" for name in ("ModelInfer", "ServerLive"))
REFUSED = [one for one in map(attacks.read, sorted(ATTACKS.glob("*.json"))) if one.on == "server"]
CODES = {400: grpc.StatusCode.INVALID_ARGUMENT, 413: grpc.StatusCode.RESOURCE_EXHAUSTED}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_embedder.bundle_of(tmp_path_factory)


@pytest.fixture(scope="module")
def server(app: Path) -> Iterator[Server]:
    with serving("kserve", {"small": app}, "--client-s", str(CLIENT_S)) as running:
        vector(running)
        yield running


@pytest.fixture
def idle_bytes(server: Server) -> int:
    """What the server holds before the request, with what the allocator kept of earlier ones."""
    return sum(each.memory_info().rss for each in processes(server))


def vector(server: Server) -> Any:
    """What a request that is right is answered with."""
    body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["A text."]}]}
    status, answer = post(f"{server.url}/v2/models/small/infer", body)
    assert status == 200, answer
    return answer["outputs"]


class Watched:
    """The memory and the health of a server while something is asked of it.

    Attributes:
        peak_bytes: What it holds at most.
        slowest_s: The longest that it takes to answer whether it is alive.
        took_s: How long all of it takes.
    """

    def __init__(self, server: Server) -> None:
        (self._process,), self._url = processes(server), f"{server.url}/v2/health/live"
        self.peak_bytes, self.slowest_s, self.took_s = 0, 0.0, 0.0
        self._begin, self._ended = time.monotonic(), threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._memory, self._health)]

    def _memory(self) -> None:
        while not self._ended.wait(0.01):
            self.peak_bytes = max(self.peak_bytes, self._process.memory_info().rss)

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
        self.took_s = time.monotonic() - self._begin
        self._ended.set()
        for each in self._threads:
            each.join()

    def check(self, most_bytes: float) -> None:
        """Fails if the server held more than this, or was not there for others."""
        assert self.slowest_s < 1, self.slowest_s
        assert self.peak_bytes < most_bytes, (self.peak_bytes / MB, most_bytes / MB)


def called(server: Server, body: bytes) -> tuple[Any, str]:
    """The code of gRPC and the details, in answer to a message that infers."""
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        try:
            channel.unary_unary(INFER)(body, timeout=60)
        except grpc.RpcError as err:
            return err.code(), err.details()
    return grpc.StatusCode.OK, ""


@pytest.mark.parametrize("attack", REFUSED, ids=lambda attack: attack.name)
def test_a_request_that_asks_for_much_is_refused_beside_others(
    server: Server, idle_bytes: int, attack: attacks.Attack
) -> None:
    body, by_grpc = attacks.body(attack), attack.do[0]["by"] == "grpc"
    with Watched(server) as watched:
        if by_grpc:
            got, said = called(server, body)
        else:
            got, answer = post(f"{server.url}/v2/models/small/infer", body)
            said = answer["error"]
    assert (got, attack.says in said) == (CODES[attack.exit] if by_grpc else attack.exit, True), (got, said[:300])
    assert len(said) <= 1000
    assert watched.took_s < 10
    watched.check(idle_bytes + ROOM + len(body))
    assert vector(server)


def of_openai(given: bytes, **more: Any) -> bytes:
    """A request of vectors, with values behind its last name."""
    return json.dumps({"model": "small", **more}).encode()[:-1] + given + b"}"


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (of_openai(b',"input":[' + b"1," * 4_000_000 + b"1]"), 400, "got 4000001 token ids"),
        (of_openai(b',"input":[' + b'"a",' * 1_900_000 + b'"a"]'), 413, "Send fewer texts"),
        (of_openai(b',"input":[' + b"[1]," * 200_000 + b"[1]]"), 413, "Send fewer texts"),
        (of_openai(b',"input":[' + b"[[1]]," * 100_000 + b"1]"), 400, "input: got [[[1]]"),
        (of_openai(b',"input":"' + b"a" * 8_000_000 + b'"'), 400, "letters of text"),
        (of_openai(b"".join(b',"%d":1' % at for at in range(200_000)), input="a"), 400, "not served here"),
        (of_openai(b',"more":[' + b"1," * 4_000_000 + b"1]", input="a"), 400, "got 'more'"),
    ],
    ids=["ids", "texts", "rows", "deeper", "letters", "names", "unknown"],
)
def test_large_requests_of_openais_protocol_are_refused_beside_others(
    server: Server, idle_bytes: int, body: bytes, status: int, says: str
) -> None:
    with Watched(server) as watched:
        got, answer = post(f"{server.url}/v1/embeddings", body)
    assert (got, says in answer["error"]["message"]) == (status, True), answer
    assert watched.took_s < 10
    watched.check(idle_bytes + ROOM + len(body))
    assert vector(server)


def tokens(rows: int, **more: Any) -> bytes:
    """Token ids of full length, and the masks of their model."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    ones = np.ones(rows * 512, np.int64).tolist()
    parts = [{"name": name, "datatype": "INT64", "shape": [rows, 512], "data": ones} for name in names]
    return json.dumps({"inputs": parts, **more}).encode()


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_an_answer_of_many_megabytes_holds_nobody_up(server: Server, idle_bytes: int, binary: bool) -> None:
    hidden = [{"name": "last_hidden_state", "parameters": {"binary_data": binary}}]
    body = tokens(100, outputs=hidden)
    request = urllib.request.Request(f"{server.url}/v2/models/small/infer", body)
    with Watched(server) as watched, urllib.request.urlopen(request, timeout=60) as answer:
        found = answer.read()
        length = answer.headers["Inference-Header-Content-Length"]
    assert (length is not None) == binary
    (output,) = json.loads(found[: int(length)] if binary else found)["outputs"]
    rows, places, width = output["shape"]
    values = np.frombuffer(found[int(length) :], np.float32) if binary else np.array(output["data"], np.float32)
    assert (rows, places, values.size) == (100, 512, rows * places * width)
    assert np.isfinite(values).all()
    assert len(found) > 6 * MB
    watched.check(idle_bytes + ROOM + len(body) + len(found))


def test_an_embedder_answers_tokens_with_vectors_alone(server: Server, idle_bytes: int) -> None:
    body = tokens(100)
    with Watched(server) as watched:
        status, answer = post(f"{server.url}/v2/models/small/infer", body)
    assert status == 200
    assert [output["name"] for output in answer["outputs"]] == ["sentence_embedding"]
    watched.check(idle_bytes + ROOM + len(body))


HALF = {
    "nothing": "",
    "half a head": "POST /v2/models/small/infer HTTP/1.1\r\nHost: a\r\n",
    "half a body": "POST /v2/models/small/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{",
}


def emptied(client: socket.socket) -> None:
    """Waits until the server closes a connection."""
    with contextlib.suppress(ConnectionResetError):
        while client.recv(MB):
            pass


def holds(server: Server, client: socket.socket) -> bool:
    """Whether the server has a client's connection open."""
    (process,) = processes(server)
    return any(each.raddr[1:] == client.getsockname()[1:2] for each in process.connections("tcp4") if each.raddr)


@pytest.mark.parametrize("name", HALF)
@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
def test_a_client_that_does_not_end_its_request_is_closed_and_others_are_not(
    server: Server, name: str, second: bool
) -> None:
    slow = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(30)]
    for each in slow:
        if second:
            each.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
            assert each.recv(MB).startswith(b"HTTP/1.1 200 ")
        each.sendall((HALF[name] or "G" * second).encode())
    begin = time.monotonic()
    for each in slow:
        emptied(each)
        each.close()
    assert CLIENT_S - 1 < time.monotonic() - begin < CLIENT_S + 5
    assert vector(server)


def test_a_client_that_takes_no_answer_is_closed(server: Server) -> None:
    body = tokens(100, outputs=[{"name": "last_hidden_state", "parameters": {"binary_data": True}}])
    head = f"POST /v2/models/small/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(head + body)
        client.recv(1)
        assert holds(server, client)
        time.sleep(CLIENT_S + 3)
        assert not holds(server, client)
    assert vector(server)


def reached(port: int, host: str) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def test_it_listens_where_this_machine_alone_reaches_it(server: Server) -> None:
    said = server.log.read_text()
    assert f"serves http://127.0.0.1:{server.port}/v2, gRPC on 127.0.0.1:{server.grpc_port}" in said
    assert "warning" not in said
    for port in (server.port, server.grpc_port):
        assert reached(port, "127.0.0.1")
        assert not reached(port, "127.0.0.2")  # as any other address of the machine


def test_it_warns_where_others_reach_it(app: Path) -> None:
    with serving("kserve", {"small": app}, "--host", "0.0.0.0") as running:
        assert "warning: whoever reaches this machine at 0.0.0.0 is answered, without a password" in (
            running.log.read_text()
        )
        assert reached(running.port, "127.0.0.2")
        assert reached(running.grpc_port, "127.0.0.2")
        for option, taken in (("--port", running.port), ("--grpc-port", running.grpc_port)):
            with (
                pytest.raises(AssertionError, match=rf"{taken}: nothing can listen there: .* {option} chooses another"),
                serving("kserve", {"small": app}, option, str(taken)),
            ):
                pass


def test_ray_refuses_the_same_requests_and_opens_no_grpc_where_it_would_be_open_to_all(app: Path) -> None:
    with serving("ray", {"small": app}) as running:
        said = running.log.read_text()
        assert "no gRPC: Ray would open it on every address of the machine" in said
        assert "warning: whoever" not in said
        assert reached(running.port, "127.0.0.1")
        assert not reached(running.port, "127.0.0.2")
        assert not reached(running.grpc_port, "127.0.0.1")
        for attack in REFUSED:
            if attack.do[0]["by"] == "http":
                got, answer = post(f"{running.url}/v2/models/small/infer", attacks.body(attack))
                assert (got, attack.says in str(answer)) == (attack.exit, True), (attack.name, got, str(answer)[:300])
        assert vector(running)
