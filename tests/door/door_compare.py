"""Compares a case's module with the graphs that torch.onnx alone and attnport make of it, at ten sizes.

`python tests/door/door_compare.py [NAME ...]` prints a row for each.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import importlib
import inspect
import io
import json
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from door_case import Case, Sizes, cases_of, spec_of
from torch import nn

import attnport
from attnport.artifacts import IOContract
from attnport.verbs.export import export

FILES = tuple(sorted(path.stem for path in Path(__file__).parent.glob("modules_*.py")))
PACKAGE = str(Path(attnport.__file__).parent)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Whether a graph is right at all ten sizes, and else the first reason."""

    right: bool
    reason: str = ""
    seconds: float = 0.0


def all_cases() -> list[Case]:
    """The cases of all files."""
    return [case for file in FILES for case in cases_of(importlib.import_module(file))]


def made(case: Case) -> nn.Module:
    """The module; the seed is for a factory that sets none."""
    torch.manual_seed(0)
    return case.make().eval()


def flat(result: Any) -> list[torch.Tensor]:
    """The tensors of a result, from dicts, dataclasses, tuples and lists; None and numbers are left out."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, Mapping):
        return [tensor for value in result.values() for tensor in flat(value)]
    if dataclasses.is_dataclass(result):
        return [tensor for field in dataclasses.fields(result) for tensor in flat(getattr(result, field.name))]
    if isinstance(result, tuple | list):
        return [tensor for value in result for tensor in flat(value)]
    return []


def torch_alone(case: Case) -> Outcome:
    """What `torch.onnx.export` makes with shapes by hand: named dims, else dims that torch may relate and fix."""
    began, first = time.monotonic(), ""
    for named in (True, False):
        with tempfile.TemporaryDirectory() as folder, quiet():
            path = Path(folder) / "model.onnx"
            try:
                _export_alone(case, path, named=named)
                reason = wrong(case, path)
            except Exception as err:  # whatever the exporter raises
                reason = _told(err)
        if not reason:
            return Outcome(True, "", time.monotonic() - began)
        first = first or reason
    return Outcome(False, first, time.monotonic() - began)


def through_attnport(case: Case) -> Outcome:
    """What `attnport export` makes from the declarations."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, quiet():
        try:
            torch.manual_seed(0)
            manifest = export(
                spec_of(case), Path(folder) / "out", inputs=declared(case), dims=case.dims, with_weights=True
            )
            reason = wrong(case, Path(folder) / "out" / "model.onnx", manifest.io)
        except Exception as err:  # a bug of attnport is an outcome too
            reason = _told(err)
    return Outcome(not reason, reason, time.monotonic() - began)


def declared(case: Case) -> list[str]:
    """The declarations, with the path of a tensor in a structure: `features.0=...` of `features_0=...`."""
    args, kwargs = case.call({spec.name: spec.name for spec in case.specs})
    module = made(case)
    signature = inspect.signature(getattr(module, "_orig_mod", module).forward)
    paths = dict(_paths(signature.bind(*args, **kwargs).arguments, signature))
    return [f"{paths[spec.name]}={text.partition('=')[2]}" for spec, text in zip(case.specs, case.inputs, strict=True)]


def _paths(arguments: Mapping[str, Any], signature: inspect.Signature) -> Iterator[tuple[str, str]]:
    for name, value in arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            yield from _leaves(value, "")
        else:
            yield from _leaves(value, name)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield value, path
        return
    parts: Mapping[Any, Any] = {}
    if isinstance(value, Mapping):
        parts = value
    elif hasattr(value, "_asdict"):
        parts = value._asdict()
    elif dataclasses.is_dataclass(value):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif isinstance(value, tuple | list):
        parts = dict(enumerate(value))
    for key, part in parts.items():
        yield from _leaves(part, f"{path}.{key}" if path else str(key))


def wrong(case: Case, path: Path, contract: IOContract | None = None) -> str:
    """What is wrong with a graph, or with its contract, at the first of the ten sizes at which something is, or ""."""
    module = made(case)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    taken = {value.name for value in session.get_inputs()}
    for sizes in case.sizes:
        feeds = case.feeds(sizes)
        args, kwargs = case.call({name: copy.deepcopy(tensor) for name, tensor in feeds.items()})
        with torch.no_grad():
            expected = flat(module(*args, **kwargs))
        at = ",".join(f"{name}={size}" for name, size in sizes.items())
        arrays = {name: _array(tensor) for name, tensor in feeds.items() if name in taken}
        try:
            got = session.run_with_ort_values(None, {name: _ort_value(array) for name, array in arrays.items()})
        except Exception as err:  # ONNX Runtime's errors have no common type
            return f"at {at} ONNX Runtime raised {str(err)[:300]}"
        problem = _differs(case, [_back(value) for value in got], expected, feeds) or _denied(contract, sizes, expected)
        if problem:
            return f"at {at}: {problem}"
    return ""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what torch's exporter prints and warns."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _export_alone(case: Case, path: Path, *, named: bool) -> None:
    dynamic = {
        spec.name: {
            axis: dim if named and dim.isidentifier() else torch.export.Dim.AUTO
            for axis, dim in enumerate(spec.dims)
            if isinstance(dim, str)
        }
        for spec in case.specs
    }
    names = [spec.name for spec in case.specs]
    args, kwargs = case.call(dict(case.feeds(case.sizes[0])))
    shapes = (case.shapes or case.nest)(dict(dynamic))
    torch.onnx.export(
        made(case), args, str(path), kwargs=kwargs, dynamo=True, dynamic_shapes=shapes, input_names=names, verbose=False
    )


def _differs(case: Case, got: list[Any], expected: list[torch.Tensor], feeds: Mapping[str, torch.Tensor]) -> str:
    if len(got) != len(expected):
        return f"{len(got)} outputs; expected {len(expected)}"
    for number, (array, tensor) in enumerate(zip(got, expected, strict=True)):
        if tuple(array.shape) != tuple(tensor.shape):
            return f"output {number} has shape {tuple(array.shape)}; expected {tuple(tensor.shape)}"
        one, other = np.asarray(array, np.float64), tensor.detach().double().numpy()
        kept = feeds[case.kept].bool().numpy() if case.kept else None
        if kept is not None and other.shape[:2] == kept.shape:
            one, other = one[kept], other[kept]
        finite = np.isfinite(other)
        if not np.array_equal(np.isfinite(one), finite):
            return f"output {number} is finite elsewhere"
        error = float(np.abs(one[finite] - other[finite]).max(initial=0.0))
        largest = float(np.abs(other[finite]).max(initial=0.0))
        if error > case.tolerance * max(largest, 0.1):
            return f"output {number} is off by {error:.2e} of {largest:.2e}"
    return ""


def _denied(contract: IOContract | None, sizes: Sizes, expected: list[torch.Tensor]) -> str:
    """What a contract says of an output that is not so."""
    for spec, tensor in zip(contract.outputs if contract else (), expected, strict=False):
        if spec.shape(sizes) != tuple(tensor.shape):
            return f"the contract says {spec}, {spec.shape(sizes)}; the output has {tuple(tensor.shape)}"
    return ""


def _array(tensor: torch.Tensor) -> Any:
    import ml_dtypes

    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.contiguous().numpy()


def _ort_value(array: Any) -> ort.OrtValue:
    if array.dtype.name == "bfloat16":
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), 16)
    return ort.OrtValue.ortvalue_from_numpy(array)


def _back(value: ort.OrtValue) -> Any:
    if "bfloat16" in value.data_type():
        return torch.utils.dlpack.from_dlpack(value._ortvalue.to_dlpack()).float().numpy()
    return value.numpy()


def _told(err: BaseException) -> str:
    """The error, and the last line of attnport that was running."""
    frames = [frame for frame in traceback.extract_tb(err.__traceback__) if frame.filename.startswith(PACKAGE)]
    place = f" [{Path(frames[-1].filename).relative_to(PACKAGE)}:{frames[-1].lineno}]" if frames else ""
    cause: BaseException = err
    while not frames and cause.__cause__ is not None:
        cause = cause.__cause__
    text = " ".join(str(cause).split())
    return f"{type(cause).__name__}: {text[:600]}{place}"


SIDES = {"attnport": through_attnport, "torch alone": torch_alone}


def main(names: list[str], sides: list[str], results: Path | None) -> None:
    """Compares the named cases, or all, and prints a row for each side; also appends it to a file of JSON lines."""
    for case in all_cases():
        for side in sides if not names or case.name in names else ():
            outcome = SIDES[side](case)
            said = "right" if outcome.right else outcome.reason
            print(f"{case.name:28} {side:12} {outcome.seconds:5.0f} s  {said}", flush=True)
            if results:
                row = {"case": case.name, "side": side, **dataclasses.asdict(outcome)}
                with results.open("a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="cases; without any, all of them")
    parser.add_argument("--side", choices=SIDES, help="one side alone")
    parser.add_argument("--to", type=Path, help="a file to which each result is appended, as a line of JSON")
    given = parser.parse_args()
    main(given.names, [given.side] if given.side else list(SIDES), given.to)
