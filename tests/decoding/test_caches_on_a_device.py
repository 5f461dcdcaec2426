"""Caches that stay on a runtime's device between steps: what is computed, and what passes through the host.

The CPU provider stands for CUDA's. A small decoder in ONNX's text form has what every one has: a cache that grows.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from attnport_bundle.decoding.caches import Carried, Decoding, Steps, steps_of
from attnport_bundle.format.contract import IO, Dim, MaskSpec, TensorSpec
from attnport_bundle.format.decoder import Cache, Decoder, Roles
from attnport_bundle.runtimes.onnxruntime import CUDA, OnDevice, OnnxRuntimeSession

ort = pytest.importorskip("onnxruntime")
Array = np.ndarray[Any, Any]
DEPTH, WORDS = 8, 11
MODEL = """<ir_version: 10, opset_import: ["" : 23]> g (int64[B,S] ids, int64[B,N] mask, KIND[B,P,8] past)
    => (KIND[B,S,11] logits, KIND[B,N,8] present) {
    before = Cast<to = 1>(past)
    x = Gather(table, ids)
    whole = Concat<axis = 1>(before, x)
    turned = Transpose<perm = [0, 2, 1]>(whole)
    scores = MatMul(x, turned)
    shown = Cast<to = 9>(mask)
    one = Constant<value_ints = [1]>()
    row = Unsqueeze(shown, one)
    low = Constant<value_float = -1000.0>()
    kept = Where(row, scores, low)
    weights = Softmax(kept)
    y = MatMul(weights, whole)
    found = MatMul(y, head)
    logits = CastLike(found, past)
    present = CastLike(whole, past)
}"""
KINDS = ("float", "float16", "bfloat16")


def contract() -> tuple[IO, Roles]:
    dims = (Dim("B", 1, 2, 8), Dim("S", 1, 1, 64), Dim("P", 0, 16, 1024))
    inputs = (
        TensorSpec("ids", "int64", ("B", "S"), WORDS),
        TensorSpec("mask", "int64", ("B", "P+S")),
        TensorSpec("past", "float32", ("B", "P", DEPTH)),
    )
    outputs = (
        TensorSpec("logits", "float32", ("B", "S", WORDS)),
        TensorSpec("present", "float32", ("B", "P+S", DEPTH)),
    )
    io = IO(inputs, outputs, dims, (MaskSpec(("padding",), "mask"),))
    cache = Cache("past", "present", 1, "all")
    decoder = Decoder("ids", "mask", "all", None, "logits", (cache,), "all", None, (), (), None)
    return io, Roles(io, decoder)


def session_of(kind: str) -> Any:
    model = onnx.parser.parse_model(MODEL.replace("KIND", kind))
    random = np.random.default_rng(0)
    for name, shape in (("table", (WORDS, DEPTH)), ("head", (DEPTH, WORDS))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(random.standard_normal(shape, np.float32), name))
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def decodings(kind: str, *, for_prompts: bool = False) -> tuple[Decoding, Decoding, list[int]]:
    """One whose caches stay on the device, one whose caches are copied, and how often a cache came from the host."""
    session, (io, roles) = session_of(kind), contract()
    outputs = [spec.name for spec in io.outputs]
    uploads: list[int] = []

    def run(**feeds: Array) -> dict[str, Array]:
        found, _ = OnDevice(ort, session, "cpu")(feeds, {})
        return {name: found[name].astype(np.float32) for name in outputs}

    class Watched(OnDevice):
        def _value(self, name: str, array: Array) -> Any:
            uploads.extend([array.shape[1]] * (name == "past"))
            return super()._value(name, array)

    def make(roles: Roles) -> Steps | None:
        return Watched(ort, session, "cpu").steps(roles)

    of_session = steps_of(SimpleNamespace(new_steps=make, keeps_caches=for_prompts))
    return Decoding(run, io, roles, of_session), Decoding(run, io, roles), uploads


@pytest.mark.parametrize(("kind", "for_prompts"), [*((kind, False) for kind in KINDS), ("float16", True)])
def test_256_steps_are_those_of_a_copied_cache_and_no_cache_passes_through_the_host(
    kind: str, for_prompts: bool
) -> None:
    one, other, uploads = decodings(kind, for_prompts=for_prompts)
    random = np.random.default_rng(1)
    keep = np.ones((3, 7), bool)
    keep[1, :4] = False
    prompt = random.integers(0, WORDS, (3, 7))
    np.testing.assert_array_equal(one.push(prompt, keep), other.push(prompt, keep))
    for _ in range(256):
        new = random.integers(0, WORDS, (3, 1))
        np.testing.assert_array_equal(one.push(new, keep[:, :1] | True), other.push(new, keep[:, :1] | True))
    assert uploads == [0 if for_prompts else 7]  # as the prompt begins, or the steps: once
    np.testing.assert_array_equal(one.cache("past"), other.cache("past"))
    assert one.cache("past").shape == (3, 263, DEPTH)
    assert one.cache("past").dtype == np.float32


def test_rows_of_beams_are_taken_and_further_tokens_follow() -> None:
    one, other, _ = decodings("float")
    for decoding in (one, other):
        decoding.push(np.array([[1, 2], [3, 4]]), np.ones((2, 2), bool))
        decoding.push(np.array([[5], [6]]), np.ones((2, 1), bool))
        decoding.take(np.array([1, 1, 0]))
    several = np.array([[7, 8], [9, 1], [2, 3]])
    for new in (several[:, :1], several, several[:, :1]):  # also several tokens at once
        keep = np.ones(new.shape, bool)
        np.testing.assert_array_equal(one.push(new, keep), other.push(new, keep))


def test_a_session_on_cuda_keeps_them_there_unless_its_outputs_are_what_is_new_alone() -> None:
    session = object.__new__(OnnxRuntimeSession)
    session.provider, session._module, session._session = CUDA, ort, session_of("float")
    session._options, session._turn = None, contextlib.nullcontext()
    _, roles = contract()
    assert isinstance(session.new_steps(roles), Carried)
    roles.returns_whole_cache = False
    assert session.new_steps(roles) is None
