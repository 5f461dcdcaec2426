"""What the engine inspector of TensorRT (data centre) says, after its documentation: proof and scratch memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine_graphs import ANCHORS, contract, decomposed, profile

from attnport.artifacts import EngineRecord, Form, FusionTable
from attnport.console.terminal import shown as as_text
from attnport.errors import FusionMissing
from attnport.exporter.engine import build as building
from attnport.exporter.engine import child
from attnport.exporter.engine.build import build_engine
from attnport.verbs.fuse import engine_table, require_fused

NODES = ANCHORS["attn"]
FUSED = {"Name": "_gemm_mha_v2_myl0_3", "LayerType": "kgen", "TacticName": "_gemm_mha_v2_0x1f"}
PLAIN = {"Name": "_gemm_myl0_1", "LayerType": "gemm", "TacticName": "sm90_xmma_gemm"}


def layer(kind: dict[str, str], *nodes: str, **changes: str) -> dict[str, str]:
    return {**kind, "Metadata": "\x1e".join(f"[ONNX Layer: {node}]" for node in nodes), **changes}


def table(tmp_path: Path, layers: Any, profiles: int = 1, target: str = "tensorrt") -> FusionTable:
    told = tmp_path / "layers.json"
    if layers is not None:
        told.write_text(layers if isinstance(layers, str) else json.dumps({"Layers": layers, "Bindings": ["x"]}))
    given = tuple(profile(seq=(1, 64, 64 + index)) for index in range(profiles))
    record = EngineRecord(target, "fp16", "one.engine", "key", (), given, "11.4.0.106", "0" * 64, 1, None)
    manifest: Any = SimpleNamespace(attentions=(SimpleNamespace(name="attn"),))
    engine = tmp_path / "one.engine"
    engine.write_bytes(b"ptrt, which is no clear text")
    return engine_table(manifest, Form(target, "fp16", "one.onnx", 23, ANCHORS), record, engine, told)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"Name": "layer 3"},
        {"Name": "layer 3", "TacticName": "0x1f", "LayerType": "Attention"},
        {"Name": "fused_attention_myl0_3", "TacticName": ""},
    ],
)
def test_an_attention_kernel_that_covers_all_anchors_is_the_proof(tmp_path: Path, change: dict[str, str]) -> None:
    found = table(tmp_path, [layer(PLAIN, "proj"), layer(FUSED, "scale", *NODES, **change)])
    assert str(found) == "1/1"
    assert found.proved_by == "one.engine"
    assert all(node in found.items[0].evidence for node in NODES)


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        (None, "does not tell which ONNX nodes"),
        ("no JSON", "does not tell which ONNX nodes"),
        ("[]", "does not tell which ONNX nodes"),
        (["_gemm_mha_v2_myl0_3"], "does not tell which ONNX nodes"),  # the verbosity of names alone
        ([{**FUSED}], "does not tell which ONNX nodes"),
        ([layer(PLAIN, *NODES)], "no single attention kernel covers it"),
        ([layer(FUSED, *NODES[:2]), layer(PLAIN, NODES[2])], "no single attention kernel covers it"),
        ([layer(FUSED, *NODES), layer(PLAIN, NODES[1])], "no single attention kernel covers it"),
        ([layer(PLAIN, "proj")], "in 0 of 1 graphs"),
        # Called by nodes of the model, whose names are no evidence.
        ([layer(PLAIN, *NODES, Name="{ForeignNode[/attention/qk.../attention/pv]}")], "no single attention kernel"),
        ([layer(PLAIN, *NODES, "attention_1", Name="attention_1")], "no single attention kernel"),
    ],
)
def test_what_does_not_show_it_is_not_proven_and_says_why(tmp_path: Path, layers: Any, reason: str) -> None:
    found = table(tmp_path, layers)
    assert str(found) == "not proven"
    assert reason in found.items[0].reason
    with pytest.raises(FusionMissing, match="not proven"):
        require_fused({"tensorrt": found})


def test_each_profile_needs_its_own_kernel(tmp_path: Path) -> None:
    first, second = layer(FUSED, *NODES), layer(FUSED, *NODES, Name="_gemm_mha_v2_myl1_3 [profile 1]")
    assert str(table(tmp_path, [first, second], profiles=2)) == "1/1"
    found = table(tmp_path, [first, first], profiles=2)
    assert "in 1 of 2 graphs" in found.items[0].reason
    assert str(found) == "not proven"


def test_an_rtx_engine_without_clear_text_is_not_proven_either(tmp_path: Path) -> None:
    found = table(tmp_path, [layer(FUSED, *NODES)], target="tensorrt_rtx")
    assert str(found) == "not proven"
    assert "contains no graph text" in found.items[0].reason


class Inspected:
    """A module with the part of TensorRT that is asked about a built engine; `lacks` names what it has not."""

    LayerInformationFormat = SimpleNamespace(JSON="json")

    def __init__(self, lacks: str = "") -> None:
        asked = {"json": '{"Layers": []}'}
        inspector = SimpleNamespace(get_engine_information=asked.__getitem__)
        engine = SimpleNamespace(device_memory_size_v2=77, create_engine_inspector=lambda: inspector)
        runtime = SimpleNamespace(deserialize_cuda_engine={b"plan": engine}.get)
        for holder in (engine, runtime):
            if hasattr(holder, lacks or "?"):
                delattr(holder, lacks)
        self.Runtime = lambda logger: runtime


@pytest.mark.parametrize(
    ("lacks", "found"),
    [
        ("", (77, '{"Layers": []}')),
        ("create_engine_inspector", (77, "")),
        ("device_memory_size_v2", (None, '{"Layers": []}')),
        ("deserialize_cuda_engine", (None, "")),
    ],
)
def test_what_an_engine_does_not_tell_fails_no_build(lacks: str, found: tuple[int | None, str]) -> None:
    assert child._inspected(Inspected(lacks), None, b"plan") == found
    assert child._inspected(Inspected(lacks), None, b"another plan") == (None, "")


@pytest.mark.parametrize(
    ("told", "log", "scratch", "shown"),
    [
        ("2097152", "", 2097152, "2.0 MiB"),
        ("null", "Total Activation Memory: 1048576 bytes", 1048576, "1.0 MiB"),
        ("null", "other words", None, "unknown"),
    ],
)
def test_scratch_memory_is_the_engines_own_number_or_the_logs_or_unknown(
    told: str, log: str, scratch: int | None, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"""import sys, json, pathlib
request = json.load(sys.stdin)
pathlib.Path(request["output"]).write_bytes(b"ptrt")
pathlib.Path(request["layers"]).write_text("layers")
pathlib.Path(request["log"]).write_text({log!r})
pathlib.Path(sys.argv[1]).write_text('{{"version": "11.4.0.106", "scratch_bytes": {told}}}')"""
    monkeypatch.setattr(building, "_command", lambda result: [sys.executable, "-c", code, str(result)])
    layers = tmp_path / "layers.json"
    model, engine = decomposed(tmp_path / "m.onnx"), tmp_path / "e.engine"
    record = build_engine("tensorrt", model, contract(), engine, layers=layers)
    assert record.scratch_bytes == scratch
    assert layers.read_text() == "layers"
    assert shown in as_text(record)
