"""Traces a module with torch.export, works around obstacles in torch itself, and explains what torch refuses."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import re
import threading
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from attnport.artifacts import IOContract
from attnport.errors import ExportError, first_line

if TYPE_CHECKING:
    import torch

_PATCHED = threading.RLock()
"""Held while torch is changed: two exports at once would undo each other's changes."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps torch's exporter from printing progress, and warnings about its own code."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "torch.fx")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def traceable() -> Iterator[None]:
    """Replaces the parts of torch that prevent tracing, and restores them afterwards.

    - `nn.TransformerEncoder` and `nn.TransformerDecoder` inspect a mask to see whether it is causal, and a trace cannot
      branch on a tensor's elements. A mask is treated as causal only if the caller says so; the numbers are the same.
    - The fast path of `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` is one operator that no exporter knows.
    - torch.export prints the whole graph so far when it fails.

    Other threads that run such modules meanwhile get the same numbers, only more slowly.
    """
    import torch
    from torch.export import _trace
    from torch.nn.modules import transformer

    with _PATCHED:
        fast, detect = torch.backends.mha.get_fastpath_enabled(), transformer._detect_is_causal_mask
        torch.backends.mha.set_fastpath_enabled(False)
        transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: is_causal is True
        vars(_trace)["print"] = lambda *args, **kwargs: None
        try:
            yield
        finally:
            del vars(_trace)["print"]
            transformer._detect_is_causal_mask = detect
            torch.backends.mha.set_fastpath_enabled(fast)


def trace(
    module: torch.nn.Module, contract: IOContract, feeds: dict[str, torch.Tensor]
) -> torch.export.ExportedProgram:
    """Returns the module as a torch graph in which every named dim is dynamic.

    Raises:
        ExportError: torch cannot trace the module, or a dim froze; the message names the dim and its inputs.
    """
    import torch

    try:
        try:
            return _exported(module, contract, feeds)
        except torch._dynamo.exc.UserError as err:
            shorter = _below_the_largest(contract, str(err))
            if shorter == contract:
                raise
            return _exported(module, shorter, feeds)
    except Exception as err:  # torch.export raises whatever the module's own code raises under tracing
        frozen = _frozen_dims(contract, str(err)) if isinstance(err, torch._dynamo.exc.UserError) else ""
        if frozen:
            raise ExportError(
                f"{frozen}.",
                hint="Look for int(x.shape[i]), x.view with a literal size, or Python control flow on a size.",
            ) from err
        raise ExportError(
            f"torch.export cannot trace the module: {type(err).__name__}: {first_line(err)}{_place(err)}",
            hint="Run with --traceback for torch's full message.",
        ) from err


def _exported(
    module: torch.nn.Module, contract: IOContract, feeds: dict[str, torch.Tensor]
) -> torch.export.ExportedProgram:
    import torch

    dims = {dim.name: torch.export.Dim(dim.name, min=dim.min, max=dim.max) for dim in contract.dims}
    dynamic = {
        spec.name: {axis: dims[dim] for axis, dim in enumerate(spec.dims) if isinstance(dim, str)}
        for spec in contract.inputs
    }
    with torch.no_grad(), traceable():
        return torch.export.export(module, (), kwargs=dict(feeds), dynamic_shapes=dynamic, strict=False)


def _below_the_largest(contract: IOContract, refusal: str) -> IOContract:
    """The contract without the largest size of each dim, where torch says that the code branches at that size alone.

    A stored mask or table is sliced to the current length, but not when that length is its own, and torch traces this
    as a branch. The graph for all shorter lengths is right for the largest one too, since a slice may be full length.
    """
    dims = []
    for dim in contract.dims:
        guard = re.search(rf"Not all values of {dim.name} = .*? satisfy the generated guard .* != {dim.max}\b", refusal)
        dims.append(dataclasses.replace(dim, max=dim.max - 1, opt=min(dim.opt, dim.max - 1)) if guard else dim)
    return dataclasses.replace(contract, dims=tuple(dims))


def _frozen_dims(contract: IOContract, refusal: str) -> str:
    """The dims that became constants, as `dim 'seq' of input 'x' (axis 1), ... froze: ...`; "" for another refusal.

    They are read from the message of torch.export. It does not return the refused program, and a program that is traced
    with sizes of torch's choice shows what became a constant, but not what the code branched on.
    """
    violated = re.search(r"Constraints violated \(([^)]*)\)", refusal)
    known = {dim.name for dim in contract.dims}
    frozen = [name.strip() for name in violated[1].split(",") if name.strip() in known] if violated else []
    reasons = []
    for name in frozen:
        places = [f"{spec.name!r} (axis {spec.dims.index(name)})" for spec in contract.inputs if name in spec.dims]
        constant = re.search(rf"You marked {name} as dynamic but your code specialized it .*?\((\d+)\)", refusal)
        guard = re.search(rf"Not all values of {name} = .*? satisfy the generated guard (.*)", refusal)
        why = "the module's code turns it into a constant"
        if constant:
            why = f"the module's code turns it into the constant {constant[1]}"
        elif guard:
            why = f"the module's code branches on it ({guard[1].strip().rstrip('.')})"
        reasons.append(f"dim {name!r} of input {', '.join(places)} froze at the traced size: {why}")
    return "; ".join(reasons)


def _place(err: BaseException) -> str:
    """The last line of code outside torch that was running, as ` (model.py, line 7: y = x.view(n))`, or ""."""
    import torch

    inside = str(Path(torch.__file__).parent)
    frames = [frame for frame in traceback.extract_tb(err.__traceback__) if not frame.filename.startswith(inside)]
    # The first frame is the call in this file.
    last = frames[-1] if len(frames) > 1 else None
    return f" ({Path(last.filename).name}, line {last.lineno}: {last.line})" if last is not None else ""
