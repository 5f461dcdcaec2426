"""The user's own code: the line that an error is about, and copies of modules."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from contextvars import ContextVar
from pathlib import Path
from traceback import FrameSummary, extract_tb
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

_OURS = re.compile(rf"{re.escape(str(Path(__file__).parent))}/(?!models/)")
_OTHERS = re.compile(rf"^<|{_OURS.pattern}|-packages/torch/|/lib/python[^/]*/(?!(site|dist)-packages)")
"""Files that are not the user's: torch's, Python's, and this package's without its models."""
ONE_PART: ContextVar[list[str] | None] = ContextVar("one_part", default=None)
"""Collects the lines whose splits by a number are traced as one part; None = not wanted."""


def is_users(file: str) -> bool:
    """Whether code in a file is the user's or another package's: not torch's, Python's or this package's."""
    return not _OTHERS.search(file)


def place_of(frames: Iterable[FrameSummary]) -> str:
    """The user's line of code among those that were running, as ` (model.py, line 7: y = x.view(n))`, or "".

    It is the last one outside torch, Python's own library and this package. Where that is of another package that is
    installed, the line that called it stands behind it: the user's own, or that of a further package. What called this
    package does not count.
    """
    frames = list(frames)
    first = next((at for at, frame in enumerate(frames) if _OURS.search(frame.filename)), -1)
    outside = [frame for frame in frames[first + 1 :] if is_users(frame.filename)]
    if not outside:
        return ""
    last = _package_of(outside[-1])
    callers = [frame for frame in outside if not _package_of(frame)] or [
        frame for frame in outside if _package_of(frame) != last
    ]
    called = f", called in {_line_of(callers[-1])}" if last and callers else ""
    return f" ({_line_of(outside[-1])}{called})"


def _package_of(frame: FrameSummary) -> str:
    """The name of the installed package that a line is of; "" of the user's own code."""
    return frame.filename.partition("-packages/")[2].partition("/")[0]


def raised_in(err: BaseException) -> str:
    """The user's line of code that raised an error, as `place_of`."""
    return place_of(extract_tb(err.__traceback__))


def _line_of(frame: FrameSummary) -> str:
    return f"{Path(frame.filename).name}, line {frame.lineno}" + (f": {frame.line}" if frame.line else "")


def place_in_trace(text: str) -> str:
    """The line in a traceback that was kept as text, as `place_of`."""
    lines = re.findall(r'File "([^"]+)", line (\d+), in (\S+)\n *(.*)', text)
    return place_of(FrameSummary(file, int(line), name, line=code) for file, line, name, code in lines)


def module_path(node: torch.fx.Node) -> str:
    """The path of the module whose forward made the call, as in `named_modules`; "" for the outermost."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [entry[0] if isinstance(entry, tuple) else "" for entry in stack.values()]
    return str(paths[-1]) if paths else ""


def copy_of(module: nn.Module, shared: Iterable[torch.Tensor] = ()) -> nn.Module:
    """A deep copy, which shares what cannot be copied: locks, modules of Python, static methods, open files.

    Args:
        module: Copied with its parts.
        shared: Tensors that the copy has in common with it.

    Raises:
        Exception: whatever its classes raise where it cannot be copied even so.
    """
    kept: dict[int, Any] = {id(tensor): tensor for tensor in shared}
    try:
        return copy.deepcopy(module, dict(kept))
    except Exception:  # classes raise whatever they like from their own __deepcopy__
        for part in module.modules():
            for key, value in vars(part).items():
                try:
                    copy.deepcopy(value, dict(kept)) if key not in ("_parameters", "_buffers", "_modules") else None
                except Exception:  # likewise
                    kept[id(value)] = value
        return copy.deepcopy(module, kept)
