"""`hf:` models of every kind: their inputs, heads by --task, parts by --part, and numbers by ONNX Runtime."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import hf_folders
import numpy as np
import pytest
from loaded import load

from attnport.dims import TensorSpec
from attnport.errors import SpecError, UsageError
from attnport.sources.hf.inputs import Candidates


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kinds")


def made(kind: str, folders: Path) -> Path:
    folder = folders / kind
    return folder if folder.is_dir() else hf_folders.save(kind, folder)


DECODER = ["decoder_input_ids=int64[batch,decoder_seq]", "decoder_attention_mask=int64[batch,decoder_seq]"]
TOKENS = ["input_ids=int64[batch,seq]", "attention_mask=int64[batch,seq]"]
LOGITS = {"logits": ("batch", "decoder_seq", 60)}


@pytest.mark.parametrize(
    ("kind", "part", "inputs", "outputs"),
    [
        ("t5_lm", "", [*TOKENS, *DECODER], LOGITS),
        ("bart", "", [*TOKENS, *DECODER], LOGITS),
        ("bart", "encoder", TOKENS, {"last_hidden_state": ("batch", "seq", 16)}),
        (
            "bart",
            "decoder",
            ["encoder_hidden_states=float32[batch,seq,16]", "encoder_attention_mask=int64[batch,seq]", *DECODER],
            LOGITS,
        ),
        # Whisper's mask is for training alone; its encoder takes two frames for each position, and no other number.
        ("whisper", "", ["input_features=float32[batch,8,32]", *DECODER],
         {"last_hidden_state": ("batch", "decoder_seq", 16)}),
        ("dia", "", [*TOKENS, "decoder_input_ids=int64[batch,decoder_seq,3]", DECODER[1]],
         {"last_hidden_state": ("batch", "decoder_seq", 16)}),
        ("captions", "decoder", ["encoder_hidden_states=float32[batch,5,16]", *DECODER], LOGITS),
        ("swin", "", ["pixel_values=float32[batch,3,32,32]"],
         {"last_hidden_state": ("batch", 16, 16), "pooler_output": ("batch", 16)}),
        ("convnext", "", ["pixel_values=float32[batch,3,height,width]"], {"logits": ("batch", 2)}),
        ("videomae", "", ["pixel_values=float32[batch,4,3,8,8]"], {"last_hidden_state": ("batch", 8, 16)}),
        ("ast", "", ["input_values=float32[batch,20,8]"], {"logits": ("batch", 2)}),
        (
            "clip",
            "",
            [*TOKENS, "pixel_values=float32[images,3,8,8]"],
            {"logits_per_image": ("images", "batch"), "logits_per_text": ("batch", "images"),
             "text_embeds": ("batch", 8), "image_embeds": ("images", 8)},
        ),
        ("clip", "text", TOKENS, {"last_hidden_state": ("batch", "seq", 16), "text_features": ("batch", 8)}),
        ("clip", "vision", ["pixel_values=float32[batch,3,8,8]"],
         {"last_hidden_state": ("batch", 5, 16), "vision_features": ("batch", 8)}),
        ("layoutlm", "", [*TOKENS, "token_type_ids=int64[batch,seq]", "bbox=int64[batch,seq,4]"],
         {"last_hidden_state": ("batch", "seq", 16)}),
        ("bert_qa", "", [*TOKENS, "token_type_ids=int64[batch,seq]"],
         {"start_logits": ("batch", "seq"), "end_logits": ("batch", "seq")}),
        (
            "bert_choices",
            "",
            [f"{name}=int64[batch,choices,seq]" for name in ("input_ids", "attention_mask", "token_type_ids")],
            {"logits": ("batch", "choices")},
        ),
    ],
)  # fmt: skip
def test_the_contract_follows_from_the_forward_and_the_config(
    kind: str, part: str, inputs: list[str], outputs: dict[str, tuple[str | int, ...]], folders: Path
) -> None:
    spec = load(f"hf:{made(kind, folders)}", part=part)
    assert [str(one) for one in spec.io.inputs] == inputs
    assert {one.name: one.dims for one in spec.io.outputs} == outputs


def test_ranges_are_what_the_tables_allow(folders: Path) -> None:
    io = load(f"hf:{made('bart', folders)}").io
    assert (io.dim("seq").max, io.dim("decoder_seq").max) == (40, 40)
    assert load(f"hf:{made('whisper', folders)}").io.dim("decoder_seq").max == 16
    samples = load(f"hf:{made('wav2vec2', folders)}").io.dim("samples")
    assert samples.min == 40  # the positional convolution needs a frame
    with pytest.raises(UsageError, match="--dim decoder_seq=1:8:41: the model does not run at decoder_seq=41"):
        load(f"hf:{made('bart', folders)}", dims=["decoder_seq=1:8:41"])


def test_a_size_of_images_that_the_config_has_and_the_model_does_not_take_is_not_taken(folders: Path) -> None:
    io = load(f"hf:{made('mobilevitv2', folders)}").io
    assert (io.dim("height").min, io.dim("height").opt) == (33, 224)


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        ("efficientloftr", "pixel_values=float32[batch,2,3,224,224]"),  # pairs, as no field of the config says
        ("granite_speech5", "input_features=float32[batch,frames,16]"),  # four times the bins that its config has
    ],
)
def test_what_no_config_says_is_found_by_trying(kind: str, first: str, folders: Path) -> None:
    assert str(load(f"hf:{made(kind, folders)}").io.inputs[0]) == first


def test_a_model_that_runs_on_nothing_is_run_once_for_each_form_of_each_input() -> None:
    def specs(name: str, forms: int) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(name, "float32", ("batch", size)) for size in range(1, forms + 1))

    forms = {"input_ids": specs("input_ids", 2)} | {name: specs(name, 3) for name in ("a", "b", "c", "d")}
    tried = [[spec.name for spec in inputs.tensors] for inputs in Candidates("input_ids", forms, {}, False).tries()]
    assert tried[0] == ["input_ids", "a", "b", "c", "d"]
    assert ["input_ids", "a", "b", "d"] in tried
    assert ["input_ids"] in tried
    assert len(tried) == (1 + 1 + 4 * 2 + 4) + (1 + 1 + 4)  # beside all of them, and beside the main one alone


@pytest.mark.parametrize(("kind", "most"), [("vit", 64), ("videomae", 16)])
def test_a_batch_of_items_with_several_images_is_smaller(kind: str, most: int, folders: Path) -> None:
    assert load(f"hf:{made(kind, folders)}").io.dim("batch").max == most


def test_the_sides_of_images_are_declared_free_and_fixed(folders: Path) -> None:
    text = f"hf:{made('vit', folders)}"
    spec = load(text, dims=["height=8:8:32", "width=8:12:32"])
    assert [str(one) for one in spec.io.inputs] == ["pixel_values=float32[batch,3,height,width]"]  # interpolated
    spec = load(f"hf:{made('convnext', folders)}", dims=["height=32:32:32", "width=48:48:48"])
    assert [str(one) for one in spec.io.inputs] == ["pixel_values=float32[batch,3,32,48]"]


def test_a_mask_over_samples_is_taken_where_the_processor_makes_one(folders: Path, tmp_path: Path) -> None:
    folder = hf_folders.save("wav2vec2", tmp_path / "wav2vec2")
    assert [one.name for one in load(f"hf:{folder}").io.inputs] == ["input_values", "attention_mask"]
    (folder / "preprocessor_config.json").write_text(json.dumps({"return_attention_mask": False}))
    assert [one.name for one in load(f"hf:{folder}").io.inputs] == ["input_values"]
    (folder / "preprocessor_config.json").write_text("[")
    with pytest.raises(SpecError, match=r"preprocessor_config\.json cannot be read"):
        load(f"hf:{folder}")


def test_a_model_that_generates_says_that_it_is_one_pass(folders: Path) -> None:
    assert "one pass over whole sequences, without a cache" in load(f"hf:{made('bart', folders)}").notes[0]
    assert load(f"hf:{made('bart', folders)}", part="encoder").notes == ()
    assert load(f"hf:{made('bert', folders)}").notes == ()


@pytest.mark.parametrize(
    ("kind", "task", "outputs"),
    [
        ("bert_classes", "text-classification", ["logits"]),
        ("bert_tokens", "token-classification", ["logits"]),
        ("bert_qa", "question-answering", ["start_logits", "end_logits"]),
        ("bert_mask", "fill-mask", ["logits"]),
        ("bert_next", "next-sentence-prediction", ["logits"]),
        ("bert_choices", "multiple-choice", ["logits"]),
        ("bert_classes", "feature-extraction", ["last_hidden_state"]),
        ("bert_classes", "AutoModelForSequenceClassification", ["logits"]),
        ("gpt2", "text-generation", ["logits"]),
        ("t5_lm", "translation", ["logits"]),
        ("wav2vec2", "automatic-speech-recognition", ["logits"]),
    ],
)
def test_a_task_chooses_the_head(kind: str, task: str, outputs: list[str], folders: Path) -> None:
    spec = load(f"hf:{made(kind, folders)}", task=task)
    assert [one.name for one in spec.io.outputs] == outputs
    assert spec.source.task == task


def test_a_tokenizer_class_whose_package_is_missing_makes_the_usual_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    from attnport.sources.hf.files import _usual_inputs

    class Missing(type):
        def __getattribute__(cls, name: str) -> Any:
            raise ImportError(f"{name} needs SentencePiece")

    monkeypatch.setattr(transformers, "PLBartTokenizer", Missing("PLBartTokenizer", (), {}))
    assert _usual_inputs("plbart") == ("input_ids", "attention_mask")


def test_a_head_without_weights_is_refused_by_name(folders: Path) -> None:
    with pytest.raises(SpecError, match=r"lack classifier\.bias and 1 more, which BertForSequenceClass") as caught:
        load(f"hf:{made('bert', folders)}", task="text-classification")
    assert "not trained for text-classification" in caught.value.hint


def test_a_checkpoint_of_another_task_is_told(folders: Path) -> None:
    text = f"hf:{made('bert_classes', folders)}"
    (note,) = load(text, task="token-classification").notes
    assert "saved as BertForSequenceClassification, and is taken as BertForTokenClassification" in note
    assert "another task than token-classification" in note
    for task in ("", "text-classification", "feature-extraction"):
        assert load(text, task=task).notes == ()


def test_wrong_tasks_and_parts_are_answered_with_those_that_there_are(folders: Path) -> None:
    text = f"hf:{made('bert', folders)}"
    with pytest.raises(UsageError, match="there are feature-extraction, text-classification"):
        load(text, task="text-classificaton")
    with pytest.raises(UsageError, match=r"it has feature-extraction, text-classification.*fill-mask"):
        load(text, task="image-classification")
    with pytest.raises(UsageError, match=r"--part decoder: .* a BertModel, has no such part; it has none"):
        load(text, part="decoder")
    with pytest.raises(UsageError, match="it has text, vision"):
        load(f"hf:{made('clip', folders)}", part="audio")
    with pytest.raises(UsageError, match="bert_encoder is not an hf: model, so --task fill-mask does not apply"):
        load("bert_encoder", task="fill-mask")
    with pytest.raises(UsageError, match="so --part encoder does not apply"):
        load("bert_encoder", part="encoder")


EXPORTED = [
    ("bart", "decoder", []),
    *(
        pytest.param(kind, part, dims, marks=pytest.mark.slow)
        for kind, part, dims in [
            ("t5_lm", "", ["seq=1:8:32", "decoder_seq=1:8:32"]),
            ("bart", "", []),
            ("bart", "encoder", []),
            ("captions", "", []),
            ("captions", "encoder", []),
            ("whisper", "", []),
            ("whisper", "decoder", []),
            ("speech_to_text", "", []),
            ("wav2vec2", "", ["samples=60:200:600"]),
            ("ast", "", []),
            ("vit", "", []),
            ("vit", "", ["height=4:8:20", "width=4:8:20"]),
            ("swin", "", []),
            ("convnext", "", ["height=32:32:70", "width=32:32:70"]),
            ("resnet", "", ["height=32:32:70", "width=32:32:70"]),
            ("videomae", "", []),
            ("clip", "", []),
            ("clip", "vision", []),
            ("clip", "text", []),
            ("siglip", "", []),
            ("clap", "", []),
            ("layoutlm", "", []),
            ("bert_qa", "", []),
            ("bert_tokens", "", []),
            ("bert_mask", "", []),
            ("bert_next", "", []),
            ("bert_choices", "", []),
            ("bert_classes", "", []),
        ]
    ),
]


@pytest.mark.parametrize(("kind", "part", "dims"), EXPORTED)
def test_onnx_runtime_gives_what_transformers_gives(
    kind: str, part: str, dims: list[str], folders: Path, tmp_path: Path
) -> None:
    import onnxruntime

    import attnport

    folder = made(kind, folders)
    io = attnport.export(f"hf:{folder}", tmp_path / "out", part=part, dims=dims).manifest.io
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx", providers=["CPUExecutionProvider"])
    for number in range(3):
        feeds, sizes = sized(io, number)
        expected = by_transformers(kind, part, folder, feeds)
        for spec, got in zip(io.outputs, session.run([one.name for one in io.outputs], feeds), strict=True):
            wanted = expected[spec.name].detach().numpy()
            assert got.shape == spec.shape(sizes), (spec, sizes)
            np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4, err_msg=f"{spec} at {sizes}")
            assert np.abs(wanted).max() > 1e-3


def sized(io: Any, number: int) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, int]]:
    """Feeds of other sizes for each number: the least, the usual, and the largest; masks with some padding before."""
    rng = np.random.default_rng(number)
    of = ("min", "opt", "max")[number]
    sizes = {dim.name: getattr(dim, of) if dim.name not in ("batch", "images", "audios") else 1 + number
             for dim in io.dims}  # fmt: skip
    feeds: dict[str, np.ndarray[Any, Any]] = {}
    for spec in io.inputs:
        shape = spec.shape(sizes)
        if spec.name.endswith("mask"):
            feeds[spec.name] = np.ones(shape, np.int64)
            if number and spec.name != "decoder_attention_mask" and "decoder_attention_mask" in {
                one.name for one in io.inputs
            }:  # fmt: skip
                feeds[spec.name][0, -shape[1] // 3 :] = 0  # of an encoder, whose padded rows are not seen
        elif spec.dtype == "bool":
            feeds[spec.name] = np.zeros(shape, bool)
        elif spec.dtype == "int64":
            feeds[spec.name] = rng.integers(3, spec.high, shape) if spec.high > 3 else rng.integers(0, spec.high, shape)
            feeds[spec.name] = np.sort(feeds[spec.name], -1) if spec.name == "bbox" else feeds[spec.name]
        else:
            feeds[spec.name] = rng.standard_normal(shape).astype(np.float32)
    return feeds, sizes


def by_transformers(kind: str, part: str, folder: Path, feeds: dict[str, Any]) -> dict[str, Any]:
    """What the class of the checkpoint computes, called as its own documentation does."""
    import torch
    import transformers

    model = getattr(transformers, hf_folders.KINDS[kind][0]).from_pretrained(folder, trust_remote_code=False).eval()
    tensors = {name: torch.from_numpy(array) for name, array in feeds.items()}
    with torch.no_grad():
        if part == "encoder":
            return dict(model.get_encoder()(**tensors).items())
        if part == "decoder":
            hidden = tensors.pop("encoder_hidden_states")
            if "encoder_attention_mask" in tensors:
                tensors["attention_mask"] = tensors.pop("encoder_attention_mask")
            return dict(model(encoder_outputs=(hidden,), **tensors).items())
        if part:
            name = {"vision": "get_image_features", "text": "get_text_features"}[part]
            found = dict(getattr(model, name)(**tensors).items())
            return {**found, f"{part}_features": found["pooler_output"]}
        free = {"interpolate_pos_encoding": True} if kind == "vit" else {}
        return dict(model(**tensors, **free).items())


def test_later_verbs_load_the_same_part(folders: Path) -> None:
    from attnport.folder import loading

    spec = load(f"hf:{made('clip', folders)}", part="vision", dims=["batch=1:2:4"])
    again = loading.reload(spec.source)
    assert again.io == spec.io
    assert again.source == spec.source
    whole = loading.reload(dataclasses.replace(spec.source, part=""))
    assert whole.io != spec.io
