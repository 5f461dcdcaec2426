"""ONNX Runtime for JavaScript: where its packages lie, a process of node or of a browser, and a session there.

The packages are those of `npm install`, in a folder of NODE_PATH or in this user's cache. No other folder is searched:
what lies beside the current one may be a stranger's. A process answers messages of `javascript/session.mjs`; node reads
them from stdin, a page in Chromium asks a server of this process for them.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from attnport.artifacts import PLANS, Ran, Session
from attnport.errors import ArtifactError, MissingDependency, UnavailableError
from attnport.runtimes import _ort
from attnport.runtimes.base import (
    Array,
    CheckedSession,
    Opening,
    Runtime,
    checked_model,
    external_files,
    physical_cores,
    refused,
)
from attnport.user_cache import cache

if TYPE_CHECKING:
    import onnx

VERSION = "1.30.0"
"""The newest release of both packages that was tried."""
NODE = ("node", "nodejs")
_LAST_WRITES_S = 5.0
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_SCRIPTS = Path(__file__).parent / "javascript"
_FLOATS = (1, 10, 11, 16)
"""float, float16, double and bfloat16, as `onnx.TensorProto.DataType` numbers them."""
_START_S, _POLL_S = 60.0, 20.0


def package(name: str) -> tuple[Path, str]:
    """The folder of a package of npm, and its version. Raises MissingDependency."""
    kept = cache()
    own = kept.folder / "node" if kept is not None else None
    places = [Path(place) for place in os.environ.get("NODE_PATH", "").split(os.pathsep) if place]
    for place in [*places, *([own / "node_modules"] if own else [])]:
        try:
            return place / name, str(json.loads((place / name / "package.json").read_text(encoding="utf-8"))["version"])
        except (OSError, ValueError, KeyError):
            continue
    where = f"--prefix {own} " if own else ""
    raise MissingDependency(
        f"{name} is in no folder of NODE_PATH and not in the cache.",
        hint=f"npm install --ignore-scripts {where}{name}@{VERSION}",
    )


def program(*names: str) -> str:
    """The path of the first of these programs that is there. Raises MissingDependency."""
    for name in names:
        if path := shutil.which(name):
            return path
    raise MissingDependency(f"{names[0]} is not installed.", hint=f"For example: apt-get install {names[0]}")


class Process(ABC):
    """A process that answers messages; it ends with this one, whatever happens to it.

    Attributes:
        name: What runs there: `node v20.20.2`.
    """

    name: str
    _process: subprocess.Popen[bytes]

    def ask(self, op: str, arrays: Mapping[str, Array] | None = None, **fields: Any) -> tuple[Any, dict[str, Array]]:
        """Sends a message; returns the answer and its tensors.

        Raises:
            RuntimeError: the answer is an error of JavaScript.
            ChildProcessError: the process has ended.
        """
        tensors = {name: np.asarray(array, order="C") for name, array in (arrays or {}).items()}
        listed = [
            {"name": name, "dtype": array.dtype.name, "shape": array.shape, "size": array.nbytes}
            for name, array in tensors.items()
        ]
        head = json.dumps({"op": op, "tensors": listed, **fields}).encode()
        data = [array.tobytes() for array in tensors.values()]
        answer = self.exchange(b"".join([struct.pack(">I", len(head)), head, *data]))
        at = 4 + int.from_bytes(answer[:4])
        message, found = json.loads(answer[4:at]), dict[str, Array]()
        for each in message["tensors"]:
            dtype, size = np.dtype(each["dtype"]), each["size"]
            array = np.frombuffer(answer, dtype, size // dtype.itemsize, at)
            found[each["name"]] = array.reshape(each["shape"]).copy()  # aligned, and the caller's own
            at += size
        if "error" in message:
            raise RuntimeError(message["error"])
        return message, found

    @abstractmethod
    def exchange(self, message: bytes) -> bytes:
        """The answer to a message. Raises ChildProcessError."""

    def peak_bytes(self) -> int:
        """The peak memory of the process and of those that it started."""
        parents: dict[int, int] = {}
        for status in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
        family = {self._process.pid}
        while more := {pid for pid, parent in parents.items() if parent in family} - family:
            family |= more
        peak_kib = 0
        for pid in family:
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                peak_kib += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
        return peak_kib << 10

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert stream is not None
                stream.close()


class Node(Process):
    """node, which reads messages from stdin and ends with it.

    Args:
        place: The package's folder.
        entry: The module in it to import; "" = as node finds it.
    """

    def __init__(self, place: Path, entry: str = "") -> None:
        node = program(*NODE)
        self.name = f"node {subprocess.run([node, '--version'], capture_output=True, text=True).stdout.strip()}"
        command = [node, str(_SCRIPTS / "node.mjs"), str(place), *([str(place / entry)] if entry else [])]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def exchange(self, message: bytes) -> bytes:
        """As of every process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(struct.pack(">I", len(message)) + message)
            self._process.stdin.flush()
            head = self._process.stdout.read(4)
            answer = self._process.stdout.read(int.from_bytes(head)) if len(head) == 4 else b""
        except OSError as err:
            raise ChildProcessError(f"node ended: {err}") from err
        if not answer:
            raise ChildProcessError(f"node ended with {self._process.wait()}")
        return answer


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: the page was closed while it waited for a message."""


class Chromium(Process):
    """A page in Chromium without a window. Only that page has the address under which this process serves its files.

    The page is isolated from others (by two headers), as threads of WebAssembly want it.

    Args:
        place: The folder of onnxruntime-web.
        entry: The module of it that the page imports.
        files: What the page may read, by name.
        flags: Further arguments of Chromium.
    """

    def __init__(self, place: Path, entry: str, files: Mapping[str, Path], flags: Sequence[str] = ()) -> None:
        self._asked: queue.Queue[bytes] = queue.Queue()
        self._answers: queue.Queue[bytes] = queue.Queue()
        token = secrets.token_urlsafe(16)
        self._server = _Server(("127.0.0.1", 0), self._handler(token, place, dict(files)))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._profile = tempfile.TemporaryDirectory(prefix="attnport-chromium-", ignore_cleanup_errors=True)
        port = self._server.server_address[1]
        command = [
            program(*CHROMIUM),
            "--headless=new",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            "--no-first-run",
            "--disable-extensions",
            "--disable-background-networking",
            "--disable-background-timer-throttling",
            "--disable-renderer-backgrounding",
            "--disable-dev-shm-usage",
            f"--user-data-dir={self._profile.name}",
            "--remote-debugging-pipe",
            *flags,
            f"http://127.0.0.1:{port}/{token}/page.html#dist/{entry}",
        ]
        # Chromium ends when its pipe of commands does, so that it cannot outlive this process. The shell then removes
        # the profile: this process is killed where a runtime takes too long, or after Ctrl-C, and removes nothing.
        script = 'exec 3<&0 4>&1 </dev/null >/dev/null; profile=$1; shift; "$@"; code=$?; rm -rf "$profile"; exit $code'
        self._process = subprocess.Popen(
            ["sh", "-c", script, "sh", self._profile.name, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            agent = self._answer(_START_S).decode()
        except BaseException:
            self.close()
            raise
        self.name = next((word for word in agent.split() if "Chrome" in word), agent).replace("Headless", "")

    def exchange(self, message: bytes) -> bytes:
        """As of every process."""
        self._asked.put(message)
        return self._answer(None)

    def _answer(self, limit_s: float | None) -> bytes:
        waited_s = 0.0
        while True:
            try:
                return self._answers.get(timeout=0.5)
            except queue.Empty:
                waited_s += 0.5
            if self._process.poll() is not None:
                raise ChildProcessError(f"Chromium ended with {self._process.returncode}")
            if limit_s is not None and waited_s > limit_s:
                raise ChildProcessError(f"Chromium did not open its page within {limit_s:.0f} s")

    def _handler(self, token: str, place: Path, files: Mapping[str, Path]) -> type[BaseHTTPRequestHandler]:
        asked, answers = self._asked, self._answers
        kinds = {".mjs": "text/javascript", ".html": "text/html", ".wasm": "application/wasm"}

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:  # the name that http.server calls
                given, _, path = self.path.removeprefix("/").partition("/")
                if given != token:
                    return self._send(404)
                if path == "next":
                    try:
                        return self._send(200, asked.get(timeout=_POLL_S))
                    except queue.Empty:
                        return self._send(204)
                folder, _, name = path.rpartition("/")
                file = files.get(name) if folder == "files" else (place / "dist" if folder else _SCRIPTS) / name
                if folder not in ("", "dist", "files") or file is None or not file.is_file():
                    return self._send(404)
                return self._send(200, file.read_bytes(), kinds.get(file.suffix, "application/octet-stream"))

            def do_POST(self) -> None:  # as above
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == f"/{token}/answer":
                    answers.put(body)
                self._send(204)

            def _send(self, status: int, body: bytes = b"", kind: str = "application/octet-stream") -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cross-Origin-Opener-Policy", "same-origin")
                self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name in http.server
                """Nothing: a request is no event that a user should see."""

        return Handler

    def close(self) -> None:
        """Ends Chromium and the server, and removes its profile."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        super().close()
        self._server.shutdown()
        self._server.server_close()
        self._profile.cleanup()
        until_s = time.monotonic() + _LAST_WRITES_S
        while Path(self._profile.name).exists() and time.monotonic() < until_s:
            time.sleep(0.05)  # processes of Chromium that are being killed still write
            shutil.rmtree(self._profile.name, ignore_errors=True)


class JavaScriptRuntime(Runtime):
    """A runtime that is a package of npm.

    Attributes:
        npm: The package's name.
        provider: The execution provider, as JavaScript names it.
        entry: The module of the package that a page imports.
        flags: What Chromium is told for it.
    """

    opens = "onnx"
    by_name = True
    npm: ClassVar[str]
    provider: ClassVar[str]
    entry: ClassVar[str] = ""
    flags: ClassVar[tuple[str, ...]] = ()

    def version(self) -> str:
        """That of the package."""
        return package(self.npm)[1]

    def depends(self) -> str:
        """The package, and the programs that are there."""
        with contextlib.suppress(MissingDependency):
            return f"{package(self.npm)} {[shutil.which(name) for name in (*NODE, *CHROMIUM)]}"
        return ""

    def able(self) -> dict[str, Any]:
        """Computes on the device on which a tiny model runs."""
        import onnx.parser

        with tempfile.TemporaryDirectory(prefix="attnport-") as scratch:
            path = Path(scratch, "tiny.onnx")
            path.write_bytes(onnx.parser.parse_model(_ort.TINY).SerializeToString())
            try:
                process = self.started({path.name: path})
                try:
                    answer = self.opened(process, path, (), 1)
                    process.ask("run", {"x": np.ones(2, np.float32)}, outputs=["y"])
                finally:
                    process.close()
            except (RuntimeError, ChildProcessError) as err:
                raise UnavailableError(f"{self.npm} does not work here: {err}") from err
        plans = tuple(plan for plan in self.plans if answer["half"] or not PLANS[plan].half)
        return {"devices": (answer["device"] or "CPU",), "plans": plans}

    def started(self, files: Mapping[str, Path]) -> Process:
        """The process, by default a page; it may read `files`, by name. Raises MissingDependency, ChildProcessError."""
        return Chromium(package(self.npm)[0], self.entry, files, self.flags)

    def opened(self, process: Process, path: Path, external: Sequence[str], threads: int) -> Any:
        """What the process answers after it opened a model. Raises RuntimeError, ChildProcessError."""
        return process.ask(
            "open", model=path.name, external=list(external), provider=self.provider, threads=threads, options={}
        )[0]

    def session(self, opening: Opening) -> Session:
        """Opens the form in a process of its own."""
        path, model = checked_model(opening)
        external = external_files(model)
        try:
            process = self.started({name: path.with_name(name) for name in (path.name, *external)})
        except ChildProcessError as err:
            raise UnavailableError(f"{self.npm} does not work here: {err}") from err
        try:
            answer = self.opened(process, path, external, opening.threads or physical_cores())
        except (RuntimeError, ChildProcessError) as err:
            process.close()
            raise ArtifactError(f"{path} cannot be opened by {self.npm}: {err}") from err
        device = answer["device"] or "CPU"
        if PLANS[opening.plan].half and not answer["half"]:
            process.close()
            raise UnavailableError(f"{self.npm} computes no {opening.plan} on {device}, which has no shader-f16.")
        elsewhere = on_processor(model, answer["on_processor"])
        ran = Ran(device, f"{self.npm} {self.version()} {self.provider}, {process.name}{elsewhere}", opening.plan)
        return JavaScriptSession(opening, process, ran, round(answer["ms"] * 1e6))


def on_processor(model: onnx.ModelProto, nodes: Sequence[Sequence[str]]) -> str:
    """`; on the CPU: 6 Attention (the first one's name)`: what a provider for GPUs leaves to the processor.

    Integers and booleans are left out, as sizes and indices are computed there anyway.

    Args:
        model: The file that was opened.
        nodes: Operator and name of each node on the processor. Of those that are not in the file, what the runtime made
            by fusing is told: its operator is not in the file either.
    """
    graph = model.graph
    floats = {
        value.name
        for value in (*graph.input, *graph.value_info, *graph.output)
        if value.type.tensor_type.elem_type in _FLOATS
    }
    others = {node.name for node in graph.node if floats.isdisjoint((*node.input, *node.output))}
    names, operators = {node.name for node in graph.node}, {node.op_type for node in graph.node}
    by_operator: dict[str, list[str]] = {}
    for operator, name in nodes:
        if name not in others and (name in names or operator not in operators):
            by_operator.setdefault(operator, []).append(name)
    told = ", ".join(f"{len(names)} {operator} ({names[0]})" for operator, names in by_operator.items())
    return f"; on the CPU: {told}" if told else ""


class JavaScriptSession(CheckedSession):
    """A session in another process, which times its own calls: what it takes to get there is not part of them.

    Attributes:
        load_ns: How long the model took to open.
        last_ns: How long the last call took.
    """

    def __init__(self, opening: Opening, process: Process, ran: Ran, load_ns: int) -> None:
        super().__init__(opening.io, ran)
        self.load_ns, self.last_ns = load_ns, 0
        self._process, self._names = process, [spec.name for spec in opening.io.outputs]
        self._free_once = weakref.finalize(self, process.close)  # also of a session that nobody closes

    def peak_bytes(self) -> int:
        """The peak memory of the process."""
        return self._process.peak_bytes()

    def _run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        with refused(self.ran.provider, feeds):
            answer, outputs = self._process.ask("run", feeds, outputs=self._names)
        self.last_ns = round(answer["ms"] * 1e6)
        return outputs

    def _free(self) -> None:
        self._free_once()
