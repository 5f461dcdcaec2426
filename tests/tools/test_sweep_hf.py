"""The sweep over transformers' types: a wrong answer is seen, what is known is not measured again."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from attnport.dims import TensorSpec

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def load(name: str) -> ModuleType:
    """A file of the benchmarks, which finds those beside it; other tests do not."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    before = list(sys.path)
    sys.path.insert(0, str(FOLDER))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = before
    return module


@pytest.fixture(scope="module")
def sweep() -> ModuleType:
    return load("sweep_hf")


@pytest.fixture(scope="module")
def judge() -> ModuleType:
    return load("sweep_judge")


@pytest.fixture(scope="module")
def tiny() -> ModuleType:
    pytest.importorskip("transformers")
    return load("tiny_hf")


def outputs() -> dict[str, Any]:
    return {"last_hidden_state": torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))}


def test_what_the_module_gives_is_right(judge: ModuleType) -> None:
    expected = outputs()
    assert judge.differs([expected["last_hidden_state"].numpy()], expected) == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: one * 1.01, "off by"),
        (lambda one: one[:, :2], "has shape (2, 2, 4)"),
        (lambda one: np.where(one == one.max(), np.nan, one), "finite elsewhere"),
        (lambda one: np.zeros_like(one), "off by"),
    ],
)
def test_a_wrong_answer_is_seen(judge: ModuleType, change: Any, words: str) -> None:
    expected = outputs()
    assert words in judge.differs([change(expected["last_hidden_state"].numpy())], expected)


class KeepsTheBest(torch.nn.Module):
    """Gives the second number of the row whose first is the largest."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"best": x[x[:, 0].argmax(), 1:]}


@pytest.mark.parametrize("runtime", ["ONNX Runtime", "OpenVINO"])
@pytest.mark.parametrize(("answer", "right"), [(5.0, True), (-5.0, True), (4.0, False)])
def test_either_of_two_rows_is_right_where_rounding_decides(
    judge: ModuleType, tiny: ModuleType, tmp_path: Path, answer: float, right: bool, runtime: str
) -> None:
    given = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 2])
    gives = helper.make_tensor_value_info("best", onnx.TensorProto.FLOAT, [1])
    opset = helper.make_opsetid("", 20)
    node = helper.make_node("Constant", [], ["best"], value=numpy_helper.from_array(np.float32([answer])))
    onnx.save(
        helper.make_model(helper.make_graph([node], "g", [given], [gives]), ir_version=10, opset_imports=[opset]),
        tmp_path / "m.onnx",
    )
    feeds = [{"x": torch.tensor([[1.0, 5.0], [1.0, -5.0]])}]
    assert (judge.wrong(tmp_path / "m.onnx", KeepsTheBest(), feeds, runtime=runtime) == "") == right


def test_a_missing_output_is_seen(judge: ModuleType) -> None:
    assert "0 outputs; expected 1" in judge.differs([], outputs())


def test_outputs_of_integers_are_not_compared(sweep: ModuleType) -> None:
    codes, audio = TensorSpec("codes", "int64", ("batch",)), TensorSpec("audio", "float32", ("batch",))
    assert sweep.compared([codes, audio]) == ["audio"]


def test_rows_of_padding_are_not_compared_and_others_are(judge: ModuleType) -> None:
    import torch

    expected = outputs()
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    got = expected["last_hidden_state"].numpy().copy()
    got[1, 2] += 1
    assert judge.differs([got], expected, [mask]) == ""
    got[1, 1] += 1
    assert "off by" in judge.differs([got], expected, [mask])


def test_rows_of_sound_that_begin_with_padding_are_not_compared(judge: ModuleType) -> None:
    import torch

    expected = outputs()
    mask = torch.tensor([[1] * 12, [1] * 8 + [0] * 4])  # four frames make one row
    got = expected["last_hidden_state"].numpy().copy()
    got[1, 2] += 1
    assert judge.differs([got], expected, [mask], of_sound=True) == ""
    assert "off by" in judge.differs([got], expected, [mask])
    got[1, 1] += 1
    assert "off by" in judge.differs([got], expected, [mask], of_sound=True)


def test_what_is_known_is_only_measured_again_if_versions_changed_or_it_is_asked_for(sweep: ModuleType) -> None:
    right, wrong = {"right": True, "of": "torch 2 a"}, {"right": False, "of": "torch 2 a"}
    assert sweep.due(None, "torch 2 a", None)
    assert not sweep.due(right, "torch 2 a", None)
    assert not sweep.due(wrong, "torch 2 b", None)  # other code alone
    assert sweep.due(right, "torch 3 a", None)
    assert sweep.due(wrong, "torch 2 a", "wrong")
    assert not sweep.due(right, "torch 2 b", "wrong")
    assert sweep.due(right, "torch 2 b", "older")
    assert not sweep.due(right, "torch 2 a", "older")
    assert sweep.due(right, "torch 2 a", "all")


def test_a_process_has_the_processors_seconds_and_not_the_clocks(sweep: ModuleType) -> None:
    def waits() -> dict[str, Any]:
        time.sleep(1.2)
        return {"right": True}

    def computes() -> dict[str, Any]:
        while True:
            pass

    assert sweep.measured(waits, 1)["right"]
    assert sweep.measured(computes, 1)["reason"] == "it took more than 1 s"


def test_results_are_read_as_they_were_written(sweep: ModuleType, tmp_path: Path) -> None:
    found = {"bert": {"torch": {"right": True}}, "albert": {"torch": {"right": False, "reason": "no"}}}
    sweep.write(tmp_path / "found.json", found)
    assert sweep.read(tmp_path / "found.json") == found
    assert sweep.read(tmp_path / "none.json") == {}


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        ("bert", ["input_ids", "attention_mask"]),
        ("t5", ["input_ids", "attention_mask", "decoder_input_ids"]),
        ("clip", ["input_ids", "attention_mask", "pixel_values"]),
        ("deepseek_v2", ["input_ids", "attention_mask"]),  # its defaults leave the number of experts open
        ("zamba2", ["input_ids", "attention_mask"]),  # widths that its config works out from others
        ("layoutlmv3", ["input_ids", "attention_mask", "bbox", "pixel_values"]),
        ("mobilenet_v1", ["pixel_values"]),  # signals die without statistics of its batch norms
        ("pp_ocrv5_mobile_det", ["pixel_values"]),  # deeper, its signals grow until every output is 0 or 1
        ("efficientloftr", ["pixel_values"]),  # it is as wide as the last stage of its backbone
        ("mgp-str", ["pixel_values"]),  # three vocabularies by names of its own
        ("detr", ["pixel_values"]),  # its default backbone is of another package
    ],
)
def test_a_type_is_made_tiny_and_takes_its_inputs(tiny: ModuleType, kind: str, inputs: list[str]) -> None:
    import torch

    made = tiny.make(kind, tiny.types()[kind])
    assert [one.name for one in made.inputs] == inputs
    assert made.sizes is tiny.SIZES
    assert made.parameters < 1_000_000
    for name, weight in made.model.named_parameters():
        assert weight.ndim == 0 or float(weight.detach().abs().max()) > 0, f"{name} is zero: wrong numbers look right"
    few, many = (tiny.run(made.model, tiny.feeds(made.inputs, made.sizes[0], seed)) for seed in (0, 1))
    assert not torch.allclose(few[0], many[0], rtol=0.01), "its output does not depend on its inputs"


def test_sections_of_rotary_positions_are_those_of_a_small_head(tiny: ModuleType) -> None:
    config = tiny.tiny_config("qwen2_vl", tiny.PRESETS[0])
    assert sum(config.text_config.rope_parameters["mrope_section"]) == 8


def test_a_backbone_has_as_many_layers_as_it_gives(tiny: ModuleType) -> None:
    backbone = tiny.tiny_config("depth_anything", tiny.PRESETS[0]).backbone_config
    assert backbone.num_hidden_layers == 4
    assert list(backbone.out_indices) == [1, 2, 3, 4]


def test_a_window_is_shorter_than_the_sequences(tiny: ModuleType) -> None:
    assert tiny.tiny_config("longformer", tiny.PRESETS[0]).attention_window == 8


def test_layers_of_every_kind_are_kept(tiny: ModuleType) -> None:
    config = tiny.tiny_config("qwen3_next", tiny.PRESETS[0])
    assert set(config.layer_types) == {"linear_attention", "full_attention"}
    assert config.num_hidden_layers == len(config.layer_types) == 2


def test_the_other_config_shares_keys_and_values_and_has_another_window(tiny: ModuleType) -> None:
    configs = sys.modules["tiny_configs"]
    pairs = {}
    for kind in ("mistral", "falcon"):
        first, other = (tiny.make(kind, tiny.types()[kind], other=other).model.config for other in (False, True))
        pairs[kind] = (first, other)
    first, other = pairs["mistral"]
    assert (first.num_key_value_heads, first.sliding_window) == (2, 8)
    assert (other.num_key_value_heads, other.sliding_window) == (4, 48)
    first, other = pairs["falcon"]
    assert (first.num_kv_heads, other.num_kv_heads) == (4, 2)
    assert not configs.has_other("bert")
