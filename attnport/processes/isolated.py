"""A session in a process of its own: what happens to the runtime there does not happen to whoever asks.

Arrays go through files in a temporary folder, everything else through the worker's frames.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnport.artifacts import Capabilities, Manifest, Ran
from attnport.errors import AttnportError, UsageError
from attnport.folder.openings import file_of
from attnport.jsonfile import from_json
from attnport.processes.child import Child, Died
from attnport.processes.form_cache import read_forms, write_forms
from attnport.processes.worker import load_outputs, save_feeds
from attnport.runtimes._attention_forms import tried
from attnport.runtimes.base import Opening, Runtime, physical_cores

if TYPE_CHECKING:
    import numpy as np

TIMEOUT_S = 600.0
_SHARE = 0.9
"""Of the memory that is free when a session is opened, what it may take: the rest is for whoever asks."""


@dataclass(frozen=True)
class Limits:
    """What a process may use.

    Attributes:
        timeout_s: Seconds for each answer: opening, one call.
        memory_bytes: The memory it may hold; None = nine tenths of what is free when it is started.
        every: Whether runtimes that share the caller's process by default get their own too.
    """

    timeout_s: float = TIMEOUT_S
    memory_bytes: int | None = None
    every: bool = False

    def start(self, threads: int | None) -> Child:
        """A worker under these limits."""
        limit = self.memory_bytes if self.memory_bytes is not None else memory_limit_bytes()
        return Child(threads or physical_cores(), memory_bytes=limit)


class IsolatedSession:
    """A `Session` whose runtime lives in a process of its own.

    Attributes:
        ran: What really runs there, as the runtime itself told.
    """

    def __init__(
        self, runtime: Runtime, opening: Opening, folder: Path, manifest: Manifest, limits: Limits = Limits()
    ) -> None:
        """Starts the process and opens the model in it.

        Args:
            opening: Of this folder, see `openings`; the process loads the module by itself.

        Raises:
            Died: it crashed, hung or had no memory left; with its last lines.
            AttnportError: what the runtime raised while opening.
        """
        keys = [key for key, record in manifest.engines.items() if record == opening.engine]
        self._timeout_s = limits.timeout_s
        self._scratch: Any = None
        self._child = limits.start(opening.threads)
        try:
            answer = self._child.ask(
                "open",
                self._timeout_s,
                folder=str(folder.resolve()),
                runtime=runtime.name,
                plan=opening.plan,
                model=file_of(opening, folder),
                engine=keys[0] if keys else None,
                threads=opening.threads,
                contract=opening.contract,
                form=opening.form,
            )
            self.ran = Ran(**answer["ran"])
            self._scratch = tempfile.TemporaryDirectory(prefix="attnport-session-")
        except BaseException:
            self._child.kill()
            raise

    def run(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Outputs by name, in contract order.

        Raises:
            Died: the process crashed, hung or had no memory left; every later call says so again.
            AttnportError: what the runtime raised.
            UsageError: the session is closed.
        """
        if self._scratch is None:
            raise UsageError("the session is closed.", hint="Open the model again.")
        given, made = (Path(self._scratch.name, name) for name in ("feeds.npz", "outputs.npz"))
        save_feeds(given, feeds)
        answer = self._child.ask("call", self._timeout_s, feeds=str(given), outputs=str(made))
        return load_outputs(made, answer["named"])

    def close(self) -> None:
        """Ends the process; closing twice is fine."""
        if self._scratch is None:
            return
        try:
            if self._child.alive:
                self._child.ask("close", min(self._timeout_s, 30.0))
        except AttnportError:
            pass  # what it was asked for is done: it is gone
        finally:
            self._child.kill()
            self._scratch.cleanup()
            self._scratch = None


def probe(runtime: Runtime, limits: Limits = Limits(), *, forms: bool = False) -> Capabilities:
    """A runtime's probe, in a process of its own where the runtime is one that gets it.

    Args:
        forms: Also try every attention form (`runtimes._attention_forms`), or take what this release answered before.

    Returns:
        What the probe found; not available, with the last lines, where it crashed, hung or broke.
    """
    if not runtime.isolated and not limits.every:
        try:
            found = runtime.probe()
            asked = forms and runtime.opens == "onnx"
            return _with_forms(found, lambda: tried(runtime, found.plans)) if asked else found
        except Exception as err:  # a probe should not raise, but whoever asks may have something broken
            return Capabilities(runtime.name, False, f"its probe failed with {type(err).__name__}: {err}")
    child = limits.start(1)

    def ask(**fields: Any) -> dict[str, Any]:
        return child.ask("probe", limits.timeout_s, runtime=runtime.name, **fields)

    try:
        found = from_json(Capabilities, json.dumps(ask()["found"]), "the probe's answer")
        return _with_forms(found, lambda: ask(forms=True)["forms"]) if forms and runtime.opens == "onnx" else found
    except Died as err:
        return Capabilities(runtime.name, False, f"its probe failed: {err.message}")
    except AttnportError as err:
        return Capabilities(runtime.name, False, f"its probe failed with {err.message}", err.hint)
    finally:
        child.kill()


def probe_all(
    runtimes: Sequence[Runtime], limits: Limits = Limits(), *, forms: bool = False
) -> dict[str, Capabilities]:
    """The probes of several runtimes by name, as many at a time as there are cores."""
    with ThreadPoolExecutor(max_workers=physical_cores()) as pool:
        found = pool.map(lambda runtime: probe(runtime, limits, forms=forms), runtimes)
        return {runtime.name: one for runtime, one in zip(runtimes, found, strict=True)}


def unavailable(found: Capabilities) -> str:
    """Why a runtime cannot be used here, and what brings it."""
    return f"{found.reason.rstrip('.')}; {found.hint}" if found.hint else found.reason.rstrip(".")


_FAILED, _NO_MEMORY = "its process failed: ", "no memory is left: "


def reason_of_failure(err: AttnportError | MemoryError) -> str:
    """Why there is nothing of a runtime whose process died, hung, or had no memory left."""
    return f"{_FAILED}{err.message}" if isinstance(err, AttnportError) else f"{_NO_MEMORY}{err}"


def process_failed(reason: str) -> bool:
    """Whether a row says that a process failed, which may be otherwise the next time: nothing to be kept as done."""
    return reason.startswith((_FAILED, _NO_MEMORY))


def _with_forms(found: Capabilities, ask: Callable[[], dict[str, str]]) -> Capabilities:
    if not found.available:
        return found
    forms = read_forms(found)
    if forms is None:
        write_forms(found, forms := ask())
    return replace(found, attention_forms=forms)


def memory_limit_bytes() -> int | None:
    """What a process that is started now may take; None where it is not known what is free."""
    return int(free_memory_bytes() * _SHARE) or None


def free_memory_bytes() -> int:
    """What may still be taken here: of the machine, or of its control group where that has less. 0 = not known."""
    found = []
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) << 10)
    limit, used = (_text(f"/sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current"))
    if limit.isdigit() and used.isdigit():
        found.append(max(0, int(limit) - int(used)))
    return min(found, default=0)


def _text(path: str) -> str:
    return Path(path).read_text() if Path(path).is_file() else ""
