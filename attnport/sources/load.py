"""Decides what a SPEC is, loads it, and takes the digests by which a later verb notices that it changed."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attnport.artifacts import ModelSpec
from attnport.errors import AttnportError, SpecError

if TYPE_CHECKING:
    from torch import nn


def load(text: str, *, inputs: Sequence[str] = (), dims: Sequence[str] = ()) -> ModelSpec:
    """Loads the model that `text` names; its module is made once, to take the digests, and kept for the first use.

    Args:
        text: A model's name, `package.module:factory`, `file.py:factory` or `hf:...`.
        inputs: `--input` declarations, for factories that return a plain module.
        dims: `--dim` declarations, such as `seq=1:128:512`.

    Raises:
        SpecError: there is no such thing, it is not a module, or it raised while loading.
        MissingDependency: it needs a package that is not installed.
    """
    try:
        spec = _resolve(text, inputs, dims)
        module = spec.make()
    except AttnportError:
        raise
    except Exception as err:  # whatever the user's own code raises
        raise SpecError(
            f"{text}: loading it raised {type(err).__name__}: {err}", hint="Run with --traceback to see where."
        ) from err
    _check_module(text, module)
    source = dataclasses.replace(
        spec.source,
        text=text,
        inputs=tuple(inputs),
        dims=tuple(dims),
        code_digest=code_digest(module),
        weights_digest=weights_digest(text, module),
    )
    return dataclasses.replace(spec, source=source, make=_made_once(module, spec))


def _resolve(text: str, inputs: Sequence[str], dims: Sequence[str]) -> ModelSpec:
    if text.startswith("hf:"):
        from attnport.sources.hf import load_hf

        return load_hf(text.removeprefix("hf:"), dims)
    place, colon, factory = text.rpartition(":")
    if not colon:
        from attnport.sources.package import load_model

        return load_model(text)
    if place.endswith(".py") or "/" in place:
        from attnport.sources.file import load_file

        return load_file(Path(place), factory, inputs, dims)
    from attnport.sources.package import load_package

    return load_package(place, factory, inputs, dims)


def _check_module(text: str, module: object) -> None:
    import torch

    if not isinstance(module, torch.nn.Module):
        raise SpecError(
            f"{text}: got {type(module).__name__}; expected a torch.nn.Module or a ModelSpec.",
            hint="The factory must return the module itself.",
        )
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.is_meta:
            raise SpecError(f"{text}: parameter {name} has no data (it is on the meta device).")


def _made_once(module: nn.Module, spec: ModelSpec) -> Callable[[], nn.Module]:
    """The module that was made for the digests serves the first `make`; later calls make fresh ones."""
    ready = [module.eval()]

    def make() -> nn.Module:
        return ready.pop() if ready else spec.make().eval()

    return make


def code_digest(module: nn.Module) -> str:
    """SHA-256 over the source of every class of the module that is not torch's own, by qualified name."""
    classes = {type(part) for part in module.modules()}
    sha = hashlib.sha256()
    for name, kind in sorted((f"{kind.__module__}.{kind.__qualname__}", kind) for kind in classes):
        if name.startswith("torch."):
            continue
        try:
            source = inspect.getsource(kind)
        except (OSError, TypeError):
            source = ""  # built at run time: only its name is known
        sha.update(f"{name}\n{source}\n".encode())
    return sha.hexdigest()


def weights_digest(text: str, module: nn.Module) -> str:
    """SHA-256 over all parameters and buffers, by name, dtype, shape and bytes.

    Raises:
        SpecError: a weight holds NaN; names it.
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
