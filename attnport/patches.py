"""Changes to the code of other packages, for as long as something runs: one lock, and everything is put back.

torch, onnxscript and transformers have places where nothing but another function helps. Each subject names its changes
as a table, and `patched` makes and undoes them. Two threads would undo each other's, so one holds the lock at a time.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

_LOCK = threading.RLock()
_ABSENT = object()


class Patch(NamedTuple):
    """One change: the attribute `name` of a module, class or object becomes `value`."""

    owner: Any
    name: str
    value: Any


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """A context that one thread at a time is in, as often as it likes."""
    with _LOCK:
        yield


@contextlib.contextmanager
def patched(*tables: Callable[[], Iterable[Patch]]) -> Iterator[None]:
    """Within it, every change of the tables is made; afterwards, also after an error, nothing is changed any more.

    Args:
        tables: Each gives changes, of what is there when it is called. Of two to one attribute, the later one holds.
    """
    with alone():
        before: list[Patch] = []
        try:
            for table in tables:
                for patch in table():
                    before.append(patch._replace(value=vars(patch.owner).get(patch.name, _ABSENT)))
                    setattr(*patch)
            yield
        finally:
            for owner, name, value in reversed(before):
                if value is not _ABSENT:
                    setattr(owner, name, value)
                elif name in vars(owner):
                    delattr(owner, name)


_Cached = type(functools.lru_cache(len))


def own_scopes(module: Any) -> list[Any]:
    """The Python modules of the packages that the classes of a module's parts are of, but for ours and torch's."""
    packages = {kind.__module__.partition(".")[0] for part in module.modules() for kind in type(part).__mro__}
    packages -= {"attnport", "builtins", "torch", "transformers", "typing"}
    return [scope for name, scope in list(sys.modules.items()) if name.partition(".")[0] in packages]


class Caches:
    """What a module's code keeps between runs, by `functools.lru_cache` and `cache`, and in dicts of its parts.

    A table of positions that was made in a trace or in float64 would be given to the user's next run, and theirs to a
    run in float64.

    Attributes:
        dicts: Those of the parts.
    """

    def __init__(self, module: Any) -> None:
        """Takes a module of torch. All functions of the packages that the classes of its parts are of are looked at."""
        import torch

        own = vars(torch.nn.Module())
        self.dicts = [held for part in module.modules() for name, held in vars(part).items()
                       if type(held) is dict and name not in own]  # fmt: skip
        kinds = {kind for part in module.modules() for kind in type(part).__mro__}
        self._patches: list[Patch] = []
        for owner in (*kinds, *own_scopes(module)):
            for name, held in list(vars(owner).items()) if hasattr(owner, "__dict__") else ():
                function = held.__func__ if isinstance(held, staticmethod) else held
                if isinstance(function, _Cached):
                    plain = function.__wrapped__
                    self._patches.append(Patch(owner, name, staticmethod(plain) if function is not held else plain))

    def patches(self) -> list[Patch]:
        """Patches with which functions keep nothing, and give nothing that was kept."""
        return self._patches

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """A context behind which dicts hold what they held before."""
        before = [dict(held) for held in self.dicts]
        try:
            yield
        finally:
            for held, kept in zip(self.dicts, before, strict=True):
                if held.keys() != kept.keys() or any(held[key] is not value for key, value in kept.items()):
                    held.clear()
                    held.update(kept)

    @contextlib.contextmanager
    def unused(self) -> Iterator[None]:
        """A context for a run that leaves no trace in them."""
        with patched(self.patches) if self._patches else contextlib.nullcontext(), self.restored():
            yield


def forward_as(module: Any, forward: Callable[..., Any]) -> Patch:
    """The patch by which a module's forward is another function, with the signature that it has, by which torch binds.

    Args:
        module: A `torch.nn.Module`; other modules of its class keep their forward.
        forward: What is called instead.
    """
    forward.__signature__ = inspect.signature(module.forward)  # type: ignore[attr-defined]  # torch.export binds by it
    return Patch(module, "forward", forward)


def everywhere(written: Mapping[Callable[..., Any], Callable[..., Any]]) -> Iterator[Patch]:
    """Patches that replace functions wherever they were imported to, but not in the packages that define them.

    Args:
        written: By function, the one in its place.
    """
    replaced = {id(of): new for of, new in written.items()}
    inner = tuple(f"{of.__module__.partition('.')[0]}." for of in written)
    for name, scope in list(sys.modules.items()) if written else ():
        for place, held in list(vars(scope).items()) if hasattr(scope, "__dict__") else ():
            if id(held) in replaced and (not name.startswith(inner) or name == "torch.nn.functional"):
                yield Patch(scope, place, replaced[id(held)])
