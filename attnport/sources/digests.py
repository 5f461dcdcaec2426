"""The digests of a module's code and weights, by which later verbs notice changes."""

from __future__ import annotations

import hashlib
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from attnport.errors import SpecError

if TYPE_CHECKING:
    from torch import nn


def code_digest(module: nn.Module) -> str:
    """SHA-256 over the source files of all classes of the module, except those of torch, by Python module name.

    Whole files are digested, since functions beside a class are part of what the module computes.
    """
    files: dict[str, bytes] = {}
    for kind in {type(part) for part in module.modules()}:
        name = kind.__module__
        if name == "torch" or name.startswith("torch."):
            continue
        files[name] = _source(kind)
    sha = hashlib.sha256()
    for name, data in sorted(files.items()):
        sha.update(f"{name} {len(data)}\n".encode() + data)
    return sha.hexdigest()


def _source(kind: type) -> bytes:
    """The current contents of the file with a class; empty for a class that was made at run time."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    try:
        return Path(file or inspect.getfile(kind)).read_bytes()
    except (OSError, TypeError):
        return b""


def weights_digest(text: str, module: nn.Module) -> str:
    """SHA-256 over all parameters and buffers, by name, dtype, shape and bytes.

    Raises:
        SpecError: a weight holds NaN; the message names it.
    """
    import torch

    sha = hashlib.sha256()
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, tensor in sorted(tensors.items()):
        data = tensor.detach().cpu().contiguous()
        if data.dtype.is_floating_point and torch.isnan(data).any():
            count = int(torch.isnan(data).sum())
            raise SpecError(
                f"{text}: weight {name} holds {count} NaN of {data.numel()} values.",
                hint="The checkpoint is damaged or its training diverged; use an earlier one.",
            )
        sha.update(f"{name} {data.dtype} {tuple(data.shape)}\n".encode())
        sha.update(data.reshape(-1).view(torch.uint8).numpy().data if data.numel() else b"")
    return sha.hexdigest()
