"""The digests of a module's code and weights, by which later verbs notice changes."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from attnport.errors import SpecError
from attnport.sources.file import is_file_name, module_name
from attnport.sources.onnx_file import is_onnx
from attnport.sources.relevant import relevant

if TYPE_CHECKING:
    from torch import nn


def code_digest(text: str, module: nn.Module) -> str:
    """SHA-256 over the code of a module except torch's: what its classes and its factory depend on in their files.

    Args:
        text: The SPEC, which may name a factory.
    """
    names: dict[str, set[str]] = {}
    if is_onnx(text):
        return hashlib.sha256().hexdigest()  # it has none; what computes it here is no part of the model
    if (factory := _factory(text)) is not None:
        names[factory[0]] = {factory[1]}
    for kind in {base for part in module.modules() for base in type(part).__mro__}:
        if kind.__module__.partition(".")[0] not in ("torch", "builtins"):
            names.setdefault(kind.__module__, set()).add(kind.__qualname__.partition(".")[0])
    sha = hashlib.sha256()
    for name, wanted in sorted(names.items()):
        data = _source(name, wanted)
        sha.update(f"{name} {len(data)}\n".encode() + data)
    return sha.hexdigest()


def _factory(text: str) -> tuple[str, str] | None:
    """The Python module and the name of a SPEC's factory; None if it has none."""
    place, _, name = text.rpartition(":")
    if not place or place in ("hf", "onnx") or place.startswith(("hf:", "onnx:")) or not name.isidentifier():
        return None
    return (module_name(Path(place)) if is_file_name(place) else place), name


def _source(name: str, wanted: Collection[str]) -> bytes:
    """What is now in the file of a Python module that names in it depend on; empty if there is no such file."""
    file = getattr(sys.modules.get(name), "__file__", None)
    try:
        data = Path(file).read_bytes() if file else b""
    except OSError:
        return b""
    # Nobody edits what is installed, and its files are long.
    return data if "site-packages" in str(file) else relevant(data, wanted)


def weights_digest(text: str, module: nn.Module) -> str:
    """SHA-256 over all parameters and buffers, by name, dtype, shape and bytes.

    Buffers that a checkpoint leaves out are not among them: the code makes them, some models at their first long input.

    Raises:
        SpecError: a weight holds NaN; the message names it.
    """
    import torch

    sha = hashlib.sha256()
    made_by_code = {
        f"{path}.{name}" if path else name
        for path, part in module.named_modules()
        for name in part._non_persistent_buffers_set
    }
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, tensor in sorted(tensors.items()):
        data = tensor.detach().cpu().contiguous()
        if data.dtype.is_floating_point and torch.isnan(data).any():
            count = int(torch.isnan(data).sum())
            raise SpecError(
                f"{text}: weight {name} holds {count} NaN of {data.numel()} values.",
                hint="The checkpoint is damaged or its training diverged; use an earlier one.",
            )
        if name in made_by_code:
            continue
        sha.update(f"{name} {data.dtype} {tuple(data.shape)}\n".encode())
        sha.update(data.reshape(-1).view(torch.uint8).numpy().data if data.numel() else b"")
    return sha.hexdigest()
