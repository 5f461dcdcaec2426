"""The request to the builder's process and its result, both sent as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class BuildRequest:
    """A request to the builder's process.

    Attributes:
        module: `tensorrt_rtx` or `tensorrt`, the module with TensorRT's API.
        model: The ONNX form; its external data lies beside it.
        output: Where to write the engine.
        log: Where to write TensorRT's log, a line a message.
        layers: Where to write what the engine's inspector says of its layers, `tensorrt` only; "" = nowhere.
        inputs: Declared dims by input: sizes, and -1 for what is dynamic.
        profiles: For each optimization profile, (min, opt, max) shapes by input.
        sm: Compute capabilities to build for; empty = the builder's default.
    """

    module: str
    model: str
    output: str
    log: str
    inputs: Mapping[str, tuple[int, ...]]
    profiles: tuple[Mapping[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]], ...]
    sm: tuple[int, ...]
    layers: str = ""


@dataclass(frozen=True)
class BuildResult:
    """The result of a build: `error` names a class of `attnport.errors`; it is empty if the engine was written.

    Attributes:
        scratch_bytes: The engine's own number, `tensorrt` only; None = it was not asked, or did not answer.
    """

    error: str = ""
    message: str = ""
    hint: str = ""
    version: str = ""
    scratch_bytes: int | None = None
