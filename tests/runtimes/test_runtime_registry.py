"""How runtimes are found, and what every session shares."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from attnport.artifacts import IOContract, Ran
from attnport.dims import Dim, TensorSpec
from attnport.errors import ArtifactError, FeedError, UsageError, first_line, whole_cause
from attnport.latency.measuring import Effort
from attnport.runtimes import base
from attnport.runtimes.base import CheckedSession, check_names, refused

IO = IOContract(
    (TensorSpec("x", "float32", ("n",)),),
    (TensorSpec("y", "float32", ("n",)), TensorSpec("z", "float32", ("n",))),
    (Dim("n", 1, 2, 4),),
)


def test_runtimes_are_the_folders_files_without_the_private_ones() -> None:
    assert base.names() == sorted(base.names())
    assert {"torch_eager", "ort_cpu", "openvino", "onnx_reference", "tensorrt", "tensorrt_rtx"} <= set(base.names())
    assert not [name for name in base.names() if name.startswith("_") or name == "base"]


@pytest.mark.parametrize("name", base.names())
def test_a_runtime_is_called_by_its_files_name(name: str) -> None:
    assert base.get(name).name == name
    assert base.get(name.replace("_", "-")) is base.get(name)


def test_an_unknown_runtime_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(UsageError, match="ort_cpu"):
        base.get("ort_gpu")
    with pytest.raises(UsageError):
        base.get("_session")


def test_physical_cores_are_at_most_the_logical_ones() -> None:
    assert 1 <= base.physical_cores() <= (os.cpu_count() or 1)


class _Doubling(CheckedSession):
    freed = 0

    def _run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:  # type: ignore[override]
        return {"z": feeds["x"] * 3, "y": feeds["x"] * 2}

    def _free(self) -> None:
        self.freed += 1


def test_a_session_puts_outputs_in_contract_order_and_frees_once() -> None:
    session = _Doubling(IO, Ran("CPU", "none", "fp32"))
    outputs = session.run({"x": np.ones(3, np.float32)})
    assert list(outputs) == ["y", "z"]
    assert outputs["y"].tolist() == [2, 2, 2]
    session.close()
    session.close()
    assert session.freed == 1


def test_a_foreign_exception_becomes_an_error_that_names_runtime_and_shapes() -> None:
    with pytest.raises(FeedError, match=r"Some Runtime failed on x float32\[3\]: what it said"):  # noqa: SIM117
        with refused("Some Runtime", {"x": np.ones(3, np.float32)}):
            raise RuntimeError("\n  what it said\nand more")
    with pytest.raises(UsageError, match="ours"), refused("Some Runtime", {}):
        raise UsageError("ours")


def test_an_exception_without_words_is_named_by_its_type() -> None:
    assert first_line(KeyError()) == "KeyError"


def test_a_cause_is_whole_in_one_line_and_of_a_very_long_one_the_beginning() -> None:
    said = "Exception from core.cpp:104:\n\n  Check 'false' failed:\n" + "x" * 900 + " the cause"
    assert whole_cause(RuntimeError(said)) == " ".join(said.split())
    assert whole_cause(KeyError()) == "KeyError"
    assert len(whole_cause(RuntimeError("x" * 10**6))) < 5000


CUDA_CALL = (
    "/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc:129 std::conditional_t<THRW, void, "
    "onnxruntime::common::Status> onnxruntime::CudaCall(ERRTYPE, const char*, int) [with ERRTYPE = cudaError; bool "
    "THRW = true; std::conditional_t<THRW, void, onnxruntime::common::Status> = void] "
)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception during initialization: "
            f"{CUDA_CALL}{CUDA_CALL}CUDA failure 100: no CUDA-capable device is detected",
            "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception during initialization: CUDA failure 100: no "
            "CUDA-capable device is detected",
        ),
        (
            "Status Message: /onnxruntime_src/onnxruntime/core/providers/cpu/math/"
            "element_wise_ops.h:563 void onnxruntime::BroadcastIterator::Init(ptrdiff_t, ptrdiff_t) axis == 1 || axis "
            "== largest was false. Attempting to broadcast an axis by a dimension other than 1. 3 by 5\n",
            "Status Message: Attempting to broadcast an axis by a dimension other than 1. 3 by 5",
        ),
        (
            "Exception: /onnxruntime_src/onnxruntime/core/framework/tensor.h:10 const T* onnxruntime::Tensor::Data() "
            "const [with T = float] a == b was false. ",
            "Exception: a == b was false.",
        ),
    ],
)
def test_a_cause_is_without_the_c_plus_plus_that_onnx_runtime_adds(said: str, told: str) -> None:
    assert whole_cause(RuntimeError(said)) == told


def test_other_inputs_or_outputs_than_the_contracts_are_refused() -> None:
    check_names(IO, ["x"], ["z", "y"], "here")
    with pytest.raises(ArtifactError, match="inputs"):
        check_names(IO, ["x", "extra"], ["y", "z"], "here")
    with pytest.raises(ArtifactError, match="outputs"):
        check_names(IO, ["x"], ["y"], "here")


def test_a_bundle_that_nobody_named_is_no_row_of_the_report() -> None:
    assert "bundle" not in {runtime.name for runtime in base.chosen(None)}
    assert "bundle" in {runtime.name for runtime in base.chosen(None, bundle=True)}
    assert [runtime.name for runtime in base.chosen(["bundle"])] == ["bundle"]
    assert [runtime.name for runtime in base.chosen("bundle")] == ["bundle"]  # one text is one name


@pytest.mark.parametrize("threads", [0, -5, 2.0, "2", True])
def test_a_number_of_threads_is_1_or_more(threads: Any) -> None:
    with pytest.raises(UsageError, match=r"^threads: got .*; expected 1"):
        base.Opening(IO, threads=threads)
    with pytest.raises(UsageError, match=r"^threads: got .*; expected 1"):
        Effort(threads)
    assert base.Opening(IO).threads is None
    assert base.Opening(IO, threads=2).threads == Effort(2).threads == 2


@pytest.mark.parametrize(
    "wrong", [{"samples": -1}, {"starts": 0}, {"budget_s": -1.0}, {"precision": float("nan")}, {"timeout_s": 0}]
)
def test_an_effort_has_numbers_with_a_meaning(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"^{next(iter(wrong))}: got"):
        Effort(1, **wrong)


@pytest.mark.parametrize("text", ["openvino.fp99", "ort_cpu.bf16", "ort-cpu.", "torch_eager."])
def test_a_precision_that_a_runtime_does_not_have_is_refused_before_any_work(text: str) -> None:
    with pytest.raises(UsageError, match="has no such precision; expected one of"):
        base.chosen([text])
