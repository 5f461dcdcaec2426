"""Files of ONNX that somebody could send to `export onnx:` and `audit`: refused in words, within limits."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile_models
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from refusing import call
from representatives import representatives

from attnport.errors import UsageError
from attnport.verbs.audit import audit
from attnport.verbs.export import export
from attnport_bundle.errors import is_printable

ROOT = Path(__file__).parent.parent.parent
HUGE = 2**40
ESCAPES = "n\x1b[31mRED\x1b]0;mine\x07"
COMMAND = "n\n::error file=x::mine"
MEMORY_GIB = 1.5
"""Far below what any of these asks for; PyTorch and its libraries take a third of it."""

Build = Callable[[Path], None]


def constant(name: str, value: Any) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value), name))


def save(
    folder: Path, *nodes: onnx.NodeProto, weights: tuple[TensorProto, ...] = (), sizes: tuple[Any, ...] = ("batch", 4),
    functions: tuple[onnx.FunctionProto, ...] = (),
) -> None:  # fmt: skip
    """A model that makes y of x."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=9)
    (folder / "m.onnx").write_bytes(model.SerializeToString())


def made_large(operator: str, *inputs: str, before: tuple[onnx.NodeProto, ...], **attributes: Any) -> Build:
    """A model with a node that makes a large tensor, which is summed."""
    nodes = (
        *before,
        helper.make_node(operator, list(inputs), ["large"], **attributes),
        helper.make_node("Cast", ["large"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Exp", ["floats"], ["touched"]),
        helper.make_node("ReduceSum", ["touched"], ["sum"], keepdims=0),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    )
    return lambda folder: save(folder, *nodes)


def weight(change: Callable[[TensorProto, Path], None], stored: bytes | None = bytes(64)) -> Build:
    """A model with a weight of 4x4 that `change` fills; beside it `w.bin` with `stored`."""

    def build(folder: Path) -> None:
        tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 4])
        if stored is not None:
            (folder / "w.bin").write_bytes(stored)
        change(tensor, folder)
        save(folder, helper.make_node("MatMul", ["x", "w"], ["y"]), weights=(tensor,))

    return build


def beside(dims: tuple[int, ...] = (4, 4), stored: bytes | None = bytes(64), **entries: Any) -> Build:
    """A model with a weight in another file."""

    def change(tensor: TensorProto, folder: Path) -> None:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.dims[:] = dims
        for key, value in {"location": "w.bin", **entries}.items():
            tensor.external_data.add(key=key, value=str(value))

    return weight(change, stored)


def inside(dims: tuple[int, ...] = (4, 4), **data: Any) -> Build:
    """A model with a weight of its own."""

    def change(tensor: TensorProto, folder: Path) -> None:
        tensor.MergeFrom(TensorProto(**data))
        tensor.dims[:] = dims

    return weight(change, None)


def linked(to: str) -> Build:
    """A model whose file of weights is a link."""

    def build(folder: Path) -> None:
        (folder / "w.bin").symlink_to(to)
        beside(offset=0, length=64, stored=None)(folder)

    return build


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "w.bin")
    beside(offset=0, length=64, stored=None)(folder)


def loop(times: int) -> Build:
    """A model with a Loop."""
    flag, value = helper.make_tensor_value_info, TensorProto
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Neg", ["s"], ["t"])], "body",
        [flag("i", value.INT64, []), flag("c", value.BOOL, []), flag("s", value.FLOAT, None)],
        [flag("d", value.BOOL, []), flag("t", value.FLOAT, None)],
    )  # fmt: skip
    node = helper.make_node("Loop", ["times", "go", "x"], ["y"], body=body)
    return lambda folder: save(folder, constant("times", times), constant("go", True), node)


def calls(*names: str) -> Build:
    """A model with functions, each of which calls the one before twice; of one name, it calls itself."""

    def function(name: str, called: str) -> onnx.FunctionProto:
        nodes = [helper.make_node(called, [a], [b], domain="own") for a, b in ("ac", "cb")]
        return helper.make_function("own", name, ["a"], ["b"], nodes, [helper.make_opsetid("own", 1)])

    pairs = zip(names[1:], names[:-1], strict=True) if len(names) > 1 else [(names[0], names[0])]
    first = helper.make_function(
        "own", names[0], ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], [helper.make_opsetid("", 18)]
    )
    functions = (*((first,) if len(names) > 1 else ()), *(function(*pair) for pair in pairs))
    return lambda folder: save(folder, helper.make_node(names[-1], ["x"], ["y"], domain="own"), functions=functions)


def written(data: bytes) -> Build:
    """A file with these bytes."""
    return lambda folder: (folder / "m.onnx").write_bytes(data) and None


def cut(folder: Path) -> None:
    inside(raw_data=bytes(64))(folder)
    path = folder / "m.onnx"
    path.write_bytes(path.read_bytes()[:-30])


def named(name: str) -> Build:
    return lambda folder: save(folder, helper.make_node("NoSuchOperator", ["x"], ["y"], name=name))


ATTACKS: dict[str, tuple[Build, str]] = {
    "loop_without_end": (loop(2**62), "did not answer in time"),
    "large_constant_of_shape": (made_large("ConstantOfShape", "n", before=(constant("n", [HUGE]),)), "memory"),
    "large_expand": (made_large("Expand", "x", "n", before=(constant("n", [HUGE, 1, 1]),)), "memory"),
    "large_tile": (made_large("Tile", "x", "n", before=(constant("n", [1, HUGE]),)), "memory"),
    "large_range": (
        made_large("Range", "a", "n", "b", before=(constant("a", 0), constant("n", HUGE), constant("b", 1))),
        "memory",
    ),
    "large_pad": (made_large("Pad", "x", "n", before=(constant("n", [0, 0, 0, HUGE]),)), "memory"),
    "large_in_parts": (made_large("ConstantOfShape", "n", before=(constant("n", [2**30]),)), "memory"),
    "large_input": (lambda folder: save(folder, helper.make_node("Neg", ["x"], ["y"]), sizes=(HUGE,)), "memory"),
    "functions_of_a_million_nodes": (calls(*(f"f{number}" for number in range(30))), "more than 1000000 nodes"),
    "function_that_calls_itself": (calls("f"), "call themselves"),
    "functions_nested_deep": (written(hostile_models.nested_ifs(33)), "nested deeper"),
    "shorter_than_its_tensor": (beside(offset=0, length=32), "'w' has 32 bytes in 'w.bin'"),
    "longer_than_its_tensor": (beside(offset=0, length=128, stored=bytes(256)), "'w' has 128 bytes in 'w.bin'"),
    "beyond_the_end": (beside(offset=16, length=64), "'w' cannot be read from 'w.bin'"),
    "offset_below_0": (beside(offset=-16, length=64), "not an offset or length"),
    "weights_absolute": (beside(location="/etc/hostname"), "outside the file's folder"),
    "weights_leave": (beside(location="../w.bin"), "outside the file's folder"),
    "weights_missing": (beside(location="other.bin"), "which is missing"),
    "weights_without_a_place": (beside(location=""), "which is missing"),
    "weights_linked_out": (linked("/etc/hostname"), "outside the file's folder"),
    "weights_are_a_pipe": (pipe, "which is missing"),
    "dims_below_0_beside": (beside((-4, -4), offset=0, length=64), "has dims [-4, -4]"),
    "dims_below_0": (inside((-4, -4), raw_data=bytes(64)), "has dims [-4, -4]"),
    "dims_beyond_what_is_there": (inside((HUGE, HUGE), raw_data=bytes(64)), "is no FLOAT of dims"),
    "fewer_bytes": (inside(raw_data=bytes(32)), "is no FLOAT of dims"),
    "fewer_numbers": (inside(float_data=[1.0] * 3), "is no FLOAT of dims"),
    "cut_short": (cut, "not a readable file of ONNX"),
    "empty": (written(b""), "the file is empty"),
    "random_bytes": (written(bytes(range(256)) * 8), "not a readable file of ONNX"),
    "escape_codes_in_a_name": (named(ESCAPES), "NoSuchOperator"),
    "command_in_a_name": (named(COMMAND), "NoSuchOperator"),
}
QUICK = [
    "loop_without_end",
    "large_in_parts",
    "functions_of_a_million_nodes",
    "shorter_than_its_tensor",
]


def test_there_are_many_attacks() -> None:
    assert len(ATTACKS) + len(list(Path(__file__).parent.glob("*.json"))) >= 300


@pytest.mark.parametrize("name", representatives(list(ATTACKS), QUICK))
def test_export_refuses_the_file_within_its_limits(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    build, says = ATTACKS[name]
    limited = says in ("memory", "did not answer in time")
    if not limited:  # it is refused before it is computed
        request.getfixturevalue("unconfined")
    build(tmp_path)
    began = time.monotonic()
    with pytest.raises(UsageError) as refused:
        export(f"onnx:{tmp_path / 'm.onnx'}", tmp_path / "out", timeout_s=8, memory_gib=MEMORY_GIB)
    assert time.monotonic() - began < 60
    assert says in refused.value.message
    if limited:
        assert "Its limits were 8 s for a step and 1.5 GiB of memory." in refused.value.message
        assert "--timeout SECONDS" in refused.value.hint
        assert "--memory GIB" in refused.value.hint
    assert not (tmp_path / "out" / "model.onnx").exists()


@pytest.mark.parametrize("name", representatives(list(ATTACKS), ["longer_than_its_tensor", "escape_codes_in_a_name"]))
def test_audit_of_the_file_ends_in_words(name: str, tmp_path: Path) -> None:
    ATTACKS[name][0](tmp_path)
    result = call("audit", tmp_path / "m.onnx", "--timeout", 60, "--memory", 2)
    assert result.exit_code in (0, 2, 6), result.output
    assert all(is_printable(line) and not line.strip().startswith("::") for line in result.output.splitlines())


def test_a_loop_that_ends_is_exported(tmp_path: Path) -> None:
    loop(2)(tmp_path)
    assert export(f"onnx:{tmp_path / 'm.onnx'}", tmp_path / "out", memory_gib=MEMORY_GIB).io.outputs


def test_an_audit_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    loop(2)(tmp_path)
    with pytest.raises(UsageError, match=r"audit of .* was ended in the step 'audit': it did not answer in time"):
        audit(tmp_path / "m.onnx", timeout_s=0.01)


def test_the_limits_are_those_of_files_of_onnx(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="self_attention is no onnx: file, so --timeout does not apply"):
        export("self_attention", tmp_path / "out", timeout_s=5)


def working_in(folder: Path) -> list[int]:
    """The processes whose current folder this is."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (path / "cwd").readlink() == folder:
                found.append(int(path.name))
    return found


@pytest.mark.parametrize(
    ("number", "code"), representatives([(signal.SIGINT, 130), (signal.SIGTERM, 143)], [(signal.SIGTERM, 143)])
)
def test_a_signal_ends_an_endless_file_within_two_seconds(number: int, code: int, tmp_path: Path) -> None:
    loop(2**62)(tmp_path)
    verb = subprocess.Popen(
        [sys.executable, "-c", "from attnport.cli import main; main()", "export", "onnx:m.onnx", "-o", "out", "-v"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert verb.stderr is not None
    try:
        while "loading" not in verb.stderr.readline():
            assert verb.poll() is None
        time.sleep(3)
        assert len(working_in(tmp_path)) == 2
        began = time.monotonic()
        verb.send_signal(number)
        assert verb.wait(timeout=60) == code
        assert time.monotonic() - began < 2
        assert not working_in(tmp_path)
        assert "interrupted" in verb.stderr.read()
    finally:
        verb.kill()
        verb.stderr.close()
