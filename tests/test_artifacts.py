"""Values on disk: what is written reads back the same, and what was damaged or edited is refused by name."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from attnport import jsonfile
from attnport.artifacts import (
    Capabilities,
    EngineRecord,
    Form,
    FusionItem,
    FusionReport,
    FusionTable,
    LatencyRow,
    Manifest,
    Source,
    SourceAttention,
    Stage,
)
from attnport.dims import Dim, Profile
from attnport.errors import ArtifactError
from attnport.jsonfile import digest_file, digest_text, from_json, read, to_json
from attnport.models.base import get

IO = get("bert_encoder").io
MANIFEST = Manifest(
    format=1,
    attnport="0.1.0",
    name="small",
    source=Source("file.py:make", inputs=("x=float32[batch,seq,8]",), code_digest="a" * 64, weights_digest="b" * 64),
    io=IO,
    opset=23,
    attentions=(SourceAttention("layers.0.attention", "layers.0.attention", "scaled_dot_product_attention"),),
    tokenizer=None,
    versions={"torch": "2.13.0"},
    files={"model.onnx": "c" * 64},
    forms={"ort_cpu": Form("ort_cpu", "fp32", "model.ort_cpu.onnx", 23, {"layers.0.attention": ("node",)})},
    stages={"export": Stage("d" * 64, ("model.onnx",), "2026-01-01T00:00:00+00:00", 1.5)},
)
ENGINE = EngineRecord("tensorrt_rtx", "fp16", "e", "f", (86,), (Profile((Dim("batch", 1, 2, 3),)),), "1.7", "a", 2, 3)
FUSION = FusionReport(
    {"ort_cpu": FusionTable(1, 0, (FusionItem("a", "f", "none", None, False, "why"),), "m", "fp32", "r")}
)
ROW = LatencyRow("faster", "", 1.5, None, (1, 2, 3), (0.5, 0.6, 0.7))


@pytest.mark.parametrize("value", [MANIFEST, ENGINE, FUSION, ROW, IO], ids=lambda value: type(value).__name__)
def test_what_is_written_reads_back_the_same(value: Any, tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    path.write_text(to_json(value))
    assert read(type(value), path) == value


def test_a_manifest_from_before_remote_code_could_be_trusted_trusts_none() -> None:
    value = json.loads(to_json(MANIFEST))
    del value["source"]["trust_remote_code"]
    assert not from_json(Manifest, json.dumps(value), "here.json").source.trust_remote_code


def test_a_manifest_from_before_there_were_tasks_and_parts_is_of_the_whole_model() -> None:
    value = json.loads(to_json(MANIFEST))
    for name in ("task", "part"):
        del value["source"][name]
    source = from_json(Manifest, json.dumps(value), "here.json").source
    assert (source.task, source.part) == ("", "")


@pytest.mark.parametrize("length", range(0, len(to_json(MANIFEST)) - 2, 7))
def test_a_manifest_cut_at_any_place_is_refused(length: int) -> None:
    with pytest.raises(ArtifactError, match=r"^here\.json is not a valid Manifest"):
        from_json(Manifest, to_json(MANIFEST)[:length], "here.json")


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        (("opset",), "23", "opset"),
        (("opset",), 23.0, "opset"),
        (("opset",), True, "opset"),
        (("name",), None, "name"),
        (("files",), {"model.onnx": 5}, "files.model.onnx"),
        (("added",), 1, "Manifest: unknown key 'added'"),
        (("source", "added"), 1, "Manifest.source: unknown key 'added'"),
        (("io", "positions"), "relative", "io.positions"),
        (("stages", "export", "seconds"), math.nan, "'NaN' is out of range"),
        (("stages", "export", "seconds"), math.inf, "'Infinity' is out of range"),
        (("stages", "export", "seconds"), "1", "stages.export.seconds"),
    ],
)
def test_an_edited_manifest_is_refused_with_the_place(path: tuple[str, ...], value: Any, place: str) -> None:
    edited = json.loads(to_json(MANIFEST))
    at = edited
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(ArtifactError) as raised:
        from_json(Manifest, json.dumps(edited), "here.json")
    assert place in str(raised.value)
    assert raised.value.hint


@pytest.mark.parametrize(
    "key",
    sorted(
        json.loads(to_json(MANIFEST)).keys()
        - {"depends", "forms", "engines", "notes", "prompts", "schema", "search", "stages", "text_limit"}
    ),
)
def test_a_key_that_is_gone_is_named(key: str) -> None:
    edited = json.loads(to_json(MANIFEST))
    del edited[key]
    with pytest.raises(ArtifactError, match=rf"key '{key}' is missing"):
        from_json(Manifest, json.dumps(edited), "here.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dims": [{"name": "seq", "min": 5, "opt": 2, "max": 9}]}, "got min=5, opt=2, max=9"),
        ({"masks": [{"kinds": ["paddling"]}]}, "mask kind paddling"),
        ({"inputs": [{"name": "x", "dtype": "float8", "dims": []}]}, "dtype 'float8'"),
    ],
)
def test_a_value_that_contradicts_itself_is_refused_with_the_file(change: Mapping[str, Any], said: str) -> None:
    edited = json.loads(to_json(MANIFEST))
    edited["io"] |= change
    with pytest.raises(ArtifactError, match=r"^here\.json is not a valid Manifest") as raised:
        from_json(Manifest, json.dumps(edited), "here.json")
    assert said in str(raised.value)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_does_not_have_is_not_written(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json(dataclasses.replace(ROW, median_ns=number))


def test_a_file_that_is_missing_or_a_folder_is_an_error_of_ours(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(ArtifactError, match="cannot be read"):
            read(Manifest, path)


def test_a_file_of_absurd_size_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large.json"
    path.write_text(to_json(MANIFEST))
    monkeypatch.setattr(jsonfile, "MAX_JSON_BYTES", path.stat().st_size - 1)
    with pytest.raises(ArtifactError, match="at most"):
        read(Manifest, path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bytes.json"
    path.write_bytes(b'{"name": "\xff\xfe"}')
    with pytest.raises(ArtifactError, match="is not a valid Manifest"):
        read(Manifest, path)


def test_digests_tell_files_and_lists_of_texts_apart(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(b"")
    second.write_bytes(b"x")
    assert digest_file(first) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert digest_file(first) != digest_file(second)
    assert len({digest_text(*parts) for parts in ([], [""], ["", ""], ["ab"], ["a", "b"], ["b", "a"])}) == 6


def test_a_file_is_hashed_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, hashed = hashlib.file_digest, list[str]()

    def counted(file: Any, name: str) -> Any:
        hashed.append(file.name)
        return real(file, name)

    monkeypatch.setattr("attnport.jsonfile.hashlib.file_digest", counted)
    monkeypatch.setattr("attnport.jsonfile._TICK_NS", 20_000_000)
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert digest_file(path) == digest_file(path) == hashlib.sha256(b"abc").hexdigest()
    assert len(hashed) == 2, "it was written a moment ago"
    time.sleep(0.05)
    assert digest_file(path) == digest_file(path) == hashlib.sha256(b"abc").hexdigest()
    assert len(hashed) == 3
    before = path.stat()
    path.write_bytes(b"xyz")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digest_file(path) == hashlib.sha256(b"xyz").hexdigest(), "of the same size, with its time set back"


def test_the_contract_finds_its_dims_and_padding_masks() -> None:
    assert IO.dim("seq").max == 512
    assert IO.profile() == Profile(IO.dims)
    assert [mask.input for mask in IO.padding_masks()] == ["attention_mask"]
    with pytest.raises(StopIteration):
        IO.dim("heads")


def test_capabilities_default_to_nothing_that_was_not_probed() -> None:
    found = Capabilities("ort_cpu", False, "not installed", "pip install onnxruntime")
    assert (found.version, found.devices, found.plans, found.max_opset) == ("", (), (), None)
