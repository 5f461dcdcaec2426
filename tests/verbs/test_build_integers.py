"""Engines with weights in few bits: judged by a metric, kept so by the builder, and judged by a bundle."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from decoders import exported
from text_artifact import WORDS, write_tokenizer

from attnport.bundling.write import GOLDENS
from attnport.errors import ParityFailed, UsageError
from attnport.folder.workspace import change, open_folder, read_parity
from attnport.verbs.build import build
from attnport.verbs.bundle import bundle
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.fuse import drop_forms, fuse
from attnport.verbs.tune import tune
from attnport_bundle.goldens import read_safetensors

pytest.importorskip("tensorrt_rtx")
pytest.importorskip("onnxruntime")
PROFILE = "batch=1:2:4,seq=1:16:64"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported BERT of width 256, two layers of which have rows that no block divides."""
    transformers = pytest.importorskip("transformers")
    place = tmp_path_factory.mktemp("integers")
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=1040,
        max_position_embeddings=64,
    )  # fmt: skip
    model = transformers.BertModel(config)
    with torch.no_grad():
        model.encoder.layer[0].output.dense.weight[:3] = 0  # has no scale
        model.encoder.layer[0].output.dense.weight[3:6] *= 1e-9
    model.save_pretrained(place / "model")
    write_tokenizer(place / "model" / "tokenizer.json")
    export(f"hf:{place / 'model'}", place / "out")
    check(place / "out", ["ort_cpu"])
    return place / "out"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "sentences.txt"
    random = np.random.default_rng(0)
    lines = (" ".join(f"w{word}" for word in random.integers(0, 40, random.integers(3, 12))) for _ in range(60))
    path.write_text("\n".join(lines))
    return path


def dtypes(path: Path) -> dict[str, int]:
    """How many initializers of each type a graph has; those that `DequantizeLinear` reads."""
    graph = onnx.load(path, load_external_data=False).graph
    read = {node.input[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    names = [onnx.TensorProto.DataType.Name(one.data_type) for one in graph.initializer if one.name in read]
    return {name: names.count(name) for name in set(names)}


def test_weights_are_integers_in_the_graph_and_in_the_engine(folder: Path, text: Path, tmp_path: Path) -> None:
    plain, _ = build(folder, "tensorrt_rtx", "fp16", profiles=(PROFILE,))
    told: list[str] = []
    record, table = build(folder, "tensorrt_rtx", "int8-fp16", (PROFILE,), text=text, max_drop=0.5, tell=told.append)
    assert (record.plan, record.form, table.fused, table.attentions) == ("int8_fp16", "tensorrt_rtx.int8_fp16", 2, 2)
    assert record.size_bytes < plain.size_bytes
    form = open_folder(folder).forms[record.form]
    assert form.integers is not None
    assert (form.integers.bits, form.integers.items, form.integers.kept) == (8, (30, 30), ())
    assert dtypes(folder / form.file) == {"INT8": 12}  # of 8 layers: q, k and v are one
    assert told == [f"{record.form}: {form.integers}"]
    # Without items, what was judged before is built.
    again, _ = build(folder, "tensorrt_rtx", "int8_fp16", (PROFILE,), tell=told.append)
    assert again == record
    parity = read_parity(folder, open_folder(folder))
    assert parity is not None
    assert parity.forms[record.form].verdict == "PASS"
    assert not any(name.startswith("tensorrt_rtx") for name in parity.runtimes)  # nothing ran the engine
    app = bundle(folder, tmp_path / "app", forms=[record.form, "ort_cpu"])
    cases = read_safetensors((app / GOLDENS).read_bytes(), "the goldens")
    assert any(".int8_fp16/out/" in name for name in cases)


def test_rows_of_several_blocks_have_four_bits_and_others_eight(folder: Path, text: Path) -> None:
    record, table = build(folder, "tensorrt_rtx", "int4_fp16", (PROFILE,), text=text, max_drop=0.9)
    assert (table.fused, table.attentions) == (2, 2)
    form = open_folder(folder).forms[record.form]
    assert form.integers is not None
    assert form.integers.kept == ()
    assert dtypes(folder / form.file) == {"INT4": 10, "INT8": 2}


@pytest.mark.parametrize(
    ("plan", "sm", "types"),
    [
        ("fp8_fp16", (89, 120, 121), {"FLOAT8E4M3FN": 12}),
        ("fp4_bf16", (120, 121), {"FLOAT4E2M1": 12, "FLOAT8E4M3FN": 12}),
    ],
)
def test_floats_of_few_bits_are_built_for_devices_that_read_them(
    folder: Path, text: Path, tmp_path: Path, plan: str, sm: tuple[int, ...], types: dict[str, int]
) -> None:
    plain, _ = build(folder, "tensorrt_rtx", plan[4:], profiles=(PROFILE,), sm=sm)
    record, table = build(folder, "tensorrt_rtx", plan, (PROFILE,), text=text, max_drop=0.5)
    assert (record.sm, table.fused, table.attentions) == (sm, 2, 2)
    assert record.size_bytes < plain.size_bytes
    form = open_folder(folder).forms[record.form]
    assert str(form.integers).startswith(f"8 of 8 layers in {plan[:3]}; ")
    assert dtypes(folder / form.file) == types
    app = bundle(folder, tmp_path / "app", forms=[record.form, "ort_cpu"])
    assert any(f".{plan}/out/" in name for name in read_safetensors((app / GOLDENS).read_bytes(), "the goldens"))
    with pytest.raises(UsageError, match=rf"--sm 86: TensorRT-RTX reads weights of {plan} from .* {sm[0]} on"):
        build(folder, "tensorrt_rtx", plan, (PROFILE,), sm=(86, 120))


def test_layers_that_cost_too_much_stay_finer_or_nothing_is_built(folder: Path, text: Path, tmp_path: Path) -> None:
    with pytest.raises(ParityFailed, match="with any layer in int8"):
        build(folder, "tensorrt_rtx", "int8_fp16", (PROFILE,), text=text, max_drop=1e-9, force=True)
    record, _ = build(folder, "tensorrt_rtx", "int4_fp16", (PROFILE,), text=text, max_drop=0.015, force=True)
    form = open_folder(folder).forms[record.form]
    assert form.integers is not None
    assert form.integers.drop <= 0.015 < form.integers.drop_of_all
    found = dtypes(folder / form.file)
    assert found["INT8"] > 2
    assert found["INT4"] + found["INT8"] == 12


def test_integers_need_items_and_items_need_integers(folder: Path, text: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    with change(other) as edit:
        drop_forms(edit, [key for key in edit.manifest.forms if "int" in key])
        edit.finish("fuse", "")
    with pytest.raises(UsageError, match="judged by items of yours") as raised:
        build(other, "tensorrt_rtx", "int8_fp16")
    assert "--text FILE" in raised.value.hint
    with pytest.raises(UsageError, match="--text goes with weights in few bits"):
        build(folder, "tensorrt_rtx", "fp16", text=text)


def test_a_decoder_with_its_cache_is_judged_by_perplexity(tmp_path: Path) -> None:
    folder = exported("llama", tmp_path)
    text = tmp_path / "lines.txt"
    text.write_text("\n".join(f"the port of {at} lies at {at * 7} miles" for at in range(60)))
    record, table = build(folder, "tensorrt_rtx", "int4_fp16", text=text, max_drop=0.9)
    assert table.fused == table.attentions == 2
    form = open_folder(folder).forms[record.form]
    assert form.integers is not None
    assert form.integers.metric == "perplexity"
    assert dtypes(folder / form.file)["INT4"] > 0


def products(path: Path) -> dict[tuple[int, str], int]:
    """How many products have weights of some bits, with scales of some type."""
    graph = onnx.load(path, load_external_data=False).graph
    types = {one.name: onnx.TensorProto.DataType.Name(one.data_type) for one in graph.initializer}
    nodes = [node for node in graph.node if node.op_type == "MatMulNBits"]
    keys = [(next(each.i for each in node.attribute if each.name == "bits"), types[node.input[2]]) for node in nodes]
    return {key: keys.count(key) for key in set(keys)}


def test_a_form_for_the_browser_has_four_bits_and_half_precision_between(
    folder: Path, text: Path, tmp_path: Path
) -> None:
    fuse(folder, targets=["ort_cpu"])
    record, table = build(folder, "ort_cpu", "int4_fp16", text=text, max_drop=0.9)
    assert record is None
    assert (table.fused, table.attentions) == (2, 2)
    form = open_folder(folder).forms["ort_cpu.int4_fp16"]
    assert form.integers is not None
    assert (form.integers.bits, form.integers.kept) == (4, ())
    assert products(folder / form.file) == {(4, "FLOAT16"): 12}
    report = check(folder, ["ort_cpu"])
    assert report.runtimes["ort_cpu.int4_fp16"].verdict == "PASS"
    assert "worse by" in report.runtimes["ort_cpu.int4_fp16"].reason
    app = bundle(folder, tmp_path / "app", forms=["ort_cpu.int4_fp16"])
    cases = read_safetensors((app / GOLDENS).read_bytes(), "the goldens")
    assert any(".int4_fp16/out/" in name for name in cases)


def test_what_it_costs_is_measured_of_the_form_itself(folder: Path, text: Path) -> None:
    build(folder, "ort_cpu", "int4_fp16", text=text, max_drop=0.015, force=True)
    form = open_folder(folder).forms["ort_cpu.int4_fp16"]
    assert form.integers is not None
    assert form.integers.drop <= 0.015 < form.integers.drop_of_all
    assert products(folder / form.file).keys() == {(4, "FLOAT16"), (8, "FLOAT16")}
    with pytest.raises(ParityFailed, match="with any layer in int4"):
        build(folder, "ort_cpu", "int4_fp16", text=text, max_drop=1e-9, force=True)


def test_what_is_not_for_that_form_is_refused(folder: Path, text: Path) -> None:
    with pytest.raises(UsageError, match="no engine is built for it"):
        build(folder, "ort_cpu", "fp16")
    with pytest.raises(UsageError, match="--profile and --sm are of engines"):
        build(folder, "ort_cpu", "int4_fp16", (PROFILE,), text=text)
    with pytest.raises(UsageError, match="for GPUs") as raised:
        tune(folder, ["ort_cpu.int4_fp16"], text=text)
    assert f"attnport build {folder} --target ort_cpu --precision int4_fp16" in raised.value.hint
