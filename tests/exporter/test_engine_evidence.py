"""The proof of fusion: true engines of fused and unfused attention, and texts that were changed to tell lies."""

from __future__ import annotations

import dataclasses
import functools
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from engine_graphs import ANCHORS, contract, decomposed, operator
from representatives import crossed

from attnport.artifacts import Evidence
from attnport.dims import Dim, Profile
from attnport.errors import ArtifactError, IntegrityError
from attnport.exporter.engine.build import build_engine
from attnport.exporter.engine.evidence import (
    EngineText,
    Kernel,
    prove,
    read_engine_text,
    read_header,
)

pytest.importorskip("tensorrt_rtx")
SMALL = Profile((Dim("batch", 1, 1, 1), Dim("seq", 1, 16, 32)))
ONE_TOKEN = Profile((Dim("batch", 1, 2, 4), Dim("seq", 1, 1, 1)))
LONG = Profile((Dim("batch", 1, 2, 4), Dim("seq", 2, 64, 256)))


@functools.cache
def built(dtype: str, size: int, profiles: tuple[Profile, ...], sm: tuple[int, ...]) -> bytes:
    """An engine, which takes a second to build."""
    with tempfile.TemporaryDirectory() as folder:
        model, engine = decomposed(Path(folder) / "m.onnx", dtype, size=size), Path(folder) / "e.engine"
        build_engine("tensorrt_rtx", model, contract(dtype, size=size), engine, profiles=profiles, sm=sm)
        return engine.read_bytes()


def build(
    folder: Path, dtype: str = "float16", size: int = 32, profiles: tuple[Profile, ...] = (), sm: tuple[int, ...] = ()
) -> Path:
    engine = folder / "e.engine"
    engine.write_bytes(built(dtype, size, profiles, sm))
    return engine


def engine_evidence(engine: Path, anchors: Mapping[str, tuple[str, ...]], profiles: int = 1) -> dict[str, Evidence]:
    """The proof for each attention that is fused."""
    text = read_engine_text(engine)
    proofs = {name: prove(text, nodes, profiles) for name, nodes in anchors.items()}
    return {name: proof for name, proof in proofs.items() if isinstance(proof, Evidence)}


@pytest.mark.parametrize(("dtype", "sm"), crossed(["float16", "bfloat16"], [(), (86,), (86, 120)]))
def test_half_precision_attention_is_fused_for_every_target(tmp_path: Path, dtype: str, sm: tuple[int, ...]) -> None:
    engine = build(tmp_path, dtype, sm=sm)
    found = engine_evidence(engine, ANCHORS)
    assert found["attn"].kernel == "_gemm_mha_v2"
    assert re.search(r"_gemm_mha_v2 covers .*attn/pv.*attn/qk.*attn/softmax", found["attn"].text)
    # One graph whatever the number of targets: what is proved of it holds for each of them.
    assert len(read_engine_text(engine).graphs) == 1


def test_tiles_that_the_mask_hides_are_told(tmp_path: Path) -> None:
    assert "hidden tiles skipped by a run-time tile map" in engine_evidence(build(tmp_path), ANCHORS)["attn"].text


def test_attention_operator_is_fused(tmp_path: Path) -> None:
    build_engine("tensorrt_rtx", operator(tmp_path / "m.onnx"), contract(), tmp_path / "e.engine")
    assert engine_evidence(tmp_path / "e.engine", {"attn": ("attn",)})["attn"].kernel == "_gemm_mha_v2"


def test_causal_operator_skips_what_lies_right_of_the_diagonal(tmp_path: Path) -> None:
    model = operator(tmp_path / "m.onnx", call="Attention<is_causal=1>(q, k, v)")
    io = dataclasses.replace(contract(), inputs=contract().inputs[:3])
    build_engine("tensorrt_rtx", model, io, tmp_path / "e.engine")
    text = engine_evidence(tmp_path / "e.engine", {"attn": ("attn",)})["attn"].text
    assert re.search(r"tiles right of `.*row.*` skipped", text)


def test_single_precision_is_not_fused_and_the_reason_names_the_kernels(tmp_path: Path) -> None:
    engine = build(tmp_path, "float32")
    assert engine_evidence(engine, ANCHORS) == {}
    verdict = prove(read_engine_text(engine), ANCHORS["attn"], 1)
    assert isinstance(verdict, str)
    assert re.search(r"no single attention kernel covers it: attn/qk in .*fully_connected", verdict)
    assert re.search(r"; attn/softmax in __myl_\S+; attn/pv in ", verdict)


def test_head_size_without_a_kernel_is_not_fused(tmp_path: Path) -> None:
    assert engine_evidence(build(tmp_path, size=320), ANCHORS) == {}


def test_each_profile_has_its_own_kernel(tmp_path: Path) -> None:
    engine = build(tmp_path, profiles=(LONG, SMALL))
    assert len(read_engine_text(engine).graphs) == 2
    found = engine_evidence(engine, ANCHORS, profiles=2)["attn"]
    assert found.kernel == "_gemm_mha_v2"
    assert re.match(r"profile 0: _gemm_mha_v2 covers .*\nprofile 1: _gemm_mha_v2 covers ", found.text)


def test_fused_in_one_profile_alone_does_not_count(tmp_path: Path) -> None:
    engine = build(tmp_path, profiles=(LONG, ONE_TOKEN))
    first, second = read_engine_text(engine).graphs
    assert isinstance(prove(EngineText((first,)), ANCHORS["attn"], 1), Evidence)
    assert isinstance(prove(EngineText((second,)), ANCHORS["attn"], 1), str)
    assert engine_evidence(engine, ANCHORS, profiles=2) == {}


def test_engine_that_lacks_a_profile_does_not_prove_it(tmp_path: Path) -> None:
    verdict = prove(read_engine_text(build(tmp_path)), ANCHORS["attn"], 2)
    assert isinstance(verdict, str)
    assert "in 1 of 2 graphs" in verdict


@pytest.mark.parametrize(
    "nodes",
    [("attn/qk", "attn/softmax", "elsewhere/pv"), ("elsewhere",), ("attn",), ("attn/q", "attn/soft", "attn/p")],
)
def test_anchors_that_the_kernel_does_not_cover_are_not_proved(tmp_path: Path, nodes: tuple[str, ...]) -> None:
    assert engine_evidence(build(tmp_path), {"attn": nodes}) == {}


def lie(change: Callable[[bytes], bytes], engine: Path) -> Path:
    engine.write_bytes(change(engine.read_bytes()))
    return engine


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace(b"name=_gemm_mha_v2 ", b"name=__myl_MulSoft "),
        lambda data: data.replace(b"[ONNX Layer: attn/qk]", b"[ONNX Layer: attn/qq]"),
        lambda data: data.replace(b"[ONNX Layer: attn/softmax]", b"[Other Layer attn/softmax]"),
    ],
)
def test_changed_text_is_not_taken_for_proof(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    assert engine_evidence(lie(change, build(tmp_path)), ANCHORS) == {}


def test_unfused_branch_beside_the_fused_kernel_does_not_count() -> None:
    fused = Kernel("_gemm_mha_v2", frozenset({"qk", "softmax", "pv", "where"}))
    move = Kernel("__myl_Move", frozenset({"qk"}))
    fallback = Kernel("__myl_Softmax", frozenset({"softmax"}))
    nodes = ("qk", "softmax", "pv")
    assert isinstance(prove(EngineText(((move, fused),)), nodes, 1), Evidence)
    assert isinstance(prove(EngineText(((fused, fallback),)), nodes, 1), str)


def test_kernel_that_is_no_attention_kernel_does_not_count_though_it_covers_everything() -> None:
    nodes = frozenset({"qk", "softmax", "pv"})
    assert isinstance(prove(EngineText(((Kernel("_gemm_v2", nodes),),)), tuple(nodes), 1), str)


@pytest.mark.parametrize("content", [b"", b"vtrt", b"not an engine" * 99])
def test_file_without_graph_text_proves_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "e.engine"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match="no graph text"):
        engine_evidence(path, ANCHORS)


def test_header_of_what_is_no_engine_or_not_all_of_one(tmp_path: Path) -> None:
    engine = build(tmp_path, sm=(120,))
    whole = engine.read_bytes()
    assert read_header(engine).sm == (120,)
    for content, error, message in (
        (whole[:-1], IntegrityError, "cut short"),
        (whole + b"x", IntegrityError, "cut short or has bytes behind"),
        (whole[:20], IntegrityError, "less than a header"),
        (b"ONNX" + whole[4:], ArtifactError, "no TensorRT-RTX engine"),
        (b"", ArtifactError, "got first bytes none"),
    ):
        engine.write_bytes(content)
        with pytest.raises(error, match=message):
            read_header(engine)
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_header(tmp_path / "none.engine")
