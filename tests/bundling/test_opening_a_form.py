"""What a model file says of itself against what the manifest says of it, before and after its runtime opens it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from bundle_forms import manifest, seal
from pretended_gpu import HostDevice

from attnport_bundle import BundleError, IntegrityError, RuntimeMissing, load
from attnport_bundle.errors import is_printable
from attnport_bundle.feeds import from_file, to_file
from attnport_bundle.runtimes import cuda as reader_cuda
from attnport_bundle.runtimes import release
from attnport_bundle.runtimes.onnxruntime import OnnxRuntimeSession


def renamed_output(found: dict[str, Any]) -> None:
    found["io"]["outputs"][1]["name"] = "polled"
    found["forms"]["ort_cpu"]["dtypes"]["polled"] = found["forms"]["ort_cpu"]["dtypes"].pop("pooled")
    for bound in found["goldens"]["bounds"]:
        bound["output"] = bound["output"].replace("pooled", "polled")
    for result in found["forms"]["ort_cpu"]["parity"]["results"]:
        result["output"] = result["output"].replace("pooled", "polled")


def other_dtype(found: dict[str, Any]) -> None:
    found["forms"]["ort_cpu"]["dtypes"]["pooled"] = "float16"


def other_rank(found: dict[str, Any]) -> None:
    found["io"]["outputs"][1]["dims"].append(1)


def other_size(found: dict[str, Any]) -> None:
    found["io"]["outputs"][1]["dims"][1] = 9


def ranged_size(found: dict[str, Any]) -> None:
    found["io"]["dims"].append({"name": "wide", "min": 1, "opt": 8, "max": 8, "step": 1})
    found["io"]["outputs"][1]["dims"][1] = "wide"


LIES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "name": (renamed_output, "has the outputs hidden, pooled; the manifest says hidden, polled"),
    "dtype": (other_dtype, "'pooled' is float32; the manifest says float16"),
    "rank": (other_rank, "'pooled' has rank 2; the manifest says"),
    "size": (other_size, "'pooled' has size 8 on axis 1; the manifest says"),
    "range": (ranged_size, "'pooled' has size 8 on axis 1; the manifest says"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_contract_that_is_not_the_files_is_found_at_open(app: Path, lie: str) -> None:
    change, words = LIES[lie]
    found = manifest(app)
    change(found)
    seal(app, found)
    with pytest.raises(IntegrityError, match=words) as caught:
        load(app)
    assert caught.value.exit_code == 6


@pytest.mark.parametrize("data", [b"", b"\xff", b"no model", b"\x08\x0a"])
def test_a_file_that_is_no_model_is_refused(app: Path, data: bytes) -> None:
    found = manifest(app)
    (app / found["forms"]["ort_cpu"]["file"]).write_bytes(data)
    seal(app, found)
    with pytest.raises(BundleError, match=r"\.onnx"):
        load(app)


def test_releases_compare_by_their_numbers() -> None:
    assert release("1.31.1") > release("1.28") > release("1.9.9")
    assert release("2026.4.1-22981-abc") == (2026, 4, 1)
    assert release("1.31.0.dev20260101+cpu") == (1, 31, 0)


def test_every_bfloat16_is_read_as_the_number_that_it_is() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    wanted = bits.view(ml_dtypes.bfloat16).astype(np.float32)
    found = from_file(bits, "bfloat16", "float32")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, wanted)
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(to_file(wanted, "bfloat16")[finite], bits[finite])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_floats_round_to_bfloat16_as_elsewhere(dtype: str) -> None:
    random = np.random.default_rng(0)
    some = random.integers(0, 1 << 32, 200_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        array = np.concatenate([some, [0.0, -0.0, np.inf, -np.inf, 3.4e38, 1e-45]]).astype(dtype)
        wanted = array.astype(np.float32).astype(ml_dtypes.bfloat16)
    found = to_file(array, "bfloat16").view(ml_dtypes.bfloat16)
    numbers = ~np.isnan(wanted.astype(np.float32))
    np.testing.assert_array_equal(found[numbers].view(np.uint16), wanted[numbers].view(np.uint16))
    assert np.isnan(found[~numbers].astype(np.float32)).all()


def test_a_form_in_half_precision_gives_the_contracts_dtype(app: Path) -> None:
    """Outputs are cast by a node behind them, so the file gives float16 and the contract says float32."""
    found = manifest(app)
    form = found["forms"]["ort_cpu"]
    model = onnx.load(app / form["file"], load_external_data=False)
    for output in model.graph.output:
        inner = f"{output.name}_wide"
        for node in model.graph.node:
            node.output[:] = [inner if name == output.name else name for name in node.output]
            node.input[:] = [inner if name == output.name else name for name in node.input]
        model.graph.node.append(onnx.helper.make_node("Cast", [inner], [output.name], to=onnx.TensorProto.FLOAT16))
        output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
        form["dtypes"][output.name] = "float16"
    onnx.save(model, app / form["file"])
    seal(app, found)
    feeds = {"ids": np.ones((1, 3), np.int64), "attention_mask": np.ones((1, 3), np.int64)}
    with load(app) as opened:
        narrow = opened.run_device(feeds)["hidden"].numpy()
        wide = opened.run(**feeds)["hidden"]
    assert (narrow.dtype, wide.dtype) == (np.float16, np.float32)
    np.testing.assert_array_equal(narrow.astype(np.float32), wide)


def test_onnx_runtimes_own_format_is_not_opened(tmp_path: Path) -> None:
    """It would be picked by the file's name, and nothing has looked into such a file."""

    class Form:
        provider = "CPUExecutionProvider"

    text = '<ir_version: 10, opset_import: ["" : 18]> g (float[n] x) => (float[n] y) {y = Relu(x)}'
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "model.ort")
    onnxruntime.InferenceSession(onnx.parser.parse_model(text).SerializeToString(), options)
    assert (tmp_path / "model.ort").read_bytes()[4:8] == b"ORTM"
    onnxruntime.InferenceSession(tmp_path / "model.ort")  # left alone, it is
    with pytest.raises(BundleError, match="cannot be opened"):
        OnnxRuntimeSession(onnxruntime, tmp_path / "model.ort", Form, 1)  # all that it reads


def test_a_runtimes_own_words_are_escaped_and_it_prints_none(app: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = manifest(app)
    path = app / found["forms"]["ort_cpu"]["file"]
    whole = path.read_bytes()
    for operator, words in ((b"\x1b[2Jab", r"No Op registered for \x1b[2Jab"), (b"\xff\x1b[2Ja", "codec can't decode")):
        path.write_bytes(whole.replace(b"\x06Gather", b"\x06" + operator))
        seal(app, found)
        with pytest.raises(BundleError, match=re.escape(words)) as caught:
            load(app)
        assert is_printable(str(caught.value))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("RuntimeException", RuntimeMissing, r"CUDAExecutionProvider does not start here: no\x1b device"),
        ("InvalidGraph", BundleError, r"cannot be opened: no\x1b device"),
    ],
)
def test_a_provider_that_does_not_start_is_no_fault_of_the_file(
    tmp_path: Path, name: str, error: type[BundleError], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Form:
        provider = "CUDAExecutionProvider"

    monkeypatch.setattr(reader_cuda, "Device", HostDevice)

    def refuse(*args: Any, **options: Any) -> None:
        assert options["enable_fallback"] == 0
        assert options["providers"][0][1]["use_tf32"] == "0"
        raise type(name, (RuntimeError,), {})("no\x1b device\n")

    module = SimpleNamespace(
        get_available_providers=lambda: [Form.provider],
        SessionOptions=onnxruntime.SessionOptions,
        InferenceSession=refuse,
    )
    with pytest.raises(error, match=re.escape(words)) as caught:
        OnnxRuntimeSession(module, tmp_path / "model.onnx", Form, 1)  # all that it reads
    assert type(caught.value) is error


def test_a_file_that_its_runtime_refuses_is_said(app: Path) -> None:
    found = manifest(app)
    path = app / found["forms"]["ort_cpu"]["file"]
    model = onnx.load(path, load_external_data=False)
    model.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(model, path)
    seal(app, found)
    with pytest.raises(BundleError, match="cannot be opened"):
        load(app)
