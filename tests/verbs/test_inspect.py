"""What `inspect` says of whole files, and that a damaged one is a clear error and never anything else."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from attnport.artifacts import FORMAT, EngineRecord, Manifest, Source
from attnport.dims import Dim, Profile
from attnport.errors import ArtifactError, AttnportError, IntegrityError
from attnport.exporter.inspect_graph import graph_facts
from attnport.folder.workspace import create
from attnport.jsonfile import from_json, to_json
from attnport.models.base import get
from attnport.verbs.inspect import Inspection, inspect

TEXT = """
<ir_version: 11, opset_import: ["" : 23], producer_name: "by hand">
attention (float[batch, seq, 8] x, bool[batch, 1, seq, seq] keep) => (float[batch, seq, 8] y)
<float[8, 8] w>
{
   q = MatMul (x, w)
   a = Attention <q_num_heads = 2, kv_num_heads = 2> (q, q, q, keep)
   k = Transpose <perm = [0, 2, 1]> (q)
   s = MatMul (a, k)
   p = Softmax <axis = -1> (s)
   y = MatMul (p, a)
}
"""
ENGINE_BYTES = 64
IO = get("bert_encoder").io


def model() -> onnx.ModelProto:
    made = onnx.parser.parse_model(TEXT)
    del made.graph.initializer[:]
    made.graph.initializer.append(numpy_helper.from_array(np.eye(8, dtype=np.float32), "w"))
    made.metadata_props.add(key="scope", value="kept")
    return made


@pytest.fixture
def onnx_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.onnx"
    onnx.save(model(), path)
    return path


@pytest.fixture
def external(tmp_path: Path) -> Path:
    path = tmp_path / "outside.onnx"
    onnx.save_model(model(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def relocate(path: Path, location: str) -> None:
    """Lets the weights of a model point elsewhere."""
    made = onnx.load(path, load_external_data=False)
    for entry in made.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    path.write_bytes(made.SerializeToString())


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    head = bytearray(ENGINE_BYTES)
    head[:4] = b"vtrt"
    struct.pack_into("<Q", head, 16, ENGINE_BYTES)
    head[24:28] = bytes((1, 7, 1, 116))
    struct.pack_into("<I", head, 32, 0b1100)
    path = tmp_path / "small.engine"
    path.write_bytes(head)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An artifact folder with one model in it, as `export` writes it."""
    path = tmp_path / "artifact"
    manifest = Manifest(FORMAT, "0", "small", Source("small.py:make"), IO, 23, (), None, {"torch": "2"}, {})
    with create(path, manifest) as staged:
        onnx.save(model(), staged.path("model.onnx"))
        staged.finish("export", "0" * 64)
    return path


def test_an_onnx_file_is_described(onnx_file: Path) -> None:
    found = inspect(onnx_file)
    assert (found.kind, found.name) == ("onnx", "small")
    assert found.size_bytes == onnx_file.stat().st_size
    graph = found.graph
    assert graph is not None
    assert graph.inputs == ("x=float32[batch,seq,8]", "keep=bool[batch,1,seq,seq]")
    assert graph.outputs == ("y=float32[batch,seq,8]",)
    assert dict(graph.opsets) == {"": 23}
    assert dict(graph.operators) == {"MatMul": 3, "Attention": 1, "Softmax": 1, "Transpose": 1}
    assert (graph.elements, graph.weights_bytes, graph.external) == (64, 256, ())
    assert (graph.producer, dict(graph.metadata)) == ("by hand", {"scope": "kept"})
    assert [item.operator for item in graph.attentions] == ["Attention", "Softmax"]
    assert all(item.mask or item.reason for item in graph.attentions)


def test_weights_beside_the_file_are_named_and_counted(external: Path) -> None:
    found = inspect(external)
    assert found.graph is not None
    assert found.graph.external == ("weights.bin",)
    assert (found.graph.elements, found.graph.weights_bytes) == (64, 256)
    assert found.size_bytes == external.stat().st_size + (external.parent / "weights.bin").stat().st_size


def test_a_file_cut_at_any_place_is_an_error_of_ours_or_whole(onnx_file: Path) -> None:
    data, refused = onnx_file.read_bytes(), 0
    for length in range(len(data)):
        onnx_file.write_bytes(data[:length])
        try:
            graph_facts(onnx_file)
        except ArtifactError:
            refused += 1
    # The metadata stands at the end of the file: a cut between two of its fields leaves a whole model.
    assert len(data) - 60 < refused < len(data) + 1


def test_changed_bytes_never_give_a_traceback(onnx_file: Path) -> None:
    data, generator = onnx_file.read_bytes(), random.Random(0)
    refused = 0
    for _ in range(500):
        changed = bytearray(data)
        for _ in range(generator.randint(1, 4)):
            changed[generator.randrange(len(changed))] = generator.randrange(256)
        onnx_file.write_bytes(changed)
        try:
            to_json(graph_facts(onnx_file))
        except AttnportError:
            refused += 1
    assert 100 < refused < 500


@pytest.mark.parametrize("content", [b"", b"\n", b"this is not a model\n", b"PK\x03\x04" + bytes(64), bytes(1000)])
def test_a_file_that_is_no_model_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "no.onnx"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"no\.onnx is (not an|a malformed) ONNX model"):
        inspect(path)


def test_weights_of_two_names_are_not_told_as_a_malformed_file(external: Path) -> None:
    (external.parent / "again.bin").hardlink_to(external.parent / "weights.bin")
    with pytest.raises(ArtifactError, match="is a hard link"):
        inspect(external)


def test_weights_outside_the_folder_are_refused(external: Path, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    moved = external.rename(tmp_path / "deep" / external.name)
    relocate(moved, "../weights.bin")
    with pytest.raises(ArtifactError, match="outside the model's folder"):
        inspect(moved)


def test_a_link_to_weights_elsewhere_is_refused(external: Path, tmp_path: Path) -> None:
    weights = tmp_path / "weights.bin"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    weights.rename(elsewhere / "weights.bin")
    weights.symlink_to(elsewhere / "weights.bin")
    with pytest.raises(ArtifactError, match="outside the model's folder"):
        inspect(external)


def test_missing_weights_are_an_error(external: Path) -> None:
    (external.parent / "weights.bin").unlink()
    with pytest.raises(ArtifactError, match=r"weights\.bin, which is missing"):
        inspect(external)


def test_weights_that_were_cut_short_are_an_error(external: Path) -> None:
    weights = external.parent / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ArtifactError, match=r"cut short: got 255 bytes; tensor 'w' .* ends at 256"):
        inspect(external)


def test_an_engine_is_described_from_its_header(engine: Path) -> None:
    found = inspect(engine)
    assert found.kind == "engine"
    assert found.engine is not None
    assert (found.engine.version, found.engine.sm, found.engine.record) == ("1.7.1.116", (86, 89), None)


def test_an_engine_with_its_record_is_compared_with_it(engine: Path) -> None:
    record = EngineRecord(
        target="tensorrt_rtx",
        plan="fp16",
        file=engine.name,
        form="tensorrt_rtx.fp16",
        sm=(86, 89),
        profiles=(Profile((Dim("batch", 1, 2, 4),)),),
        version="1.7.1.116",
        digest=inspect(engine).digest,
        size_bytes=ENGINE_BYTES,
        scratch_bytes=0,
    )
    engine.with_suffix(".json").write_text(to_json(record))
    found = inspect(engine)
    assert found.engine is not None
    assert found.engine.record == record
    engine.write_bytes(engine.read_bytes()[:-1] + b"\x01")
    with pytest.raises(IntegrityError, match="its digest differs"):
        inspect(engine)


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data + b"x", lambda data: data[:20]])
def test_an_engine_cut_short_or_grown_is_refused(engine: Path, damage: Callable[[bytes], bytes]) -> None:
    engine.write_bytes(damage(engine.read_bytes()))
    with pytest.raises(IntegrityError, match="cut short"):
        inspect(engine)


def test_a_folder_is_described_with_its_model(folder: Path) -> None:
    found = inspect(folder)
    assert (found.kind, found.name, found.source) == ("folder", "small", "small.py:make")
    assert found.io == IO
    assert set(found.files) == {"model.onnx"}
    assert found.graph is not None
    assert found.graph.operators["Attention"] == 1
    assert found.deploy == ()
    assert found.next == (f"attnport fuse {folder}",)


def test_a_changed_file_of_a_folder_is_an_integrity_error(folder: Path) -> None:
    data = bytearray((folder / "model.onnx").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "model.onnx").write_bytes(data)
    with pytest.raises(IntegrityError, match=r"model\.onnx is not the file that was written"):
        inspect(folder)


@pytest.mark.parametrize("keep", [0, 1, 100])
def test_a_manifest_cut_short_is_an_error(folder: Path, keep: int) -> None:
    manifest = folder / "attnport.json"
    manifest.write_bytes(manifest.read_bytes()[:keep])
    with pytest.raises(ArtifactError, match="not a valid Manifest"):
        inspect(folder)


def test_what_is_none_of_these_is_an_error_that_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="does not exist"):
        inspect(tmp_path / "nothing")
    with pytest.raises(ArtifactError, match="is no artifact"):
        inspect(tmp_path)
    other = tmp_path / "notes.txt"
    other.touch()
    with pytest.raises(ArtifactError, match=r"got suffix '\.txt'"):
        inspect(other)


def test_what_was_found_survives_json(onnx_file: Path, engine: Path, folder: Path) -> None:
    for path in (onnx_file, engine, folder):
        found = inspect(path)
        assert from_json(Inspection, to_json(found), "inspection") == found
