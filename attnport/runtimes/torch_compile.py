"""torch.compile on CPU: the whole module compiled by inductor, without falling back to the module itself."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from platform import platform
from typing import TYPE_CHECKING, Any, ClassVar

from attnport.artifacts import IOContract, Session
from attnport.errors import AttnportError, UnavailableError, first_line, whole_cause
from attnport.jsonfile import digest_text
from attnport.runtimes.base import Opening, Runtime, usual_feeds
from attnport.runtimes.torch_eager import TorchSession, cast, module_of
from attnport.user_cache import cache

if TYPE_CHECKING:
    import torch

MOST_GRAPHS = 64
_GPP = "inductor compiles C++ for the CPU: install g++ (apt-get install g++), or name another compiler in CXX."


class Compiled(Runtime):
    """What is compiled by inductor as one graph."""

    opens = "module"
    package = "torch"
    plans = ("fp32", "fp16", "bf16")
    fragile = True
    by_name = True
    distributions: ClassVar[tuple[str, ...]] = ("torch", "triton*", "pytorch-triton*")


class TorchCompile(Compiled):
    """Compiles with dynamic shapes: one graph for all sizes from 2 up, and one for each combination with a size 1."""

    name = "torch_compile"

    def able(self) -> dict[str, Any]:
        """Computes on the CPU, if a tiny function compiles."""
        if problem := _why_not():
            raise UnavailableError(problem[0], hint=problem[1])
        return {}

    def session(self, opening: Opening) -> Session:
        """Makes the module, casts it to the plan and compiles it, by running it once at its usual sizes."""
        import torch

        module, dtype = module_of(opening)
        call = CompiledCall(module if dtype == torch.float32 else cast(module, dtype), fast_path=not opening.contract)
        return run_once(TorchSession(opening, dtype, call, " inductor"), opening.io)


@functools.cache
def _why_not() -> tuple[str, str] | None:
    """Why nothing compiles in this process, and a hint; None if compiling works.

    Trying takes 6 s, so a success is kept in this user's cache for each compiler and release of PyTorch. If the
    compiler stops working later, opening the module reports it.
    """
    kept, name = cache(), _entry()
    if kept is not None and name and kept.read(name) is not None:
        return None
    problem = _tried_compiling()
    if problem is None and kept is not None and name:
        kept.write(name, b"a tiny function was compiled\n")
    return problem


def _entry() -> str:
    """The name of the cache entry for this PyTorch and its C++ compiler; "" where there is no compiler."""
    import torch

    found = shutil.which(os.environ.get("CXX") or "g++")
    if found is None:
        return ""
    state = Path(found).resolve().stat()
    told = f"{torch.__version__} {sys.version} {platform()} {found} {state.st_size} {state.st_mtime_ns}"
    return f"torch-compile.{digest_text(told)[:12]}"


def _tried_compiling() -> tuple[str, str] | None:
    try:
        with quiet():
            from torch._inductor.cpp_builder import get_cpp_compiler
            from torch._inductor.exc import InvalidCxxCompiler
    except Exception as err:  # a half-installed wheel fails anywhere
        return f"inductor does not work: {first_line(err)}", ""
    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "no C++ compiler was found.", _GPP
    problem = cannot_compile("cpu")
    return (problem, _GPP) if problem else None


@functools.cache
def cannot_compile(kind: str) -> str:
    """Why nothing compiles for a kind of device in this process; "" if compiling works."""
    import torch

    try:
        with torch.inference_mode(), quiet():
            torch.compile(torch.nn.ReLU(), dynamic=True, fullgraph=True)(torch.ones(2, 3, device=kind))
    except Exception as err:  # the exceptions of compilers share no base
        cause = getattr(err, "inner_exception", err)
        return f"inductor cannot compile here: {type(cause).__name__}: {whole_cause(cause)}"
    return ""


@dataclass
class _Runs:
    """How often compiled code ran."""

    number: int = 0


def _counted(runs: _Runs, graph: torch.fx.GraphModule, examples: Any) -> Any:
    """Compiles a graph with inductor; the result counts its runs in `runs`."""
    from torch._inductor.compile_fx import compile_fx

    compiled: Any = compile_fx(graph, examples)

    def counted(*args: Any) -> Any:
        runs.number += 1
        return compiled(*args)

    return counted


class CompiledCall:
    """A module compiled by inductor for any size. Every call checks that the compiled code ran.

    Args:
        fast_path: Whether nn.TransformerEncoderLayer may use its fused path, which gives padded rows another shape.
    """

    def __init__(self, module: torch.nn.Module, *, fast_path: bool) -> None:
        import torch

        take_many_graphs()
        self._fast_path = fast_path
        self._runs = _Runs()
        # PyTorch keeps every backend forever, so this one must not refer to the module.
        backend = functools.partial(_counted, self._runs)
        self.compiled: Any = torch.compile(own_code(module), backend=backend, dynamic=True, fullgraph=True)

    def __call__(self, tensors: dict[str, torch.Tensor]) -> Any:
        """What the module returns for inputs by name.

        Raises:
            UnavailableError: PyTorch did not run the compiled code exactly once.
        """
        import torch

        before = self._runs.number
        with torch.inference_mode(), _fast_path(self._fast_path):
            result = self.compiled(**tensors)
        if self._runs.number != before + 1:
            raise UnavailableError("PyTorch ran the module itself instead of the compiled code.")
        return result


def take_many_graphs() -> None:
    """Lets a module have more graphs than PyTorch's 8, beyond which a call of a further size is an error.

    With several dims, each combination of sizes of 1 has a graph, and on a GPU some alignments have one more.
    """
    from torch._dynamo import config

    config.recompile_limit = max(config.recompile_limit, MOST_GRAPHS)


def run_once(session: TorchSession, io: IOContract) -> TorchSession:
    """Compiles by a run at the contract's usual sizes. Raises UnavailableError if the module is not one graph."""
    try:
        with quiet():
            session.run(usual_feeds(io))
    except AttnportError as err:
        raise UnavailableError(
            f"the module does not compile as one graph: {err.message}",
            hint="torch_eager can run it; the message says what the compiler does not support.",
        ) from err
    return session


@contextlib.contextmanager
def _fast_path(allowed: bool) -> Iterator[None]:
    """Turns off the fused path of nn.MultiheadAttention and nn.TransformerEncoderLayer unless it is allowed."""
    import torch

    previous = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(previous and allowed)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(previous)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppresses warnings: PyTorch warns about its own code while it compiles."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def own_code(module: torch.nn.Module) -> Any:
    """A function that calls the module, with a code object of its own.

    PyTorch keeps compiled graphs by code object. Without this, those of all modules of a class would count towards one
    limit, beyond which nothing compiles, and would live as long as the class.
    """

    def call(**tensors: Any) -> Any:
        return module(**tensors)

    call.__code__ = call.__code__.replace()
    return call


RUNTIME = TorchCompile()
