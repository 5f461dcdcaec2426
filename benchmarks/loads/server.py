"""Servers of bundles in processes of their own, and loads for them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

COMMAND = (sys.executable, "-m", "attnport_bundle", "serve")
LOAD = Path(__file__).with_name("load.py")


@dataclass(frozen=True)
class Server:
    """A server that answers.

    Attributes:
        port, grpc_port, metrics_port: Of HTTP, of gRPC, and of the metrics of a Ray cluster.
        process: Of KServe the server itself, of Ray its driver.
        log: What it prints.
    """

    port: int
    grpc_port: int
    metrics_port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        """Where HTTP requests go."""
        return f"http://127.0.0.1:{self.port}"


def free_port() -> int:
    """A port that nothing listens on, from a range of which neither the kernel nor Ray gives ports to others."""
    for port in random.sample(range(20_000, 32_000), 100):
        with contextlib.suppress(OSError), socket.socket() as taken:
            taken.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free between 20000 and 32000")


@contextlib.contextmanager
def serving(
    engine: str, models: Mapping[str, Path], *options: str, command: Sequence[str] = COMMAND
) -> Iterator[Server]:
    """A server of bundles, in a process of its own; it is told to stop at the end, and has to end with 0."""
    ports = free_port(), free_port(), free_port()
    command = [*command, "--engine", engine]
    command += [word for name, folder in models.items() for word in ("--model", f"{name}={folder}")]
    command += ["--port", str(ports[0]), "--grpc-port", str(ports[1]), "--metrics-port", str(ports[2]), *options]
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "log.txt"
        with log.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, cwd=scratch, env=environment())
        server = Server(*ports, process, log)
        try:
            wait(server)
            yield server
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert process.returncode == 0, log.read_text()


def processes(server: Server) -> list[psutil.Process]:
    """The processes in which a server's models are: Ray's replicas, or the server itself."""
    whole = psutil.Process(server.process.pid)
    return [each for each in whole.children(recursive=True) if _is_replica(each)] or [whole]


def _is_replica(process: psutil.Process) -> bool:
    try:
        return "ServeReplica" in " ".join(process.cmdline())
    except psutil.Error:  # it has ended
        return False


def environment() -> dict[str, str]:
    """Without what would send counts of use, or a proxy, into the way."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore"}


def wait(server: Server, limit_s: float = 240) -> None:
    """Waits until a server says that it is ready."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end and server.process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{server.url}/v2/health/ready", timeout=5):
            return
        time.sleep(0.2)
    raise AssertionError(f"the server did not get ready:\n{server.log.read_text()}")


def post(url: str, body: Any, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
    """The status and the JSON of an answer; `body` is JSON, or bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as err:
        text = err.read().decode()
        return err.code, json.loads(text) if text.startswith("{") else text


def load(server: Server, expected: Path, users: int, seconds: float) -> dict[str, dict[str, Any]]:
    """Locust's numbers for each kind of answer, `embed` and `refused`, with the `errors` that were none of both."""
    with running_load(server, expected, users, seconds) as process:
        out, err = process.communicate(timeout=seconds + 60)
    assert out.strip(), err
    found = {row["name"]: row for row in json.loads(out)}
    assert found, err
    return {**found, "errors": {"count": sum(row["num_failures"] for row in found.values()), "log": err}}


@contextlib.contextmanager
def running_load(server: Server, expected: Path, users: int, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """Locust, running."""
    command = [sys.executable, "-m", "locust", "-f", str(LOAD), "--headless", "--json", "--skip-log", "--only-summary"]
    command += [
        "--host",
        server.url,
        "--users",
        str(users),
        "--spawn-rate",
        str(users),
        "--run-time",
        f"{seconds:.0f}s",
    ]
    command += ["--exit-code-on-error", "0", "--stop-timeout", "20"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**environment(), "ATTNPORT_EXPECTED": str(expected)},
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
