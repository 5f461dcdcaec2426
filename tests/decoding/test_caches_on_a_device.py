"""Caches that stay on a runtime's device between steps: what is computed, and what passes through the host.

The CPU provider stands for CUDA's, and a pretended engine for one of TensorRT. A small decoder in ONNX's text form has
what every one has: a cache that grows.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from pretended_gpu import Context, Engine, HostDevice, trt

from attnport_bundle.decoding.caches import Carried, Decoding, Steps, steps_of
from attnport_bundle.decoding.generate import _begun
from attnport_bundle.errors import FeedError
from attnport_bundle.format.contract import IO, Dim, MaskSpec, TensorSpec
from attnport_bundle.format.decoder import Cache, Decoder, Roles
from attnport_bundle.runtimes.onnxruntime import CUDA, OnDevice, OnnxRuntimeSession
from attnport_bundle.runtimes.tensorrt import EngineSession

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


def contract(ids: str = "int64") -> tuple[IO, Roles]:
    dims = (Dim("B", 1, 2, 8), Dim("S", 1, 1, 64), Dim("P", 0, 16, 1024))
    inputs = (
        TensorSpec("ids", ids, ("B", "S"), WORDS),
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


def test_a_prompt_whose_caches_are_on_the_device_is_checked_as_run_does() -> None:
    decoding, _, _ = decodings("float", for_prompts=True)
    nine = np.ones((9, 2), np.int64)
    with pytest.raises(FeedError, match="9"):
        decoding.push(nine, nine > 0)


def test_a_token_that_the_type_of_the_ids_cannot_hold_is_refused() -> None:
    decoding = Decoding(lambda **feeds: pytest.fail("it ran"), *contract(ids="int32"))
    with pytest.raises(FeedError, match="'ids': got values 3 to 4294967301; expected 0 to 10"):
        _begun(decoding, [[3, 2**32 + 5]], 1)


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


class DecoderContext(Context):
    """The decoder, computed in ONNX Runtime, from and to the addresses that it is given."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.session = kind, session_of(kind.removesuffix("32"))

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shapes[name] = shape
        return True

    def infer_shapes(self) -> list[str]:
        return []

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        (batch, new), past = self.shapes["ids"], self.shapes["past"][1]
        return (batch, new, WORDS) if name == "logits" else (batch, past + new, DEPTH)

    def execute_async_v3(self, stream: int) -> bool:
        feeds = {}
        for name in ("ids", "mask", "past"):
            dtype, shape = np.dtype(self.kind if name == "past" else "int64"), self.shapes[name]
            data = ctypes.string_at(self.addresses[name], math.prod(shape) * dtype.itemsize)
            feeds[name] = np.frombuffer(data, dtype).reshape(shape)
        for name, array in zip(("logits", "present"), self.session.run(None, feeds), strict=True):
            ctypes.memmove(self.addresses[name], array.ctypes.data, array.nbytes)
        return True


class DecoderEngine(Engine):
    """The decoder's ports, of one profile."""

    num_io_tensors, num_optimization_profiles = 5, 1

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def get_tensor_name(self, index: int) -> str:
        return ["ids", "mask", "past", "logits", "present"][index]

    def get_tensor_mode(self, name: str) -> str:
        return "input" if name in ("ids", "mask", "past") else "output"

    def get_tensor_dtype(self, name: str) -> Any:
        number = "FLOAT" if self.kind == "float32" else "HALF"
        return SimpleNamespace(name="INT64" if name in ("ids", "mask") else number)

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (-1,) * (2 if name in ("ids", "mask") else 3)

    def get_tensor_profile_shape(self, name: str, index: int) -> list[tuple[int, ...]]:
        rank = len(self.get_tensor_shape(name))
        return [(0,) * rank, (1,) * rank, (1024,) * rank]

    def create_execution_context(self, config: Any) -> DecoderContext:
        return DecoderContext(self.kind)


class Uploads(HostDevice):
    """Counts the numbers of caches that come from the host."""

    uploaded = 0

    def upload(self, address: int, array: Array) -> None:
        self.uploaded += array.size * (array.ndim == 3)
        super().upload(address, array)


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_an_engine_keeps_caches_on_its_device_too(kind: str) -> None:
    device, (io, roles) = Uploads(), contract()
    device.engine = DecoderEngine(kind)
    session = EngineSession(trt(device, "9.9"), device, b"", "an engine")

    def run(**feeds: Array) -> dict[str, Array]:
        dtype = np.dtype(kind)
        given = {name: array.astype(dtype) if name == "past" else array for name, array in feeds.items()}
        return {name: array.astype(np.float32) for name, array in session.run(given).items()}

    one, other = Decoding(run, io, roles, steps_of(session)), Decoding(run, io, roles)
    random = np.random.default_rng(1)
    for number in range(32):
        new = random.integers(0, WORDS, (3, 1 if number else 7))
        keep = np.ones(new.shape, bool)
        had = device.uploaded
        found = one.push(new, keep)
        assert device.uploaded == had, "the caches begin with no place, and no further one comes from the host"
        np.testing.assert_array_equal(found, other.push(new, keep))
    one.take(np.array([2, 0]))
    other.take(np.array([2, 0]))
    np.testing.assert_array_equal(*(each.push(np.array([[1], [2]]), np.ones((2, 1), bool)) for each in (one, other)))
    np.testing.assert_array_equal(one.cache("past"), other.cache("past"))
    assert one.cache("past").dtype == np.float32
    del one
    session.close()
    assert device.memory == {}
