"""Builds an engine: checks the request, runs the builder in a child process, and checks the result."""

from __future__ import annotations

import math
import re
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from attnport import errors
from attnport.artifacts import UNKNOWN_SIZE, EngineRecord, IOContract, Profile
from attnport.errors import ArtifactError, AttnportError, EngineBuildError, ProfileError, UsageError
from attnport.exporter.engine.child import NOT_WRITTEN, BuildRequest, BuildResult
from attnport.exporter.engine.evidence import read_header
from attnport.exporter.inspect_graph import external_files as files_of
from attnport.jsonfile import digest_file, read, to_json
from attnport.module_path import child_command, child_environment

FLAVOURS = ("tensorrt_rtx", "tensorrt")
MAX_ELEMENTS = 2**31 - 1
"""TensorRT's limit on the elements of one tensor."""
LAST_LINES = 6


def check_profiles(io: IOContract, profiles: Sequence[Profile]) -> tuple[Profile, ...]:
    """Checks the profiles to build, and orders their dims as the contract does.

    TensorRT itself accepts unknown names, and sizes that neither the model nor the memory can take.

    Args:
        profiles: The profiles; without any, one profile covers the model's whole range.

    Raises:
        ProfileError: a dim is unknown, missing or beyond the model's range, a profile is given twice, an input would
            have more elements than TensorRT can count, or nothing tells the size of an output.
    """
    if unknown := [spec for spec in io.outputs if UNKNOWN_SIZE in spec.dims]:
        raise ProfileError(
            f"output {unknown[0]}: nothing tells its size before a call, so that no memory can be kept for it.",
            hint="Return all rows and which of them count, or run the model on ONNX Runtime or OpenVINO.",
        )
    known = {dim.name: dim for dim in io.dims}
    checked: list[Profile] = []
    for profile in profiles or (io.profile(),):
        given = {dim.name: dim for dim in profile.dims}
        if set(given) != set(known) or len(given) != len(profile.dims):
            raise ProfileError(
                f"profile {profile}: got dims {', '.join(dim.name for dim in profile.dims)}; "
                f"the model's are {', '.join(known)}."
            )
        for name, limit in known.items():
            if given[name].min < limit.min or given[name].max > limit.max or given[name].step != limit.step:
                raise ProfileError(f"profile {profile}: got {given[name]}; the model takes {name} from {limit.span}.")
        for spec in io.inputs:
            elements = math.prod(spec.shape(profile.sizes("max")))
            if elements > MAX_ELEMENTS:
                raise ProfileError(
                    f"profile {profile}: input {spec} would have {elements} elements at its largest; "
                    f"TensorRT's limit is {MAX_ELEMENTS}.",
                    hint="Lower the maxima.",
                )
        ordered = Profile(tuple(given[name] for name in known))
        if ordered in checked:
            raise ProfileError(f"profile {profile} is given twice.")
        checked.append(ordered)
    return tuple(checked)


def external_files(model: Path) -> tuple[str, ...]:
    """The names of the files beside an ONNX model that hold its weights, sorted.

    Raises:
        ArtifactError: the model cannot be read, or its weights are missing, cut short or outside its
            folder.
    """
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        proto = onnx.load(model, load_external_data=False)
    except (OSError, DecodeError) as err:
        raise ArtifactError(f"{model} cannot be read as an ONNX model: {err}.") from err
    return files_of(model, proto)


def _command(result: Path) -> list[str]:
    return child_command("-m", "attnport.exporter.engine.child", str(result))


def _run(request: BuildRequest, folder: Path) -> tuple[BuildResult, str]:
    """Runs the builder's process to its end and returns its result and its log.

    Raises:
        EngineBuildError: the process ended without a result; the message has the last lines that it wrote.
        AttnportError: an error that the process itself raised.
    """
    answer, output = folder / "result.json", folder / "output.txt"
    with output.open("wb") as printed:
        child = subprocess.Popen(
            _command(answer), stdin=subprocess.PIPE, stdout=printed, stderr=subprocess.STDOUT, env=child_environment()
        )
        try:
            child.communicate(to_json(request).encode())
        except BaseException:
            child.kill()
            child.wait()
            raise
    log_path = Path(request.log)
    log = log_path.read_text(encoding="utf-8", errors="replace") if log_path.exists() else ""
    if child.returncode == NOT_WRITTEN:
        raise UsageError(
            f"{request.module}'s builder could not write its log or its result to {folder}.",
            hint="Free some space (temporary files go to TMPDIR) and try again.",
        )
    if child.returncode != 0 or not answer.exists():
        lines = [
            line for line in (log + output.read_text(encoding="utf-8", errors="replace")).splitlines() if line.strip()
        ]
        ended = f"exit status {child.returncode}"
        if child.returncode < 0:
            ended = signal.Signals(-child.returncode).name
        raise EngineBuildError(
            f"{request.module}'s builder died ({ended}) while it built {request.model}. Its last lines:\n  "
            + ("\n  ".join(line[:300] for line in lines[-LAST_LINES:]) or "none"),
            hint="Nothing in the builder raises SIGKILL: memory ran out, or somebody ended it. Free some, or build a "
            "smaller profile."
            if child.returncode == -signal.SIGKILL
            else "This graph triggers a fault in the builder.",
        )
    result = read(BuildResult, answer)
    if result.error:
        kind: type[AttnportError] = getattr(errors, result.error)
        raise kind(result.message, hint=result.hint)
    return result, log


def scratch_bytes(log: str) -> int | None:
    """Device memory beside weights, inputs and outputs, from a build log: the most that any profile needs.

    The engine's `device_memory_size_v2` is the same number, but can be read only on a machine with a GPU. None if the
    log does not contain it.
    """
    sizes = re.findall(r"(?:Max Scratch|Total Activation) Memory: (\d+) bytes", log)
    return max(map(int, sizes), default=None)


def _check_written(engine: Path, target: str, version: str, sm: Sequence[int]) -> tuple[int, ...]:
    """Compares the engine's header with the request; the header of the data centre flavour has no known layout.

    Returns:
        The compute capabilities in the header, where the builder chose them.
    """
    if target != "tensorrt_rtx":
        return ()
    header = read_header(engine)
    if header.version != version:
        raise EngineBuildError(f"{engine}: its header says version {header.version}; {target} is {version}.")
    if sm and set(header.sm) != set(sm):
        raise EngineBuildError(f"{engine}: built for {list(header.sm)}; asked for {sorted(set(sm))}.")
    return () if sm else header.sm


def build_engine(
    target: str,
    model: Path,
    io: IOContract,
    output: Path,
    *,
    plan: str = "fp16",
    profiles: Sequence[Profile] = (),
    sm: Sequence[int] = (),
    log: Path | None = None,
    layers: Path | None = None,
) -> EngineRecord:
    """Builds a TensorRT engine from an ONNX form.

    The network is strongly typed: precision comes from the form. `output` is written whole or not at all.

    Args:
        target: The flavour: `tensorrt_rtx` (builds on any machine) or `tensorrt` (needs the GPU it builds for).
        model: The form; its external data lies beside it.
        io: The contract, from which the input shapes of every profile follow.
        output: Where the engine goes; its name becomes the record's `file`.
        plan: The form's precision plan, for the record; `TARGET.PLAN` is the form's key.
        profiles: Optimization profiles; without any, one profile covers the model's whole range.
        sm: Compute capabilities (`86` is 8.6), `tensorrt_rtx` only; empty = the builder's default.
        log: Where to keep TensorRT's log.
        layers: Where to keep what the engine's inspector says of its layers, `tensorrt` only; see `layers`.

    Raises:
        MissingDependency: the flavour is not installed.
        UnavailableError: `tensorrt` without a GPU.
        UsageError: an unknown flavour or compute capability.
        ProfileError: a profile does not fit the model.
        ArtifactError: the form or its weights cannot be read.
        EngineBuildError: the builder refused the form, dropped an input, or died.
    """
    if target not in FLAVOURS:
        raise UsageError(f"target {target!r} is not a TensorRT flavour; expected one of {', '.join(FLAVOURS)}.")
    checked = check_profiles(io, profiles)
    external_files(model)
    partial = output.with_name(output.name + ".partial")
    with tempfile.TemporaryDirectory(prefix="attnport-build-") as temporary:
        request = BuildRequest(
            module=target,
            model=str(model.resolve()),
            output=str(partial.resolve()),
            log=str((log or Path(temporary) / "log.txt").resolve()),
            inputs={spec.name: tuple(-1 if isinstance(dim, str) else dim for dim in spec.dims) for spec in io.inputs},
            profiles=tuple(_shapes(io, profile) for profile in checked),
            sm=tuple(sorted(set(sm))),
            layers=str(layers.resolve()) if layers else "",
        )
        try:
            result, text = _run(request, Path(temporary))
            usual_sm = _check_written(partial, target, result.version, request.sm)
            record = EngineRecord(
                target=target,
                plan=plan,
                file=output.name,
                form=f"{target}.{plan}",
                sm=request.sm,
                profiles=checked,
                version=result.version,
                digest=digest_file(partial),
                size_bytes=partial.stat().st_size,
                scratch_bytes=scratch_bytes(text) if result.scratch_bytes is None else result.scratch_bytes,
                usual_sm=usual_sm,
            )
            partial.replace(output)
        finally:
            partial.unlink(missing_ok=True)
    return record


def _shapes(io: IOContract, profile: Profile) -> Mapping[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """(min, opt, max) shapes by input."""
    low, opt, high = (profile.sizes(which) for which in ("min", "opt", "max"))
    return {spec.name: (spec.shape(low), spec.shape(opt), spec.shape(high)) for spec in io.inputs}
