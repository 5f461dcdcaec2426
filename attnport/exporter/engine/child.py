"""The builder's own process: `python -m attnport.exporter.engine.child RESULT < REQUEST`.

TensorRT's builder can crash on a graph, or be killed when memory runs out, so it runs in a separate process. The
request is JSON on stdin, and the result is written as JSON to the file RESULT. If that file is missing, the builder
died.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from attnport.errors import AttnportError, EngineBuildError, RuntimeMissing, UnavailableError, UsageError
from attnport.jsonfile import from_json, to_json
from attnport.optional import require
from attnport_bundle.runtimes.cuda import Device

PR_SET_PDEATHSIG = 1
ADDR_NO_RANDOMIZE = 0x0040000
FIXED = "ATTNPORT_BUILDER_ADDRESSES_FIXED"
NOT_WRITTEN = 74
"""The exit status where the log or the result cannot be written: EX_IOERR of sysexits.h."""
UNUSED = "Unused Input: "


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


def _logger(trt: Any, log: IO[str], messages: list[tuple[str, str]]) -> Any:
    """A logger that writes every message to `log` and keeps warnings and errors in `messages`."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            log.write(f"[{severity.name}] {message}\n")
            if severity.name not in ("VERBOSE", "INFO"):
                messages.append((severity.name, message))

    return Logger()


def _errors(messages: list[tuple[str, str]]) -> str:
    """The last three errors that TensorRT logged, without the paths of its source files."""
    texts = [text for level, text in messages if level in ("ERROR", "INTERNAL_ERROR")][-3:]
    return " | ".join(re.sub(r"\s*\bIn \w+ at /_src/\S+\)?", "", text).strip() for text in texts) or "no reason given"


def capabilities(trt: Any) -> dict[int, Any]:
    """The compute capabilities for which the installed TensorRT-RTX can build, by number."""
    names = getattr(getattr(trt, "ComputeCapability", None), "__members__", {})
    by_number = {int(name[2:]): value for name, value in names.items() if re.fullmatch(r"SM\d+", name)}
    return dict(sorted(by_number.items()))


def _check_inputs(network: Any, request: BuildRequest) -> None:
    """Compares the network's inputs with the declared ones: names, ranks and fixed sizes."""
    got = {network.get_input(i).name: tuple(network.get_input(i).shape) for i in range(network.num_inputs)}
    if set(got) != set(request.inputs):
        raise EngineBuildError(
            f"{request.model}: got inputs {', '.join(sorted(got))}; expected {', '.join(sorted(request.inputs))}.",
            hint="The form does not belong to this folder's contract; fuse again.",
        )
    for name, declared in request.inputs.items():
        same_rank = len(got[name]) == len(declared)
        # If a size is fixed on one side only, the engine would refuse shapes, or silently assume one.
        if not same_rank or any(a != b for a, b in zip(got[name], declared, strict=True)):
            raise EngineBuildError(
                f"{request.model}: input {name!r}: got shape {list(got[name])}; expected {list(declared)} "
                "(-1 = dynamic).",
                hint="A dimension froze, or the form does not belong to this folder's contract; export again.",
            )


def _configure(trt: Any, builder: Any, request: BuildRequest) -> Any:
    """The builder's configuration: detailed layer texts, no TF32, the profiles and the targets."""
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    # TF32 is on by default and computes float32 products with 10 bits of mantissa; fp32 excludes it (docs/parity.md).
    if (tf32 := getattr(trt.BuilderFlag, "TF32", None)) is not None:
        config.clear_flag(tf32)
    for shapes in request.profiles:
        profile = builder.create_optimization_profile()
        for name, (low, opt, high) in shapes.items():
            profile.set_shape(name, low, opt, high)
        if config.add_optimization_profile(profile) < 0:
            raise EngineBuildError(f"{request.module} refused the optimization profile {shapes}.")
    if request.sm:
        known = capabilities(trt)
        unknown = [sm for sm in request.sm if sm not in known]
        if unknown:
            listed = f"it builds for {', '.join(map(str, known))}" if known else "it builds for the GPU it runs on"
            raise UsageError(
                f"compute capability {', '.join(map(str, unknown))}: "
                f"{request.module} {trt.__version__} cannot target it; {listed}.",
                hint="Leave --sm out for its default, or name one of these." if known else "Leave --sm out.",
            )
        config.num_compute_capabilities = len(request.sm)
        for index, sm in enumerate(request.sm):
            config.set_compute_capability(known[sm], index)
    return config


def build(request: BuildRequest, log: IO[str]) -> BuildResult:
    """Builds the engine and writes it to `request.output`.

    Raises:
        MissingDependency: the flavour is not installed.
        UnavailableError: it needs a GPU, and there is none.
        UsageError: an unknown compute capability.
        EngineBuildError: TensorRT refused the model, or dropped one of its inputs.
    """
    trt = require(request.module)
    if request.module == "tensorrt":
        try:
            Device()
        except RuntimeMissing as err:
            raise UnavailableError(
                f"tensorrt builds an engine on the GPU that will run it, and no CUDA driver here has one: {err}",
                hint="Build where the GPU is, or use --target tensorrt_rtx, which builds without one.",
            ) from err
    messages: list[tuple[str, str]] = []
    logger = _logger(trt, log, messages)
    builder = trt.Builder(logger)
    # Since 11.0 every network is strongly typed and the flag is optional; older versions need it.
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(1 << int(flag) if flag is not None else 0)
    config = _configure(trt, builder, request)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(request.model):
        problems = [parser.get_error(i) for i in range(parser.num_errors)]
        said = " | ".join(problem.desc() for problem in problems) or _errors(messages)
        places = "".join(f" ({place})" for problem in problems[:1] if (place := _place(request.model, problem)))
        hints = (REMEDIES.get(str(problem.node_operator()), "") for problem in problems)
        raise EngineBuildError(f"{request.module} cannot read {request.model}: {said}{places}", hint=next(hints, ""))
    _check_inputs(network, request)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise EngineBuildError(f"{request.module} cannot build {request.model}: {_errors(messages)}")
    # The parser silently drops an optional operand that it does not know; only the builder warns.
    dropped = [text.removeprefix(UNUSED) for _, text in messages if text.startswith(UNUSED)]
    if dropped and not _read(request.model) & set(dropped):
        raise EngineBuildError(
            f"{request.module} leaves the input {', '.join(dropped)} out of the engine: nothing in the model reads it.",
            hint="Export the model without it: name the others with --input.",
        )
    if dropped:
        raise EngineBuildError(
            f"{request.module} would build an engine that ignores the input {', '.join(dropped)} "
            f"(its log says {UNUSED.strip()!r}), so its outputs would be wrong.",
            hint="Remove the input from the model, or lower the operator that reads it to a form the parser supports.",
        )
    with Path(request.output).open("wb") as file:
        file.write(plan)
    scratch_bytes, layers = _inspected(trt, logger, plan) if request.module == "tensorrt" else (None, "")
    if request.layers and layers:
        Path(request.layers).write_text(layers, encoding="utf-8")
    return BuildResult(version=str(trt.__version__), scratch_bytes=scratch_bytes)


REMEDIES = {
    "NonZero": "NonZero finds the places at which a mask is true, for x[mask], torch.where(mask) and nonzero(): how "
    "many they are depends on values. Write x.masked_fill(mask, value) or torch.where(mask, a, b) in the module, and "
    "export again."
}
"""What to write in the module in place of an operator that TensorRT does not have."""


def _read(model: str) -> set[str]:
    """The names of all values that a node of the graph, or of a branch in it, reads."""
    from attnport.exporter.naming import all_nodes
    from attnport.onnx_graph import ir

    return {str(value.name) for node in all_nodes(ir.load(model)) for value in node.inputs if value is not None}


def _place(model: str, problem: Any) -> str:
    """The node that the parser stopped at, and its module; "" if it names none."""
    import onnx

    from attnport.exporter.naming import SCOPES, path_of

    name, operator = str(problem.node_name()), str(problem.node_operator())
    if not operator:
        return ""
    nodes = {node.name: node for node in onnx.load(model, load_external_data=False).graph.node}
    kept = nodes[name].metadata_props if name in nodes else ()
    path = next((path_of(entry.value) for entry in kept if entry.key == SCOPES), None)
    return f"operator {operator}, node {name}" + (f", module {path}" if path else "")


def _inspected(trt: Any, logger: Any, plan: Any) -> tuple[int | None, str]:
    """The scratch memory of an engine, and its layers as JSON, from the engine itself; None and "" if it does not tell.

    Written after TensorRT's documentation of ICudaEngine and IEngineInspector, and run on pretended ones alone.
    """
    scratch_bytes, layers = None, ""
    with contextlib.suppress(Exception):  # the engine is built; a release that tells less must not fail the build
        engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
        with contextlib.suppress(AttributeError):
            scratch_bytes = int(engine.device_memory_size_v2)
        layers = str(engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON))
    return scratch_bytes, layers


def fix_addresses() -> None:
    """Starts this process again without address randomisation, where the system allows it.

    Two builds of one form can then be compared byte by byte. TensorRT-RTX 1.7.1 numbers symbols by their addresses:
    with randomisation one build in ten differed from the others in the order of two ids; without it forty of forty were
    equal.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "personality") or os.environ.get(FIXED):
        return
    persona = libc.personality(ctypes.c_ulong(0xFFFFFFFF))
    # Containers may forbid the call; the engine is then as good, but its bytes may differ between builds.
    if persona < 0 or persona & ADDR_NO_RANDOMIZE or libc.personality(ctypes.c_ulong(persona | ADDR_NO_RANDOMIZE)) < 0:
        return
    os.execve(sys.executable, sys.orig_argv, {**os.environ, FIXED: "1"})


def main() -> None:
    """Reads the request, builds, writes the result."""
    fix_addresses()
    # If the parent is killed, Linux ends this process too; other systems cannot.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    request = from_json(BuildRequest, sys.stdin.buffer.read(), "the build request")
    try:
        result = _answer(request)
        Path(sys.argv[1]).write_text(to_json(result), encoding="utf-8")
    except OSError:  # for the log or the result; printing would write to the same disk
        sys.exit(NOT_WRITTEN)


def _answer(request: BuildRequest) -> BuildResult:
    with Path(request.log).open("w", buffering=1, encoding="utf-8", errors="replace") as log:
        try:
            return build(request, log)
        except AttnportError as err:
            return BuildResult(error=type(err).__name__, message=err.message, hint=err.hint)
        except OSError as err:
            return BuildResult(error="UsageError", message=f"{request.output} cannot be written: {err.strerror}.")


if __name__ == "__main__":
    main()
