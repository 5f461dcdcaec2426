"""Changes to the code of other packages, for as long as something runs: one lock, and everything is put back.

torch, onnxscript and transformers have places where nothing but another function helps. Each subject names its changes
as a table, and `patched` makes and undoes them. Two threads would undo each other's, so one holds the lock at a time.
"""

from __future__ import annotations

import contextlib
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
