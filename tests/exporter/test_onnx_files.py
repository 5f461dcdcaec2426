"""`onnx:`: files that other exporters made go through export, fuse and check as their module does."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from contrib_nodes import COMPUTED
from foreign_exports import exported, scripted
from representatives import representatives
from test_known_modules import CASES

import attnport
from attnport.errors import SpecError, UsageError
from attnport.example_values import packed
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse

pytestmark = pytest.mark.usefixtures("unconfined")
SCRIPT, DYNAMO = "TorchScript", "dynamo"
DECLARED = {"hide": "hide=bool[batch,seq]:padding:hide", "hide_memory": "hide_memory=bool[batch,mem]:padding:hide"}
ARCHITECTURES = ("bert-eager", "roberta-sdpa", "gpt2-sdpa", "llama-sdpa", "qwen3-sdpa", "mistral-eager", "gemma2-eager",
                 "transformer", "attention_bias_kv", "bloom-eager", "t5-sdpa", "vit-sdpa", "whisper-sdpa",
                 "swin-eager", "attention_cross_padding", "attention_weights_causal_padding", "encoder_causal_padding",
                 "decoder_all_masks", "attention_bias", "differential")  # fmt: skip
QUICK = {("bert-eager", SCRIPT, 17)}
OLDER = ("bert-eager", "gpt2-sdpa", "llama-sdpa", "t5-sdpa", "vit-sdpa", "bloom-eager")
"""Those that the older exporter can export with free lengths."""
EACH = [
    pytest.param(name, exporter, opset, marks=() if (name, exporter, opset) in QUICK else pytest.mark.slow)
    for name in ARCHITECTURES
    for exporter, opset in ((SCRIPT, 17), (DYNAMO, 18), (DYNAMO, 23))
    if (name in OLDER if exporter == SCRIPT else opset == 18 or name in ARCHITECTURES[::3])
]


def written(model: ir.Model | onnx.ModelProto, folder: Path, name: str = "theirs.onnx") -> Path:
    proto = model if isinstance(model, onnx.ModelProto) else ir.to_proto(model)
    (folder / name).write_bytes(proto.SerializeToString())
    return folder / name


@pytest.mark.parametrize(("name", "exporter", "opset"), EACH)
def test_a_file_of_an_architecture_is_fused_as_its_module_and_passes(
    name: str, exporter: str, opset: int, tmp_path: Path
) -> None:
    case = CASES[name]
    made = exported(case.make(), case.io, opset) if exporter == DYNAMO else scripted(case.make(), case.io, opset)
    inputs = [DECLARED[spec.name] for spec in case.io.inputs if spec.name in DECLARED]
    dims = [str(dim) for dim in case.io.dims]
    manifest = export(f"onnx:{written(made, tmp_path)}", tmp_path / "out", inputs=inputs, dims=dims)
    expected = {attention: mask for attention, _, mask in case.attentions}
    assert {each.name for each in manifest.attentions} == set(expected)
    report = fuse(tmp_path / "out", targets=["ort_cpu"])
    assert {item.attention: item.mask for item in report.targets["ort_cpu"].items} == expected
    assert check(tmp_path / "out", ["ort_cpu"]).verdict == "PASS"


def by_hand(width: int = 8, mask: str = "attention_mask") -> onnx.ModelProto:
    """Attention as somebody writes it with `MatMul`, `Softmax` and `Where`, one head, weights for q, k and v."""
    text = f"""
        <ir_version: 8, opset_import: ["" : 13]>
        theirs (float[N,L,{width}] hidden, int64[N,L] {mask}) => (float[N,L,{width}] y)
        <float[{width},{width}] wq, float[{width},{width}] wk, float[{width},{width}] wv,
         float scale = {{0.5}}, float low = {{-1e9}}>
        {{
            q = MatMul(hidden, wq)
            k = MatMul(hidden, wk)
            v = MatMul(hidden, wv)
            kt = Transpose<perm = [0, 2, 1]>(k)
            products = MatMul(q, kt)
            scaled = Mul(products, scale)
            kept = Cast<to = 9>({mask})
            axis = Constant<value_ints = [1]>()
            keys = Unsqueeze(kept, axis)
            masked = Where(keys, scaled, low)
            weights = Softmax<axis = -1>(masked)
            y = MatMul(weights, v)
        }}"""
    model = onnx.parser.parse_model(text)
    model.graph.node[-1].output[0] = model.graph.output[0].name = "out.1"
    random = np.random.default_rng(0)
    filled = {"wq", "wk", "wv"}
    for tensor in [each for each in model.graph.initializer if each.name in filled]:
        model.graph.initializer.remove(tensor)
    for name in sorted(filled):
        array = random.standard_normal((width, width)).astype(np.float32) / 3
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def test_a_file_written_by_hand_is_recognised_with_its_mask(tmp_path: Path) -> None:
    artifact = attnport.export(f"onnx:{written(by_hand(), tmp_path)}", tmp_path / "out")
    assert [str(spec) for spec in artifact.manifest.io.inputs] == [
        "hidden=float32[batch,L,8]", "attention_mask=int64[batch,L]",
    ]  # fmt: skip
    assert [spec.name for spec in artifact.manifest.io.outputs] == ["out_1"]
    report = artifact.fuse(["ort_cpu", "openvino"])
    for table in report.targets.values():
        assert [(item.mask, item.fused) for item in table.items] == [("padding(attention_mask)", True)]
    assert artifact.check(["ort_cpu", "openvino"]).verdict == "PASS"


@pytest.mark.slow
def test_a_file_in_half_precision_is_widened_with_the_same_weights(tmp_path: Path) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    half = convert_float_to_float16(by_hand())
    told: list[str] = []
    manifest = export(f"onnx:{written(half, tmp_path)}", tmp_path / "out", tell=told.append)
    assert manifest.io.inputs[0].dtype == "float32"
    assert any("float16" in line for line in told)
    expected = {each.name: onnx.numpy_helper.to_array(each) for each in half.graph.initializer}
    stored = ir.load(tmp_path / "out" / "model.onnx").graph.initializers
    assert np.array_equal(stored["wq"].const_value.numpy(), expected["wq"].astype(np.float32))


@pytest.mark.slow
def test_a_tokenizer_beside_the_file_is_its_tokenizer(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        theirs (int64[batch,seq] input_ids) => (float[batch,seq,2] y)
        <float[3,2] table = {0., 1., 2., 3., 4., 5.}>
        { y = Gather(table, input_ids) }""")
    file = written(model, tmp_path)
    assert export(f"onnx:{file}", tmp_path / "out").tokenizer is None
    (tmp_path / "tokenizer.json").write_text("{}")
    manifest = export(f"onnx:{file}", tmp_path / "out", force=True)
    assert manifest.tokenizer == "tokenizer.json"
    assert manifest.io.inputs[0].high == 3


@pytest.mark.slow
def test_an_output_may_be_an_input_too(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        theirs (float[batch,seq] x) => (float[batch,seq] x, float[batch,seq] y)
        { y = Relu(x) }""")
    manifest = export(f"onnx:{written(model, tmp_path)}", tmp_path / "out")
    assert [spec.name for spec in manifest.io.outputs] == ["x_out", "y"]


def test_operators_that_stay_are_named(tmp_path: Path) -> None:
    told: list[str] = []
    file = written(COMPUTED["sink"].model(), tmp_path)
    fixed = []
    for name, array in COMPUTED["sink"].feeds.items():
        sizes = ",".join(map(str, array.shape))
        fixed.append(f"{name}={array.dtype}[{sizes}]:example={packed(array)}")
    export(f"onnx:{file}", tmp_path / "out", inputs=fixed, tell=told.append)
    assert any("GroupQueryAttention" in line for line in told)


@pytest.mark.slow
def test_weights_beside_the_file_go_into_the_artifact(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    onnx.save(by_hand(width=24), theirs / "theirs.onnx", save_as_external_data=True, location="data", size_threshold=0)
    export(f"onnx:{theirs / 'theirs.onnx'}", tmp_path / "out")
    shutil.rmtree(theirs)
    graph = ir.load(tmp_path / "out" / "model.onnx").graph
    stored = {str(value.const_value.location) for value in graph.initializers.values()
              if isinstance(value.const_value, ir.ExternalTensor)}  # fmt: skip
    assert stored == {"weights.bin"}
    fuse(tmp_path / "out", targets=["ort_cpu"])


def test_weights_outside_the_folder_are_not_read(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    model = by_hand()
    (tmp_path / "secret").write_bytes(bytes(8 * 8 * 4))
    tensor = next(each for each in model.graph.initializer if each.name == "wq")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "../secret"), ("offset", "0"), ("length", "256")):
        tensor.external_data.add(key=key, value=value)
    with pytest.raises(SpecError, match=re.escape("'../secret', outside")):
        export(f"onnx:{written(model, inside)}", tmp_path / "out")
    next(entry for entry in tensor.external_data if entry.key == "location").value = "gone"
    with pytest.raises(SpecError, match="'gone', which is missing"):
        export(f"onnx:{written(model, inside)}", tmp_path / "out")


def test_what_is_no_file_of_onnx_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("this is no protobuf")
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "cut.onnx").write_bytes(by_hand().SerializeToString()[:200])
    for name in ("text.onnx", "empty.onnx", "cut.onnx", "none.onnx", "."):
        with pytest.raises(SpecError, match=r"not a readable file|not there|a folder|has no outputs"):
            export(f"onnx:{tmp_path / name}", tmp_path / "out")
    with pytest.raises(SpecError, match=r"onnx:theirs\.onnx: theirs\.onnx is not there"):
        export("theirs.onnx", tmp_path / "out")


def test_inputs_are_declared_where_the_file_does_not_tell(tmp_path: Path) -> None:
    model = by_hand(mask="valid")
    file = written(model, tmp_path)
    with pytest.raises(UsageError, match="the graph's inputs are hidden, valid"):
        export(f"onnx:{file}", tmp_path / "out", inputs=["other=int64[batch,L]"])
    manifest = export(f"onnx:{file}", tmp_path / "out", inputs=["valid=int64[batch,L]:padding"])
    assert [mask.input for mask in manifest.io.masks] == ["valid"]
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(SpecError, match="does not say how many dims input hidden has"):
        export(f"onnx:{written(model, tmp_path)}", tmp_path / "other")


def test_random_operators_are_refused(tmp_path: Path) -> None:
    model = by_hand()
    model.graph.node[-1].input[0] = "noisy"
    model.graph.node.insert(
        len(model.graph.node) - 1, onnx.helper.make_node("RandomNormalLike", ["weights"], ["noise"], name="noise")
    )
    model.graph.node.insert(len(model.graph.node) - 1, onnx.helper.make_node("Add", ["weights", "noise"], ["noisy"]))
    with pytest.raises(SpecError, match=r"deterministic|noise"):
        export(f"onnx:{written(model, tmp_path)}", tmp_path / "out")


def test_nothing_that_the_file_says_is_run(tmp_path: Path) -> None:
    from attnport.artifacts import Source
    from attnport.sources.code import runs_code

    assert not runs_code(Source(f"onnx:{tmp_path / 'theirs.onnx'}"))


@pytest.mark.slow
def test_branches_and_loops_are_computed(tmp_path: Path) -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        theirs (float[batch,seq] x) => (float[batch,seq] y)
        {
            size = Shape<start = 1, end = 2>(x)
            zero = Constant<value_ints = [0]>()
            count = Squeeze(size, zero)
            total = ReduceSum<keepdims = 0>(x)
            none = Constant<value_float = 0.0>()
            positive = Greater(total, none)
            chosen = If(positive) <
                then_branch = positive_branch () => (float[batch,seq] same) { same = Identity(x) },
                else_branch = negative_branch () => (float[batch,seq] other) { other = Neg(x) }
            >
            y = Loop(count, , chosen) <
                body = body (int64 at, bool going, float[batch,seq] held) => (bool on, float[batch,seq] next)
                { half = Constant<value_float = 0.5>() next = Mul(held, half) on = Identity(going) }
            >
        }"""
    artifact = attnport.export(f"onnx:{written(onnx.parser.parse_model(text), tmp_path)}", tmp_path / "out",
                               dims=["seq=1:3:9"])  # fmt: skip
    artifact.fuse(["ort_cpu"])
    assert artifact.check(["ort_cpu"]).verdict == "PASS"


@pytest.mark.parametrize("name", representatives(["bert-eager", "bert-sdpa"], ["bert-eager"]))
def test_what_onnx_runtimes_optimiser_made_is_read_back(name: str, tmp_path: Path) -> None:
    from onnxruntime.transformers import optimizer

    case = CASES[name]
    plain = written(scripted(case.make(), case.io, 17), tmp_path)
    fused = optimizer.optimize_model(str(plain), model_type="bert", num_heads=2, hidden_size=16, opt_level=0)
    own = {node.op_type for node in fused.model.graph.node if node.domain == "com.microsoft"}
    assert {"SkipLayerNormalization", "BiasGelu"} <= own
    fused.save_model_to_file(str(tmp_path / "fused.onnx"))
    manifest = export(f"onnx:{tmp_path / 'fused.onnx'}", tmp_path / "out", dims=list(map(str, case.io.dims)))
    assert len(manifest.attentions) == 2
    graph = ir.load(tmp_path / "out" / "model.onnx").graph
    assert {node.domain for node in graph} == {""}
    report = fuse(tmp_path / "out", targets=["ort_cpu", "openvino"])
    for table in report.targets.values():
        assert [item.fused for item in table.items] == [True, True]
    assert check(tmp_path / "out", ["ort_cpu", "openvino"]).verdict == "PASS"
