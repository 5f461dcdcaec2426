from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import tokenizers

from attnport.artifacts import IOContract, Prompts
from attnport.cases import choosing
from attnport.cases.choosing import cases_of, read_sentences, reads_text, text_cases, tokenizers_errors
from attnport.dims import Dim, TensorSpec
from attnport.errors import ArtifactError, UsageError
from attnport.masks import MaskSpec

IO = IOContract(
    inputs=tuple(
        TensorSpec(name, "int64", ("batch", "seq"), 50) for name in ("input_ids", "attention_mask", "token_type_ids")
    ),
    outputs=(TensorSpec("hidden", "float32", ("batch", "seq", 8)),),
    dims=(Dim("batch", 1, 4, 16), Dim("seq", 1, 4, 6)),
    masks=(MaskSpec(("padding",), "attention_mask"),),
)
SENTENCES = ["a b c", "a", "b c a b c a b c", "c b"]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[PAD]": 7, "[UNK]": 1, "a": 2, "b": 3, "c": 4}, "[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.enable_padding(length=20, pad_id=7, pad_token="[PAD]")
    made.enable_truncation(2)
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_sentences_are_padded_on_the_right_to_the_longest_and_cut_at_the_models_limit(tokenizer: Path) -> None:
    (case,) = text_cases(IO, SENTENCES, tokenizer)
    assert case.feeds["input_ids"].tolist() == [
        [2, 3, 4, 7, 7, 7],
        [2, 7, 7, 7, 7, 7],
        [3, 4, 2, 3, 4, 2],
        [4, 3, 7, 7, 7, 7],
    ]
    assert (case.feeds["attention_mask"] == (case.feeds["input_ids"] != 7)).all()
    assert not case.feeds["token_type_ids"].any()
    assert (case.valid["hidden"] == (case.feeds["attention_mask"] == 1)).all()
    assert case.group == "text"


def test_a_tokenizer_that_pads_on_the_left_gives_padding_on_the_left(tokenizer: Path) -> None:
    made = tokenizers.Tokenizer.from_file(str(tokenizer))
    made.enable_padding(direction="left", pad_id=7, pad_token="[PAD]")
    made.save(str(tokenizer))
    (case,) = text_cases(IO, SENTENCES, tokenizer)
    assert case.feeds["input_ids"][[0, 1]].tolist() == [[7, 7, 7, 2, 3, 4], [7, 7, 7, 7, 7, 2]]
    assert (case.feeds["attention_mask"] == (case.feeds["input_ids"] != 7)).all()


def test_a_mask_of_the_tokens_that_are_pooled_is_text_too(tokenizer: Path) -> None:
    inputs = (*IO.inputs[:2], TensorSpec("pooled_mask", "int64", ("batch", "seq"), 2))
    io = IOContract(inputs, IO.outputs, IO.dims, (*IO.masks, MaskSpec(("padding",), "pooled_mask")))
    (case,) = text_cases(io, SENTENCES, tokenizer)
    assert (case.feeds["pooled_mask"] == case.feeds["attention_mask"]).all()


def test_every_token_of_a_text_is_attended_to_where_that_is_an_input(tokenizer: Path) -> None:
    io = IOContract(
        (*IO.inputs, TensorSpec("attended_mask", "int64", ("batch", "seq"), 2)), IO.outputs, IO.dims, IO.masks
    )
    (case,) = text_cases(io, SENTENCES, tokenizer)
    assert case.feeds["attended_mask"].all()


def test_batches_keep_the_natural_order_and_have_their_own_width(tokenizer: Path) -> None:
    made = text_cases(IO, SENTENCES, tokenizer, batch=2)
    assert [case.name for case in made] == ["sentences 1-2", "sentences 3-4"]
    assert [case.feeds["input_ids"].shape for case in made] == [(2, 3), (2, 6)]


def test_a_batch_is_no_larger_than_the_model_takes(tokenizer: Path) -> None:
    assert {len(case.feeds["input_ids"]) for case in text_cases(IO, SENTENCES * 8, tokenizer, batch=99)} == {16}


def test_an_additive_mask_is_filled_in_its_own_way(tokenizer: Path) -> None:
    mask = TensorSpec("attention_mask", "float32", ("batch", "seq"))
    io = IOContract((IO.inputs[0], mask), IO.outputs, IO.dims, (MaskSpec(("padding",), "attention_mask", "additive"),))
    (case,) = text_cases(io, SENTENCES, tokenizer)
    assert case.feeds["attention_mask"].dtype == np.float32
    assert (np.isneginf(case.feeds["attention_mask"]) == (case.feeds["input_ids"] == 7)).all()


def test_a_model_of_other_inputs_does_not_read_text(tokenizer: Path) -> None:
    io = IOContract((*IO.inputs, TensorSpec("pixels", "float32", (3,))), IO.outputs, IO.dims)
    assert reads_text(IO)
    assert not reads_text(io)
    with pytest.raises(UsageError, match="pixels"):
        text_cases(io, SENTENCES, tokenizer)


def test_nothing_to_tokenise_is_an_error(tokenizer: Path) -> None:
    with pytest.raises(UsageError, match="no sentences"):
        text_cases(IO, [], tokenizer)


def test_a_damaged_tokenizer_is_named(tokenizer: Path) -> None:
    tokenizer.write_text(tokenizer.read_text()[:100])
    with pytest.raises(ArtifactError, match=r"tokenizer\.json is no tokenizer"):
        text_cases(IO, SENTENCES, tokenizer)
    tokenizer.unlink()
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        text_cases(IO, SENTENCES, tokenizer)


@pytest.mark.parametrize("place", ["pre_tokenizer", "normalizer"])
def test_a_rule_that_takes_too_many_steps_is_named(place: str, tokenizer: Path) -> None:
    hostile = {"Regex": "(a+)+$"}
    rules = {
        "pre_tokenizer": {"type": "Split", "pattern": hostile, "behavior": "Isolated", "invert": False},
        "normalizer": {"type": "Replace", "pattern": hostile, "content": "b"},
    }
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()) | {place: rules[place]}))
    assert text_cases(IO, SENTENCES, tokenizer)
    with pytest.raises(
        ArtifactError, match=r"tokenizer\.json cannot be applied to these texts: .*retry-limit"
    ) as caught:
        text_cases(IO, ["a" * 40 + "!"], tokenizer)
    assert caught.value.hint


def test_ctrl_c_is_no_fault_of_the_tokenizer(tokenizer: Path) -> None:
    with pytest.raises(KeyboardInterrupt), tokenizers_errors(tokenizer, "is no tokenizer"):
        raise KeyboardInterrupt


def test_sentences_are_read_one_a_line(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_text("One.\n\n  Two é.  \n", encoding="utf-8")
    assert read_sentences(file) == ["One.", "Two é."]
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="UTF-8"):
        read_sentences(file)
    file.write_text("\n \n")
    with pytest.raises(UsageError, match="no sentence"):
        read_sentences(file)
    with pytest.raises(UsageError, match="cannot be read"):
        read_sentences(tmp_path / "absent")


def test_the_default_prompt_stands_before_every_sentence(tokenizer: Path) -> None:
    manifest = SimpleNamespace(
        io=IO, tokenizer=tokenizer.name, prompts=Prompts({"query": "c c ", "other": "b "}, "query")
    )
    tried = cases_of(tokenizer.parent, manifest, ["a", "b"], None, 0, 4)  # type: ignore[arg-type]
    (case,) = [each for each in tried if each.group == "text"]
    assert case.feeds["input_ids"].tolist() == [[4, 4, 2], [4, 4, 3]]


def test_a_batch_has_so_few_sentences_that_no_tensor_of_the_graph_is_huge(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = tokenizer.parent / "model.onnx"
    words = onnx.helper.make_tensor_value_info("words", onnx.TensorProto.FLOAT, ["batch", "seq", 100])
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", "seq", 100])
    hidden = onnx.helper.make_tensor_value_info("hidden", onnx.TensorProto.FLOAT, ["batch", 100])
    nodes = [onnx.helper.make_node("Relu", ["x"], ["words"]),
             onnx.helper.make_node("ReduceMax", ["words"], ["hidden"], keepdims=0)]  # fmt: skip
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], [hidden], value_info=[words])), graph)
    monkeypatch.setattr(choosing, "_MOST_ELEMENTS", 1200)  # two of the longest, which has 6 tokens
    made = text_cases(IO, SENTENCES, tokenizer, 32, graph)
    assert [case.feeds["input_ids"].shape for case in made] == [(2, 3), (2, 6)]
    monkeypatch.setattr(choosing, "_MOST_ELEMENTS", 1)
    assert len(text_cases(IO, SENTENCES, tokenizer, 32, graph)) == len(SENTENCES)


def test_outputs_count_where_the_graph_names_no_size(tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = tokenizer.parent / "model.onnx"
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n"]) for name in "xy")
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", [x], [y])), graph)
    monkeypatch.setattr(choosing, "_MOST_ELEMENTS", 3 * 6 * 8)
    assert [len(case.feeds["input_ids"]) for case in text_cases(IO, SENTENCES, tokenizer, 32, graph)] == [3, 1]
