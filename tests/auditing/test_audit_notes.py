"""Notes are found wherever in an ONNX file they stand, and cleaning takes them away and nothing else."""

from __future__ import annotations

from pathlib import Path

import onnx
import planted
import pytest

from attnport.auditing.onnx_file import KEPT, audit_notes, clean, load
from attnport.auditing.text import Builder, Finding
from attnport.errors import ArtifactError
from attnport.verbs.audit import replace_file

NOBODY = Builder()
PLACES = sorted(planted.places(planted.model()))
NOTED = [place for place in PLACES if hasattr(planted.places(planted.model())[place], "metadata_props")]


def found(model: onnx.ModelProto) -> list[Finding]:
    return list(audit_notes("m.onnx", model, NOBODY))


def cleaned(model: onnx.ModelProto) -> onnx.ModelProto:
    again = onnx.ModelProto()
    again.ParseFromString(clean(model, NOBODY))
    return again


@pytest.fixture
def model() -> onnx.ModelProto:
    made = planted.model()
    planted.places(made)  # training information is there in all of them
    assert not found(made)
    return made


@pytest.mark.parametrize("place", PLACES)
def test_a_doc_string_anywhere(place: str, model: onnx.ModelProto) -> None:
    before = model.SerializeToString(deterministic=True)
    planted.places(model)[place].doc_string = "by the team of floor 3"
    (finding,) = found(model)
    assert (finding.kind, finding.evidence, finding.fixable) == ("doc_string", "by the team of floor 3", True)
    assert clean(model, NOBODY) == before


@pytest.mark.parametrize("place", NOTED)
def test_a_note_anywhere(place: str, model: onnx.ModelProto) -> None:
    before = model.SerializeToString(deterministic=True)
    planted.note(planted.places(model)[place], "pkg.torch.onnx.fx_node", "%linear")
    planted.note(planted.places(model)[place], "remark", f"from {planted.LEAK}")
    assert {finding.kind for finding in found(model)} == {"metadata", "path", "user"}
    assert all(finding.fixable for finding in found(model))
    assert clean(model, NOBODY) == before


def test_notes_that_give_nothing_away_stay(model: onnx.ModelProto) -> None:
    planted.note(model.graph.node[0], KEPT, "['', 'encoder']")
    planted.note(model, "classes", "cat, dog")
    model.producer_name = "pytorch"
    before = model.SerializeToString(deterministic=True)
    assert not found(model)
    assert clean(model, NOBODY) == before


def test_a_kept_note_that_names_a_path_goes(model: onnx.ModelProto) -> None:
    planted.note(model.graph.node[0], KEPT, f"['', '{planted.LEAK}']")
    assert {finding.kind for finding in found(model)} == {"path", "user"}
    assert not cleaned(model).graph.node[0].metadata_props


def test_a_stack_trace_is_called_one_and_shows_its_path_and_line(model: onnx.ModelProto) -> None:
    trace = f'File "{planted.LEAK}", line 3, in forward\n    return self.recipe(x)'
    planted.note(model.graph.node[0], "pkg.torch.onnx.stack_trace", trace)
    by_kind = {finding.kind: finding for finding in found(model)}
    assert by_kind.keys() == {"stack_trace", "source_line", "path", "user"}
    assert by_kind["source_line"].evidence == "return self.recipe(x)"
    assert by_kind["path"].where == "graph.node[if].metadata_props"


@pytest.mark.parametrize("place", ["model", "node in a branch", "node in a function", "initializer", "type"])
def test_a_field_that_the_format_does_not_know(place: str, model: onnx.ModelProto) -> None:
    before = model.SerializeToString(deterministic=True)
    message = planted.places(model)[place]
    message.MergeFromString(b"\xfa\x3f\x06secret")  # field 1023, six bytes
    again = onnx.ModelProto.FromString(model.SerializeToString())
    (finding,) = found(again)
    assert (finding.kind, finding.evidence, finding.fixable) == ("unknown_field", "field 1023: secret", True)
    assert clean(again, NOBODY) == before


def test_an_unknown_key_of_data_beside_the_file(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", "0"), ("basepath", planted.LEAK), ("length", "16")):
        tensor.external_data.add(key=key, value=value)
    assert {(one.kind, one.fixable) for one in found(model)} == {("metadata", True)}
    kept = cleaned(model).graph.initializer[0].external_data
    assert [entry.key for entry in kept] == ["location", "offset", "length"]


def test_names_and_values_are_found_and_stay_as_they_are(model: onnx.ModelProto) -> None:
    model.graph.node[0].name = f"{planted.LEAK}/If"
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "/" + "home/alice/batch"
    model.graph.node[1].attribute.add(name="at", type=onnx.AttributeProto.STRING, s=planted.LEAK.encode())
    paths = [finding for finding in found(model) if finding.kind == "path"]
    assert len(paths) == 3
    assert not any(finding.fixable for finding in found(model))
    assert all(finding.advice for finding in found(model))
    assert clean(model, NOBODY) == model.SerializeToString(deterministic=True)


def test_what_is_no_onnx_file_is_refused(tmp_path: Path, model: onnx.ModelProto) -> None:
    data = model.SerializeToString()
    for name, part in {"cut": data[: len(data) // 2], "empty": b"", "text": b"hello"}.items():
        (tmp_path / name).write_bytes(part)
        with pytest.raises(ArtifactError, match=name):
            load(tmp_path / name)


def test_a_file_is_replaced_all_at_once_with_its_mode_and_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, link = tmp_path / "real.onnx", tmp_path / "link.onnx"
    real.write_bytes(b"old")
    real.chmod(0o640)
    link.symlink_to(real)
    replace_file(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert real.stat().st_mode & 0o777 == 0o640

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(real, b"half")
    assert real.read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.onnx", "real.onnx"]
