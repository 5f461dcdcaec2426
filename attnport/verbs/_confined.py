"""A verb that reads what a stranger sent, in a process of its own: `audit`, and `export`, `inspect` of a file of ONNX.

The process has limits of time and memory, and is killed when one is passed, or when the verb is interrupted: a graph
may have a loop without an end, or ask for more memory than there is. It is no sandbox. The mechanism is that of
`verify` and of isolated runtimes (`processes`).
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import attnport.errors
from attnport.errors import AttnportError, UsageError
from attnport.folder.refusals import as_attnport_error
from attnport.processes.isolated import Died, Limits, memory_limit_bytes
from attnport.processes.worker import GRACE_S, LONGEST_S, Worker, serve
from attnport.runtimes.base import NO_MEMORY

STEP_S, BYTES_PER_S = 120.0, 10e6
"""The time of a step, and what is added for the size of the files: what is large takes long without being an attack."""
_MOST_OF_A_TRACE = 1 << 20
Told = Callable[[str], None]
Work = Callable[[Mapping[str, Any], Mapping[str, Told]], dict[str, Any]]
"""A verb in the process: from the arguments of a request, and what is called with its lines, to its answer."""


def confined(
    verb: str,
    what: str,
    files: Iterable[Path],
    timeout_s: float | None,
    memory_gib: float | None,
    listeners: Mapping[str, Told],
    **arguments: Any,
) -> dict[str, Any]:
    """The answer of a verb to `arguments`, from a process of its own.

    Args:
        verb: The name of its file, which calls `carry_out` as a program.
        what: What is read, for messages.
        files: Those that are read, whose size adds to the default time.
        timeout_s: Seconds for each step, from one line of progress to the next; None = by the size of the files.
        memory_gib: What the process may hold; None = nine tenths of what is free.
        listeners: What is called with a line of `progress` or `tell`.

    Raises:
        UsageError: it took too much time or memory, or the process died.
        AttnportError: what the verb raised.
        RuntimeError: what the verb raised, where that is a bug.
    """
    size = sum(file.stat().st_size for file in files if file.is_file())
    limit_s = STEP_S + size / BYTES_PER_S if timeout_s is None else timeout_s
    limit_bytes = memory_limit_bytes() if memory_gib is None else int(memory_gib * 2**30)
    step = verb

    def listen(kind: str, text: str) -> None:
        nonlocal step
        step = text if kind == "progress" else step
        listeners[kind](text)

    def refusal(why: str) -> UsageError:
        limits = f"{limit_s:g} s for a step" + (f" and {limit_bytes / 2**30:.3g} GiB of memory" if limit_bytes else "")
        return UsageError(
            f"{verb} of {what} was ended in the step {step!r}: {why.rstrip('.')}. Its limits were {limits}.",
            hint="A file can be made to use up a machine. If you know that this one needs more, raise the limits: "
            "--timeout SECONDS, --memory GIB.",
        )

    child = Limits(limit_s, limit_bytes).start(None, ("-m", f"attnport.verbs.{verb}"))
    try:
        answer = child.ask(verb, limit_s, listen, limit_s=limit_s, **arguments)
    except Died as err:
        raise refusal(err.message) from err
    finally:
        child.kill()
    if "raised" not in answer:
        return answer
    error, kind = str(answer["raised"]), getattr(attnport.errors, str(answer["class"]), None)
    if NO_MEMORY.search(error):
        raise refusal(error)
    ours = isinstance(kind, type) and issubclass(kind, AttnportError)
    raised: Exception = kind(error, hint=str(answer["hint"])) if ours and kind else RuntimeError(error)
    raised.add_note(str(answer["traceback"]))
    raise raised


class _Worker(Worker):
    """Carries out one verb."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work
        self._limit_s = LONGEST_S

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request; what a verb raises becomes an answer, with its class."""
        self._limit_s = message["limit_s"]
        self._wind_up()
        try:
            return self._work(message, {"progress": self._progress, "tell": lambda text: self.say("tell", text)})
        except Exception as err:  # whatever the work raises is told by the process that asked
            known = as_attnport_error(err)
            return {
                "raised": known.message if known else f"{type(err).__name__}: {err}",
                "class": type(known).__name__ if known else "",
                "hint": known.hint if known else "",
                "traceback": "".join(traceback.format_exception(err))[-_MOST_OF_A_TRACE:],
            }

    def _progress(self, text: str) -> None:
        self._wind_up()
        self.say("progress", text)

    def _wind_up(self) -> None:
        """Has the kernel end this process after a step that is too long, even if nobody waits for it any more."""
        signal.setitimer(signal.ITIMER_REAL, min(self._limit_s + GRACE_S, LONGEST_S))


def carry_out(work: Work) -> None:
    """What the file of a verb does as a program: it answers `confined`."""
    serve(_Worker(work))
