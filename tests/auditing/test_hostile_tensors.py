"""Tensors that somebody made up to break a reader are said not to be looked at; none of them stops an audit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from attnport.auditing.text import MOST
from attnport.verbs.audit import AuditReport, audit

pytestmark = pytest.mark.usefixtures("unconfined")
TEXT = b"Dear Dr. Miller, thank you for your letter of May; the results of Mr. Jones are with us. Yours, B."


def stored(tensor: TensorProto, path: Path) -> Path:
    """A model file with one tensor, used by one node."""
    tensor.name = "c"
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Cast", ["c"], ["y"], to=1)], "main", [], [out], [tensor])
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path


def external(**entries: str) -> TensorProto:
    """A tensor of bytes beside the file, by default all of `w.bin`."""
    tensor = TensorProto(data_type=TensorProto.UINT8, dims=[len(TEXT)], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "w.bin", **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def audited(tensor: TensorProto, folder: Path) -> AuditReport:
    (folder / "w.bin").write_bytes(TEXT)
    return audit(stored(tensor, folder / "net.onnx"))


def about_tensors(report: AuditReport) -> list[str]:
    """The notes but for the one that a graph is no graph, which onnx_ir says of some."""
    return [note for note in report.notes if "outputs were not looked at" not in note]


PLACES = {
    "a NUL": ({"location": "a\0b"}, "missing or outside"),
    "a long name": ({"location": "a" * 300}, "missing or outside"),
    "a circle": ({"location": "circle"}, "missing or outside"),
    "no name": ({"location": ""}, "missing or outside"),
    "a large offset": ({"offset": str(10**17)}, "beyond the end"),
    "an offset that no seek takes": ({"offset": str(10**30)}, "beyond the end"),
    "a large length": ({"length": str(10**30)}, "beyond the end"),
    "a negative offset": ({"offset": "-1"}, "cannot be read"),
    "an offset of words": ({"offset": "one"}, "cannot be read"),
    "another length": ({"length": str(len(TEXT) - 1)}, "not that of their type and dims"),
    "too many digits": ({"offset": "1" * 5000}, "cannot be read"),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_place_that_is_none(name: str, tmp_path: Path) -> None:
    entries, why = PLACES[name]
    (tmp_path / "circle").symlink_to("circle")
    (note,) = about_tensors(audited(external(**entries), tmp_path))
    assert why in note
    assert note.isprintable()
    assert len(note) < 2 * MOST


def test_what_lies_inside_the_file_of_a_range_that_is_too_long_is_looked_at(tmp_path: Path) -> None:
    (finding,) = audited(external(length=str(10**30)), tmp_path).findings
    assert finding.kind == "data_constant"
    assert "Dear Dr. Miller" in finding.evidence


@pytest.mark.parametrize("spelling", ["./w.bin", "../{folder}/w.bin", "{path}/w.bin"])
def test_a_place_in_another_spelling_is_the_same_place(
    spelling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = spelling.format(folder=tmp_path.name, path=tmp_path)
    (tmp_path / "w.bin").write_bytes(TEXT)
    for name, place in (("net", location), ("other", "w.bin")):
        stored(external(location=place, length=str(len(TEXT) // 2)), tmp_path / f"{name}.onnx")
    monkeypatch.chdir(tmp_path.parent)
    report = audit(Path(tmp_path.name) / "net.onnx")
    assert report.files == ("net.onnx", "w.bin")
    assert [finding.kind for finding in report.findings] == ["unreferenced_bytes"]
    stored(external(offset=str(len(TEXT) // 2)), tmp_path / "other.onnx")
    assert audit(Path(tmp_path.name) / "net.onnx").findings == ()


MALFORMED: dict[str, dict[str, Any]] = {
    "a type that is none": {"data_type": 99, "dims": [64], "int32_data": range(64)},
    "no type": {"dims": [64], "int32_data": range(64)},
    "another size": {"data_type": TensorProto.INT64, "dims": [7], "int64_data": range(64)},
    "a negative size": {"data_type": TensorProto.INT4, "dims": [-5, 3], "int32_data": range(64)},
    "a negative size beside raw bytes": {"data_type": TensorProto.FLOAT, "dims": [-4, -4], "raw_data": bytes(64)},
    "a size beyond all": {"data_type": TensorProto.FLOAT, "dims": [1 << 62, 1 << 62], "float_data": [1.0] * 64},
}


@pytest.mark.parametrize("name", MALFORMED)
def test_numbers_that_do_not_fit(name: str, tmp_path: Path) -> None:
    (note,) = about_tensors(audited(TensorProto(**MALFORMED[name]), tmp_path))
    assert note == "net.onnx: graph.initializer[c]: its numbers do not fit its type and shape"


def test_a_place_beside_bytes_of_its_own_hides_nothing(tmp_path: Path) -> None:
    tensor = external(location="gone.bin")
    tensor.data_location = TensorProto.DEFAULT
    tensor.raw_data = TEXT
    assert [finding.kind for finding in audited(tensor, tmp_path).findings] == ["data_constant"]


def test_no_file_outside_of_the_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    monkeypatch.chdir(tmp_path)  # where onnx looks when it is not told of a folder
    (tmp_path / "secret").write_bytes(TEXT)
    tensor = external(location="secret", offset="-1")
    tensor.int32_data.extend(range(64))
    report = audited(tensor, inside)
    assert report.findings == ()
    assert len(about_tensors(report)) == 1


def test_what_is_well_formed_has_no_note(tmp_path: Path) -> None:
    typed = TensorProto(data_type=TensorProto.INT64, dims=[64], int64_data=range(64))
    for tensor in (typed, numpy_helper.from_array(np.zeros(64, np.uint8)), external(), TensorProto(data_type=1)):
        assert audited(tensor, tmp_path).notes == ()
        onnx.load(tmp_path / "net.onnx")
