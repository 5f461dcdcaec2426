"""Graphs beside shared weights: what is stored once, what damage is called, what cannot leave the folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from attnport.errors import ArtifactError
from attnport.exporter import storage


def two_weights() -> ir.Model:
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 23]> g (float[N,32] x) => (float[N,32] y)'
        "{ a = MatMul(x, w) b = MatMul(a, same) c = Mul(b, small) y = Add(c, small) }"
    )
    w = np.arange(32 * 32, dtype=np.float32).reshape(32, 32)
    for name, array in (("w", w), ("same", w), ("small", np.float32([3]))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return ir.from_proto(proto)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    storage.save_exported(two_weights(), tmp_path / "model.onnx", "weights.bin")
    return tmp_path / "model.onnx"


def test_equal_weights_are_stored_once_and_small_ones_inside(saved: Path) -> None:
    assert (saved.parent / "weights.bin").stat().st_size == 4 * 32 * 32
    model = storage.load(saved)
    kinds = {name: type(value.const_value) for name, value in model.graph.initializers.items()}
    assert kinds["small"] is not ir.ExternalTensor
    assert list(kinds.values()).count(ir.ExternalTensor) == 1
    onnx.checker.check_model(saved)


def test_a_form_refers_to_the_shared_weights_and_adds_what_it_changed(saved: Path) -> None:
    form = storage.load(saved)
    before = (saved.parent / "weights.bin").read_bytes()
    assert not storage.save_form(form, saved.parent / "model.a.onnx", "model.a.bin")
    assert not (saved.parent / "model.a.bin").exists()
    changed = ir.Value(name="new", const_value=ir.tensor(np.ones((32, 32), np.float16), name="new"))
    form.graph.register_initializer(changed)
    assert storage.save_form(form, saved.parent / "model.b.onnx", "model.b.bin")
    again = storage.load(saved.parent / "model.b.onnx")
    places = {name: str(value.const_value.location) for name, value in again.graph.initializers.items()
              if isinstance(value.const_value, ir.ExternalTensor)}  # fmt: skip
    assert sorted(places.values()) == ["model.b.bin", "weights.bin"]
    assert (saved.parent / "weights.bin").read_bytes() == before


def test_a_form_that_reads_little_of_the_shared_weights_takes_it_along(tmp_path: Path) -> None:
    exported = two_weights()
    exported.graph.initializers["same"].const_value = ir.tensor(np.ones((32, 32), np.float32), name="same")
    storage.save_exported(exported, tmp_path / "model.onnx", "weights.bin")
    form = storage.load(tmp_path / "model.onnx")
    assert not storage.reads_little(form)
    form.graph.initializers["same"].const_value = ir.tensor(np.ones((64, 32), np.int8), name="same")
    assert storage.reads_little(form)
    assert storage.save_form(form, tmp_path / "model.a.onnx", "model.a.bin", again=True)
    again = storage.load(tmp_path / "model.a.onnx").graph.initializers
    places = {name: str(value.const_value.location) for name, value in again.items()
              if isinstance(value.const_value, ir.ExternalTensor)}  # fmt: skip
    assert places == {"w": "model.a.bin", "same": "model.a.bin"}
    assert np.array_equal(again["w"].const_value.numpy(), two_weights().graph.initializers["w"].const_value.numpy())


def test_the_same_graph_is_the_same_bytes(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    storage.save_exported(two_weights(), tmp_path / "again" / "model.onnx", "weights.bin")
    assert (tmp_path / "again" / "model.onnx").read_bytes() == saved.read_bytes()


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
def test_a_file_that_was_cut_short_is_refused(saved: Path, kept: float) -> None:
    data = saved.read_bytes()
    saved.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(ArtifactError, match=r"model\.onnx is not a"):
        storage.load(saved)


def test_no_prefix_of_a_file_is_taken_for_the_whole(saved: Path) -> None:
    data = saved.read_bytes()
    for length in range(len(data)):
        saved.write_bytes(data[:length])
        with pytest.raises(ArtifactError):
            storage.load(saved)


def test_a_missing_file_is_an_artifact_error(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="absent"):
        storage.load(tmp_path / "absent.onnx")


def place(name: str) -> Callable[[onnx.TensorProto], None]:
    def change(tensor: onnx.TensorProto) -> None:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = name

    return change


def number(key: str, value: str) -> Callable[[onnx.TensorProto], None]:
    def change(tensor: onnx.TensorProto) -> None:
        for entry in tensor.external_data:
            if entry.key == key:
                entry.value = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (place("../weights.bin"), "outside"),
        (place("/etc/hostname"), "outside"),
        (place("a/../../weights.bin"), "outside"),
        (place("link.bin"), "outside"),
        (place("absent.bin"), "absent.bin', which is missing"),
        (number("length", "16"), "its shape and type need 4096"),
        (number("offset", "4096"), "ends at byte 8192 of weights.bin, which has 4096"),
    ],
)
def test_external_data_that_is_not_where_it_should_be_names_the_tensor(
    saved: Path, tmp_path_factory: pytest.TempPathFactory, change: Callable[[onnx.TensorProto], None], message: str
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "secret.bin"
    outside.write_bytes(bytes(4096))
    (saved.parent / "link.bin").symlink_to(outside)
    proto = onnx.load(saved, load_external_data=False)
    tensor = next(each for each in proto.graph.initializer if each.external_data)
    change(tensor)
    saved.write_bytes(proto.SerializeToString())
    with pytest.raises(ArtifactError, match=message) as caught:
        storage.load(saved)
    assert f"tensor {tensor.name!r}" in caught.value.message


def test_weights_that_were_cut_short_are_noticed(saved: Path) -> None:
    weights = saved.parent / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ArtifactError, match=r"ends at byte 4096 of weights\.bin, which has 4095"):
        storage.load(saved)


def test_external_data_of_an_attribute_is_checked_as_well(saved: Path) -> None:
    proto = onnx.load(saved, load_external_data=False)
    tensor = next(each for each in proto.graph.initializer if each.external_data)
    place("../weights.bin")(tensor)
    node = onnx.helper.make_node("Constant", [], ["k"], name="hidden", value=tensor)
    proto.graph.node.insert(0, node)
    proto.graph.initializer.remove(tensor)
    proto.graph.node[1].input[1] = proto.graph.node[2].input[1] = "k"
    saved.write_bytes(proto.SerializeToString())
    with pytest.raises(ArtifactError, match="outside the model's folder"):
        storage.load(saved)


def test_what_lies_transposed_in_memory_is_written_in_order_block_by_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "BLOCK_BYTES", 1000)
    model = two_weights()
    w = np.arange(32 * 40, dtype=np.float32).reshape(40, 32).T
    for name in ("w", "same"):
        model.graph.initializers[name].const_value = ir.tensor(w, name=name)
    storage.save_exported(model, tmp_path / "model.onnx", "weights.bin")
    assert (tmp_path / "weights.bin").read_bytes() == np.ascontiguousarray(w).tobytes()
