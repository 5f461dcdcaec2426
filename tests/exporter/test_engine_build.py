"""Building engines: what comes out, what is refused, and what happens when the builder dies."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import onnx
import pytest
from engine_graphs import contract, decomposed, masked_twice, operator, profile
from representatives import representatives

from attnport import optional
from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.errors import (
    ArtifactError,
    EngineBuildError,
    IntegrityError,
    MissingDependency,
    UnavailableError,
    UsageError,
)
from attnport.exporter.engine import build as building
from attnport.exporter.engine import child
from attnport.exporter.engine.build import build_engine, external_files
from attnport.exporter.engine.child import BuildRequest
from attnport.exporter.engine.evidence import read_header
from attnport.exporter.naming import SCOPES
from attnport.jsonfile import digest_file
from attnport_bundle.runtimes import cuda

pytest.importorskip("tensorrt_rtx")

HALF = ("float16", "bfloat16")


@pytest.mark.parametrize("dtype", representatives(HALF, HALF[:1]))
def test_record_describes_the_file(tmp_path: Path, dtype: str) -> None:
    model = decomposed(tmp_path / "m.onnx", dtype)
    record = build_engine("tensorrt_rtx", model, contract(dtype), tmp_path / "e.engine", plan="fp16", sm=(86, 89))
    written = tmp_path / "e.engine"
    header = read_header(written)
    assert record.digest == digest_file(written)
    assert record.size_bytes == written.stat().st_size
    assert record.version == header.version == optional.require("tensorrt_rtx").__version__
    assert record.sm == header.sm == (86, 89)
    assert record.gpus == "86, 89"
    assert record.profiles == (contract(dtype).profile(),)
    assert (record.file, record.form) == ("e.engine", "tensorrt_rtx.fp16")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.engine", "m.onnx"]


@pytest.mark.slow
def test_default_targets_are_in_the_header_and_not_in_the_record(tmp_path: Path) -> None:
    model = decomposed(tmp_path / "m.onnx")
    record = build_engine("tensorrt_rtx", model, contract(), tmp_path / "e.engine")
    assert (record.sm, record.gpus) == ((), "80, 86, 89, 120, 121 and GPUs still to come")
    assert read_header(tmp_path / "e.engine").sm == (80, 86, 89, 120, 121)


NO_RANDOM_ADDRESSES = "import ctypes, sys; sys.exit(ctypes.CDLL(None).personality(0x40000) < 0)"


@pytest.mark.slow
@pytest.mark.skipif(
    subprocess.run([sys.executable, "-c", NO_RANDOM_ADDRESSES], check=False).returncode != 0,
    reason="addresses cannot be fixed here, and the builder's bytes depend on them",
)
def test_same_request_gives_the_same_bytes(tmp_path: Path) -> None:
    model = decomposed(tmp_path / "m.onnx")
    digests = {
        build_engine("tensorrt_rtx", model, contract(), tmp_path / f"{i}.engine", sm=(86,)).digest for i in range(4)
    }
    assert len(digests) == 1


@pytest.mark.slow
def test_scratch_is_the_largest_over_all_profiles(tmp_path: Path) -> None:
    model = decomposed(tmp_path / "m.onnx")
    small, large = profile(seq=(1, 64, 64)), profile(seq=(64, 128, 256))
    one = build_engine("tensorrt_rtx", model, contract(), tmp_path / "1", profiles=(large,))
    two = build_engine("tensorrt_rtx", model, contract(), tmp_path / "2", profiles=(small, large))
    assert two.profiles == (small, large)
    assert two.scratch_bytes == one.scratch_bytes >= 4 * 2 * 256 * 32 * 2
    assert two.size_bytes > one.size_bytes


def test_scratch_of_a_log_that_does_not_tell_is_unknown() -> None:
    assert building.scratch_bytes("[INFO] Max Scratch Memory: 12 bytes\n[INFO] Max Scratch Memory: 7 bytes\n") == 12
    assert building.scratch_bytes("[INFO] Max Scratch: 12 bytes") is None


@pytest.mark.slow
def test_half_and_single_precision_operator_graphs(tmp_path: Path) -> None:
    build_engine("tensorrt_rtx", operator(tmp_path / "h.onnx"), contract(), tmp_path / "h.engine")
    with pytest.raises(EngineBuildError, match="kernel"):
        build_engine(
            "tensorrt_rtx", operator(tmp_path / "s.onnx", "float32"), contract("float32"), tmp_path / "s.engine"
        )
    assert not (tmp_path / "s.engine").exists()


def test_an_operator_without_an_engine_is_named_with_its_place_and_what_to_write(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18]> g (float16[batch, 4] x) => (int64[2, found] y) { y = NonZero(x) }'
    )
    node = model.graph.node[0]
    node.name = "node_nonzero"
    node.metadata_props.add(key=SCOPES, value="['', 'encoder.pool', 'nonzero']")
    onnx.save(model, tmp_path / "m.onnx")
    io = IOContract(
        (TensorSpec("x", "float16", ("batch", 4)),), (TensorSpec("y", "int64", (2, "found")),), (Dim("batch", 1, 2, 4),)
    )
    with pytest.raises(EngineBuildError, match=r"operator NonZero, node node_nonzero, module encoder\.pool") as refused:
        build_engine("tensorrt_rtx", tmp_path / "m.onnx", io, tmp_path / "e.engine")
    assert "masked_fill" in refused.value.hint


@pytest.mark.slow
def test_bf16_for_sm75_is_refused_by_the_builder(tmp_path: Path) -> None:
    model = decomposed(tmp_path / "m.onnx", "bfloat16")
    with pytest.raises(EngineBuildError, match="cannot build"):
        build_engine("tensorrt_rtx", model, contract("bfloat16"), tmp_path / "e.engine", sm=(75,))


def test_single_precision_is_not_left_to_tf32(tmp_path: Path) -> None:
    import tensorrt_rtx as trt

    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    assert builder.create_builder_config().get_flag(trt.BuilderFlag.TF32)  # the installed version's default
    nothing = str(tmp_path / "none")
    config = child._configure(trt, builder, BuildRequest("tensorrt_rtx", nothing, nothing, nothing, {}, (), ()))
    assert not config.get_flag(trt.BuilderFlag.TF32)


def test_unknown_compute_capability_lists_those_of_the_installed_version(tmp_path: Path) -> None:
    model = decomposed(tmp_path / "m.onnx")
    with pytest.raises(UsageError, match=r"capability 90: .*75, 80, 86, 89, 120, 121") as caught:
        build_engine("tensorrt_rtx", model, contract(), tmp_path / "e.engine", sm=(86, 90))
    assert caught.value.exit_code == 2


def test_unused_input_is_an_error_though_the_builder_would_build(tmp_path: Path) -> None:
    model = operator(tmp_path / "m.onnx", opset=24, call="Attention(q, k, v, , , , lengths)")
    with pytest.raises(EngineBuildError, match=r"ignores the input lengths .*'Unused Input:'"):
        build_engine("tensorrt_rtx", model, contract(lengths=True), tmp_path / "e.engine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx"]


def test_an_input_that_the_model_itself_does_not_read_is_said_to_be_one(tmp_path: Path) -> None:
    model = onnx.load(decomposed(tmp_path / "m.onnx"))
    kind = onnx.TensorProto.INT64
    model.graph.input.append(onnx.helper.make_tensor_value_info("longer", kind, ["batch"]))
    onnx.save(model, tmp_path / "m.onnx")
    io = contract(output="attno")
    io = dataclasses.replace(io, inputs=(*io.inputs, TensorSpec("longer", "int64", ("batch",))))
    with pytest.raises(EngineBuildError, match=r"input longer out of .* nothing in the model reads it") as raised:
        build_engine("tensorrt_rtx", tmp_path / "m.onnx", io, tmp_path / "e.engine")
    assert "--input" in raised.value.hint


def test_model_whose_inputs_are_not_the_contracts_is_refused(tmp_path: Path) -> None:
    model = decomposed(tmp_path / "m.onnx")
    short = dataclasses.replace(contract(), inputs=contract().inputs[:3])
    with pytest.raises(EngineBuildError, match=r"got inputs k, mask, q, v; expected k, q, v"):
        build_engine("tensorrt_rtx", model, short, tmp_path / "e.engine")


def test_dimension_that_froze_in_the_model_is_named(tmp_path: Path) -> None:
    model = onnx.load(decomposed(tmp_path / "m.onnx"))
    dim = model.graph.input[0].type.tensor_type.shape.dim[2]
    dim.dim_value = 64
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(EngineBuildError, match=r"input 'q': got shape \[-1, 2, 64, 32\]; expected \[-1, 2, -1, 32\]"):
        build_engine("tensorrt_rtx", tmp_path / "m.onnx", contract(), tmp_path / "e.engine")


def test_half_written_model_is_refused_before_the_builder_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = decomposed(tmp_path / "m.onnx")
    model.write_bytes(model.read_bytes()[:-40])
    monkeypatch.setattr(building, "_run", lambda *_: pytest.fail("the builder was started"))
    with pytest.raises(ArtifactError, match="cannot be read as an ONNX model"):
        build_engine("tensorrt_rtx", model, contract(), tmp_path / "e.engine")


def external(path: Path, location: str) -> Path:
    model = onnx.load(decomposed(path))
    tensor = model.graph.initializer[0]
    tensor.ClearField("int32_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("location", ["../outside.bin", "/etc/hostname", "link.bin", ""])
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (tmp_path / "outside.bin").write_bytes(b"12345678")
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    with pytest.raises(ArtifactError, match="outside the model's folder"):
        external_files(external(folder / "m.onnx", location))


def test_external_data_that_is_missing_is_named_and_that_which_is_there_is_listed_and_used(tmp_path: Path) -> None:
    model = external(tmp_path / "m.onnx", "weights.bin")
    with pytest.raises(ArtifactError, match=r"weights\.bin, which is missing"):
        external_files(model)
    (tmp_path / "weights.bin").write_bytes(b"\x00\x30")
    assert external_files(model) == ("weights.bin",)
    other = build_engine("tensorrt_rtx", model, contract(), tmp_path / "a.engine")
    (tmp_path / "weights.bin").write_bytes(b"\x00\x3c")
    assert build_engine("tensorrt_rtx", model, contract(), tmp_path / "b.engine").digest != other.digest


@pytest.mark.parametrize("target", ["tensorrt-rtx", "openvino"])
def test_unknown_flavour_is_a_usage_error(tmp_path: Path, target: str) -> None:
    with pytest.raises(UsageError, match="expected one of tensorrt_rtx, tensorrt"):
        build_engine(target, tmp_path / "m.onnx", contract(), tmp_path / "e.engine")


@pytest.mark.skipif(find_spec("tensorrt"), reason="tensorrt is installed")
def test_flavour_that_is_not_installed_gives_the_pip_line(tmp_path: Path) -> None:
    with pytest.raises(MissingDependency, match="tensorrt is not installed") as caught:
        build_engine("tensorrt", decomposed(tmp_path / "m.onnx"), contract(), tmp_path / "e.engine")
    assert caught.value.hint == "pip install tensorrt-cu13"


def test_data_centre_flavour_without_a_gpu_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = building.BuildRequest("tensorrt", "", "", "", {}, (), ())
    monkeypatch.setattr(child, "require", lambda _name: object())
    monkeypatch.setattr(cuda, "_LIBRARIES", ("libno_such_driver.so",))
    with (tmp_path / "log").open("w") as log, pytest.raises(UnavailableError, match="no CUDA driver") as caught:
        child.build(request, log)
    assert caught.value.exit_code == 3


def test_module_in_the_current_folder_does_not_pass_for_tensorrt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorrt_rtx.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(tmp_path)
    build_engine("tensorrt_rtx", decomposed(tmp_path / "m.onnx"), contract(), tmp_path / "e.engine")


def pretend(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(building, "_command", lambda result: [sys.executable, "-c", code, str(result)])


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL"])
def test_builder_that_dies_is_an_error_with_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pretend(
        monkeypatch, f"import os,sys,signal; print('fusing layer 7', flush=True); os.kill(os.getpid(), signal.{name})"
    )
    with pytest.raises(EngineBuildError, match=rf"builder died \({name}\)[^$]*fusing layer 7"):
        build_engine("tensorrt_rtx", decomposed(tmp_path / "m.onnx"), contract(), tmp_path / "e.engine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx"]


def test_graph_that_crashes_the_builder_is_an_error_and_not_our_end(tmp_path: Path) -> None:
    with pytest.raises(EngineBuildError, match=r"builder died \(SIG[A-Z]+\)[^$]*Compiler backend"):
        build_engine("tensorrt_rtx", masked_twice(tmp_path / "m.onnx"), contract(), tmp_path / "e.engine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx"]


def test_builder_that_ends_well_and_says_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "pass")
    with pytest.raises(EngineBuildError, match="exit status 0"):
        build_engine("tensorrt_rtx", decomposed(tmp_path / "m.onnx"), contract(), tmp_path / "e.engine")


def test_builder_that_writes_half_an_engine_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = '{"error": "", "message": "", "hint": "", "version": "1.7.1.116"}'
    pretend(
        monkeypatch,
        f"""import sys, json, pathlib
request = json.load(sys.stdin)
pathlib.Path(request["output"]).write_bytes(b"vtrt" + bytes(60))
pathlib.Path(request["log"]).write_text("Max Scratch Memory: 1 bytes")
pathlib.Path(sys.argv[1]).write_text({done!r})""",
    )
    with pytest.raises(IntegrityError, match="cut short"):
        build_engine("tensorrt_rtx", decomposed(tmp_path / "m.onnx"), contract(), tmp_path / "e.engine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx"]


def test_builder_that_cannot_write_its_answer_is_no_fault_of_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's own full disk: no file may grow beyond so many bytes, and the process is told, not killed."""
    command = building._command

    def limited(result: Path) -> list[str]:
        code = (
            "import os, resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
            "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); os.execv(sys.argv[1], sys.argv[1:])"
        )
        return [sys.executable, "-c", code, *command(result)]

    monkeypatch.setattr(building, "_command", limited)
    with pytest.raises(UsageError, match="could not write its log or its result") as caught:
        build_engine("tensorrt_rtx", decomposed(tmp_path / "m.onnx"), contract(), tmp_path / "e.engine")
    assert "TMPDIR" in caught.value.hint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx"]


def test_header_that_is_not_what_was_asked_for_is_found_out(tmp_path: Path) -> None:
    record = build_engine("tensorrt_rtx", decomposed(tmp_path / "m.onnx"), contract(), tmp_path / "e.engine", sm=(86,))
    building._check_written(tmp_path / "e.engine", "tensorrt_rtx", record.version, (86,))
    with pytest.raises(EngineBuildError, match=r"built for \[86\]; asked for \[86, 89\]"):
        building._check_written(tmp_path / "e.engine", "tensorrt_rtx", record.version, (86, 89))
    with pytest.raises(EngineBuildError, match="header says version"):
        building._check_written(tmp_path / "e.engine", "tensorrt_rtx", "9.9.9.9", (86,))


def test_builder_killed_in_the_middle_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = decomposed(tmp_path / "m.onnx", layers=24)
    log = tmp_path / "build.log"
    killed: list[int] = []

    class Killed(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[call-overload]
            threading.Thread(target=self.end).start()

        def end(self) -> None:
            until = time.monotonic() + 60
            while time.monotonic() < until and not (log.exists() and "Parsing node" in log.read_text()):
                time.sleep(0.001)
            os.kill(self.pid, signal.SIGKILL)
            killed.append(self.pid)

    monkeypatch.setattr(building.subprocess, "Popen", Killed)
    with pytest.raises(EngineBuildError, match=r"died \(SIGKILL\)[^$]*\[VERBOSE\]"):
        build_engine("tensorrt_rtx", model, contract(), tmp_path / "e.engine", log=log)
    assert len(killed) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["build.log", "m.onnx"]


def test_interrupt_ends_the_builder_and_leaves_the_earlier_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen):  # type: ignore[type-arg]
        def communicate(self, *_args: object, **_kwargs: object) -> tuple[bytes, bytes]:  # type: ignore[override]
            started.append(self)
            raise KeyboardInterrupt

    (tmp_path / "e.engine").write_bytes(b"the earlier one")
    monkeypatch.setattr(building.subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_engine("tensorrt_rtx", decomposed(tmp_path / "m.onnx"), contract(), tmp_path / "e.engine")
    assert started[0].returncode == -signal.SIGKILL
    started[0].stdin.close()
    assert (tmp_path / "e.engine").read_bytes() == b"the earlier one"


def processes_of(folder: Path) -> list[str]:
    """The processes whose command line names `folder`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            text = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in text:
                found.append(text)
    return found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux ends a child with its parent")
def test_builder_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    model = decomposed(tmp_path / "m.onnx", layers=48)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; import engine_graphs;"
        "from attnport.exporter.engine.build import build_engine; at = Path(sys.argv[2]);"
        "build_engine('tensorrt_rtx', at / 'm.onnx', engine_graphs.contract(), at / 'e', log=at / 'log')"
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    tests = str(Path(__file__).parent.parent)
    parent = subprocess.Popen(
        [sys.executable, "-c", code, tests, str(tmp_path)], env={**os.environ, "TMPDIR": str(temporary)}
    )
    until = time.monotonic() + 60
    while time.monotonic() < until and not ((tmp_path / "log").exists() and (tmp_path / "log").stat().st_size):
        time.sleep(0.005)
    assert processes_of(temporary), "the builder was not running"
    parent.kill()
    parent.wait()
    until = time.monotonic() + 5
    while time.monotonic() < until and processes_of(temporary):
        time.sleep(0.01)
    assert processes_of(temporary) == []
    assert model.exists()
    assert not (tmp_path / "e").exists()
