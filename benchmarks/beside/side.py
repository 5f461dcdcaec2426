"""A side of the comparison: a peer, or one of attnport's forms, in a child process that answers line by line."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import numpy as np
from beside.schedules import Work

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "benchmarks" / "peers"
CACHE = ROOT / ".cache" / "bench"
sys.path.append(str(PEERS / "common"))
LIMIT_S = 600.0
Array = np.ndarray[Any, Any]


class SideFailed(Exception):
    """What a side could not do, in its own words."""


@dataclass(frozen=True)
class Named:
    """Which peer in which variant: `onnxruntime`, `opset 23`; `precision` is fp32, half or int8."""

    peer: str
    variant: str
    precision: str

    def __str__(self) -> str:
        return f"{self.peer} {self.variant}".strip()

    @property
    def ours(self) -> bool:
        """Whether it is one of attnport's forms."""
        return self.peer == "attnport"


def adapter(peer: str) -> ModuleType:
    """The file of a peer; it imports nothing heavy before it is asked to."""
    spec = importlib.util.spec_from_file_location(f"peer_{peer}", PEERS / f"{peer}.py")
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def peers() -> list[str]:
    """All peers: attnport first, and last those that start from another peer's export."""
    names = sorted(path.stem for path in PEERS.glob("[!_]*.py"))
    return sorted(names, key=lambda name: (name != "attnport", hasattr(adapter(name), "FROM")))


def sides_of(peer: str, model: Mapping[str, Any]) -> list[Named]:
    """The variants of a peer for a model."""
    found = adapter(peer)
    variants = found.variants(model) if hasattr(found, "variants") else found.VARIANTS
    return [Named(peer, variant, precision) for variant, precision in variants.items()]


def python_of(environment: str) -> Path:
    """The interpreter of an environment that `make bench-env` made; "" is the project's own."""
    return ROOT / ".cache" / "peers" / environment / "bin" / "python" if environment else Path(sys.executable)


def folder_of(named: Named, model: Mapping[str, Any]) -> Path:
    """Where what a side made of a model is kept."""
    return CACHE / str(model["name"]) / named.peer / (named.variant.replace(" ", "-") or "made")


class Side:
    """One child process. Every method raises `SideFailed` with the child's reason.

    Attributes:
        outputs_ns: How long the run took that made the last outputs.
    """

    outputs_ns = 0

    def __init__(self, named: Named, model: Mapping[str, Any], threads: int) -> None:
        self.named, self._model, self._threads = named, model, threads
        environment = adapter(named.peer).ENVIRONMENT
        python = python_of(environment)
        if not python.exists():
            raise SideFailed(f"its environment {environment} is not there; make it with: make bench-env")
        self._folder = folder_of(named, model)
        log = CACHE / "logs" / f"{model['name']}-{named.peer}-{named.variant.replace(' ', '-')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log: IO[bytes] = log.open("ab")
        self._process = self._started(python)

    def _started(self, python: Path) -> subprocess.Popen[str]:
        threads = str(self._threads)
        found = {
            **os.environ,
            **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads),
            # What waits actively would take the time of the side whose turn it is.
            "OMP_WAIT_POLICY": "PASSIVE",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "TORCHINDUCTOR_CACHE_DIR": str(CACHE / "inductor"),
            "PYTHONPATH": str(ROOT) if python == Path(sys.executable) else "",
        }
        cores = sorted(os.sched_getaffinity(0))[-self._threads :]
        return subprocess.Popen(
            ["taskset", "--cpu-list", ",".join(map(str, cores)), str(python), str(PEERS / "_serve.py"),
             str(PEERS / f"{self.named.peer}.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=found,
        )  # fmt: skip

    def ask(self, do: str, **what: Any) -> dict[str, Any]:
        """Sends one request and waits for its answer."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps({"do": do, **what}) + "\n")
            stdin.flush()
            with selectors.DefaultSelector() as waiting:
                waiting.register(stdout, selectors.EVENT_READ)
                if not waiting.select(LIMIT_S):
                    self.close()
                    raise SideFailed(f"{do} took more than {LIMIT_S:.0f} s")
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.close()
            raise SideFailed(f"its process ended during {do}: exit status {self._process.returncode}")
        told: dict[str, Any] = json.loads(line)
        if "error" in told:
            raise SideFailed(f"{do}: {told['error'].splitlines()[0][:160]}")
        return told

    def make(self) -> None:
        """Converts the model for this side."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self.ask("make", model=self._model, folder=str(self._folder), variant=self.named.variant)
        (self._folder / ".made").touch()

    def open(self) -> None:
        """Opens the model."""
        self.ask("open", model=self._model, folder=str(self._folder), variant=self.named.variant, threads=self._threads)

    def work(self, work: Work, file: Path) -> None:
        """Gives it the batches of a work."""
        self.ask("work", work=work.name, file=str(file), repeats=work.repeats)

    def run(self, work: str, schedule: str) -> int:
        """Nanoseconds of a run, the median where the work is repeated."""
        return int(self.ask("run", work=work, schedule=schedule)["ns"])

    def outputs(self, work: str, schedule: str) -> Array:
        """What it gives, a row an item."""
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "outputs.npz"
            self.outputs_ns = int(self.ask("outputs", work=work, schedule=schedule, file=str(file))["ns"])
            with np.load(file, allow_pickle=False) as stored:
                return np.asarray(stored["output"])

    def embed(self, texts: Path, batch: int, file: Path | None = None) -> int:
        """Nanoseconds from texts to vectors, which go into the file; the batch is the peer's own setting."""
        told = self.ask(
            "embed", model=self._model, folder=str(self._folder), variant=self.named.variant, threads=self._threads,
            texts=str(texts), batch=batch, file=str(file or ""),
        )  # fmt: skip
        return int(told["ns"])

    def decode(self, context: int, batch: int, steps: int) -> tuple[list[int], list[list[int]]]:
        """Nanoseconds of each step, and the token that it gave of each text; the first is a prompt of so many tokens.

        With a context of 0, the texts of the last call go on.
        """
        told = self.ask("decode", model=self._model, folder=str(self._folder), variant=self.named.variant,
                        threads=self._threads, context=context, batch=batch, steps=steps)  # fmt: skip
        return told["ns"], told["tokens"]

    def resident_mb(self) -> float:
        """The most memory of the whole process so far."""
        return float(self.ask("memory")["peak_kb"]) / 1024

    def memory_mb(self) -> float:
        """The most memory so far above the level before opening."""
        told = self.ask("memory")
        return float(told["peak_kb"] - told["base_kb"]) / 1024

    def close(self) -> None:
        """Ends the process."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdout, self._process.stdin, self._log):
            with contextlib.suppress(BrokenPipeError):  # a request that the process did not live to read
                if pipe is not None:
                    pipe.close()


def opened(named: Named, model: Mapping[str, Any], threads: int) -> Side:
    """A side that is ready for works; the conversion has a process of its own, whose memory does not count."""
    if hasattr(adapter(named.peer), "make") and not (folder_of(named, model) / ".made").exists():
        maker = Side(named, model, threads)
        try:
            maker.make()
        finally:
            maker.close()
    side = Side(named, model, threads)
    try:
        side.open()
    except SideFailed:
        side.close()
        raise
    return side
