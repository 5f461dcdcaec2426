"""What the files of sentence-transformers say comes behind a transformer, and its pooling, against its own formulas."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hf_folders import add_pooling
from safetensors.torch import save_file

from attnport.artifacts import Prompts, Search
from attnport.errors import SpecError
from attnport.sources.hf.files import TokenizerOf, modules_of
from attnport.sources.hf.sentence import (
    MODES,
    Head,
    Normalise,
    Pooling,
    Scores,
    SparseAutoEncoder,
    SpladePooling,
    read_head,
    read_limit,
    read_lower,
    read_prefixes,
    read_prompts,
    read_search,
)

PLAIN = SimpleNamespace()
HIDDEN = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])


def head(folder: Path, config: Any = PLAIN) -> Head:
    found = read_head(folder, config)
    assert found is not None
    return found


def write(folder: Path, name: str, values: Any) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(values))


def modes(found: Head) -> tuple[str, ...]:
    (pooling,) = (step for step in found.steps if isinstance(step, Pooling))
    return pooling.modes


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize(
    ("old", "mode"),
    [("mean", "mean"), ("cls", "cls"), ("max", "max"), ("lasttoken", "lasttoken"),
     ("weightedmean", "weightedmean"), ("mean_sqrt_len", "mean_sqrt_len_tokens")],
)  # fmt: skip
def test_the_folder_says_mode_and_normalisation(old: str, mode: str, normalise: bool, tmp_path: Path) -> None:
    found = head(add_pooling(tmp_path, old, normalise=normalise))
    assert modes(found) == (mode,)
    vector = found.named({"token_embeddings": HIDDEN}, MASK)["sentence_embedding"]
    assert torch.allclose(vector.norm(dim=1), torch.ones(2)) == normalise


def test_a_folder_of_transformers_alone_has_none(tmp_path: Path) -> None:
    assert read_head(tmp_path, PLAIN) is None
    write(tmp_path, "modules.json", [{"type": "sentence_transformers.models.Transformer"}])
    assert read_head(tmp_path, PLAIN) is None


@pytest.mark.parametrize(("said", "expected"), [("max", ("max",)), (["cls", "mean"], ("cls", "mean"))])
def test_the_newer_spelling_is_read(said: Any, expected: tuple[str, ...], tmp_path: Path) -> None:
    add_pooling(tmp_path, "mean", normalise=False)
    write(tmp_path, "1_Pooling/config.json", {"pooling_mode": said})
    assert modes(head(tmp_path)) == expected


def test_two_modes_at_once_are_joined_in_the_order_of_sentence_transformers(tmp_path: Path) -> None:
    add_pooling(tmp_path, "mean", normalise=False)
    values = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True, "include_prompt": False}
    write(tmp_path, "1_Pooling/config.json", values)
    assert modes(head(tmp_path)) == ("cls", "mean")
    assert head(tmp_path).pooled_mask


@pytest.mark.parametrize("said", ["none", [], {"mean": True}, [1]])
def test_a_mode_that_is_not_known_is_refused(said: Any, tmp_path: Path) -> None:
    add_pooling(tmp_path, "mean", normalise=False)
    write(tmp_path, "1_Pooling/config.json", {"pooling_mode": said})
    with pytest.raises(SpecError, match="expected some of cls, max, mean"):
        read_head(tmp_path, PLAIN)


def test_a_mode_of_a_later_release_is_refused(tmp_path: Path) -> None:
    add_pooling(tmp_path, "mean", normalise=False)
    write(tmp_path, "1_Pooling/config.json", {"pooling_mode_mean_tokens": True, "pooling_mode_median": True})
    with pytest.raises(SpecError, match="median"):
        read_head(tmp_path, PLAIN)


def dense(folder: Path, **further: Any) -> dict[str, torch.Tensor]:
    """Adds a Dense layer between pooling and normalisation; returns its weights."""
    add_pooling(folder, "mean", normalise=True)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense", "3_Normalize": "Normalize"}
    write(folder, "modules.json", [{"path": path, "type": f"a.{kind}"} for path, kind in kinds.items()])
    values = {"in_features": 16, "out_features": 4, "bias": True,
              "activation_function": "torch.nn.modules.activation.Tanh", **further}  # fmt: skip
    write(folder, "2_Dense/config.json", values)
    random = torch.Generator().manual_seed(1)
    weights = {"linear.weight": torch.randn(4, 16, generator=random), "linear.bias": torch.randn(4, generator=random)}
    if further.get("use_residual"):
        weights["residual.weight"] = torch.randn(4, 16, generator=random)
    save_file(weights, folder / "2_Dense" / "model.safetensors")
    return weights


@pytest.mark.parametrize("residual", [True, False])
def test_a_dense_layer_has_its_own_weights(residual: bool, tmp_path: Path) -> None:
    weights = dense(tmp_path, use_residual=residual)
    got = head(tmp_path).named({"token_embeddings": HIDDEN}, MASK)
    pooled = torch.stack([HIDDEN[0].mean(0), HIDDEN[1, :2].mean(0)])
    expected = torch.tanh(pooled @ weights["linear.weight"].T + weights["linear.bias"])
    expected = expected + pooled @ weights["residual.weight"].T if residual else expected
    expected = expected / expected.norm(dim=1, keepdim=True)
    assert list(got) == ["sentence_embedding"]
    torch.testing.assert_close(got["sentence_embedding"], expected)


def test_a_dense_layer_without_its_weights_is_refused(tmp_path: Path) -> None:
    dense(tmp_path)
    (tmp_path / "2_Dense" / "model.safetensors").rename(tmp_path / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(SpecError, match=r"no 2_Dense/model\.safetensors; pickled"):
        read_head(tmp_path, PLAIN)


@pytest.mark.parametrize("further", [{"in_features": 8}, {"bias": False}, {"use_residual": True, "out_features": 16}])
def test_weights_of_another_shape_are_refused(further: dict[str, Any], tmp_path: Path) -> None:
    weights = dense(tmp_path)
    write(tmp_path, "2_Dense/config.json", {"in_features": 16, "out_features": 4, "bias": True, **further})
    save_file(weights, tmp_path / "2_Dense" / "model.safetensors")
    with pytest.raises(SpecError, match="cannot be loaded"):
        read_head(tmp_path, PLAIN)


@pytest.mark.parametrize("text", ["os.system", "torch.nn.functional.gelu", "torch.nn.Linear", "torch.load", "mine.Act"])
def test_an_activation_that_is_no_module_of_torch_is_refused(text: str, tmp_path: Path) -> None:
    dense(tmp_path, activation_function=text)
    with pytest.raises(SpecError, match="activation"):
        read_head(tmp_path, PLAIN)


@pytest.mark.parametrize(
    ("modules", "told"),
    [
        ("{", "cannot be read"),
        ("{}", "not a list of modules"),
        ("[1]", "not a list of modules"),
        ("[]", "not a list of modules"),
        ('[{"type": "a.Pooling"}, {"type": "a.Transformer"}]', "got modules Pooling, Transformer"),
        ('[{"type": "a.Transformer"}, {"type": "a.LSTM"}]', "module LSTM is not supported"),
        ('[{"type": "a.Transformer"}, {"type": "a.Normalize"}]', "Normalize takes sentence_embedding"),
        ('[{"type": "a.Transformer"}, {"type": "a.Pooling", "path": "../other"}]', "outside the folder"),
        ('[{"type": "a.Transformer"}, {"type": "a.Pooling", "path": "nowhere"}]', "cannot be read"),
    ],
)
def test_a_damaged_description_is_told(modules: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(modules)
    with pytest.raises(SpecError, match=told):
        read_head(tmp_path, PLAIN)


@pytest.mark.parametrize(
    ("config", "file", "kind"),
    [
        ({"num_labels": 1, "sentence_transformers": {"version": "5"}}, {}, torch.nn.Sigmoid),
        ({"num_labels": 3, "sentence_transformers": {"version": "5"}}, {}, torch.nn.Identity),
        ({"num_labels": 1, "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, {},
         torch.nn.Identity),
        ({"num_labels": 1, "sbert_ce_default_activation_function": "torch.nn.modules.activation.Tanh"}, {},
         torch.nn.Tanh),
        ({"num_labels": 1}, {"model_type": "CrossEncoder"}, torch.nn.Sigmoid),
        ({"num_labels": 1}, {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"},
         torch.nn.Identity),
        ({"num_labels": 1}, {"model_type": "SentenceTransformer"}, None),
        ({"num_labels": 1}, {}, None),
    ],
)  # fmt: skip
def test_a_cross_encoder_applies_its_activation(config: Any, file: Any, kind: Any, tmp_path: Path) -> None:
    if file:
        write(tmp_path, "config_sentence_transformers.json", file)
    found = read_head(tmp_path, SimpleNamespace(**config))
    if kind is None:
        assert found is None
        return
    assert found is not None
    assert not found.embeds
    (step,) = found.steps
    assert isinstance(step, Scores)
    assert type(step.activation) is kind
    logits = torch.randn(2, config["num_labels"])
    expected = kind()(logits)
    got = found.named({"logits": logits}, MASK)["scores"]
    assert torch.equal(got, expected[:, 0] if config["num_labels"] == 1 else expected)


def test_prompts_are_read(tmp_path: Path) -> None:
    assert read_prompts(tmp_path) == Prompts()
    prompts = {"query": "query: ", "document": ""}
    write(tmp_path, "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": None})
    assert read_prompts(tmp_path) == Prompts({"query": "query: ", "document": ""})
    assert read_prompts(tmp_path).usual == ""
    write(tmp_path, "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": "query"})
    assert read_prompts(tmp_path).usual == "query: "


@pytest.mark.parametrize(
    "values",
    [
        {"prompts": [1]},
        {"prompts": {"a": 1}},
        {"default_prompt_name": "x"},
        {"prompts": {"a": "\ud800"}},
        {"prompts": {"a": "x" * 1001}},
        [],
    ],
)
def test_damaged_prompts_are_told(values: Any, tmp_path: Path) -> None:
    write(tmp_path, "config_sentence_transformers.json", values)
    with pytest.raises(SpecError, match=r"config_sentence_transformers\.json"):
        read_prompts(tmp_path)


def test_the_limit_of_a_text_is_the_folders_or_else_the_tokenizers(tmp_path: Path) -> None:
    assert read_limit(tmp_path, 512) == 512
    assert read_limit(tmp_path, None) is None
    write(tmp_path, "sentence_bert_config.json", {"max_seq_length": None})
    assert read_limit(tmp_path, 512) == 512
    write(tmp_path, "sentence_bert_config.json", {"max_seq_length": 12})
    assert read_limit(tmp_path, 512) == 12
    for wrong in (0, "12", True, 1.5):
        write(tmp_path, "sentence_bert_config.json", {"max_seq_length": wrong})
        with pytest.raises(SpecError, match="got max_seq_length"):
            read_limit(tmp_path, 512)


def test_lower_case_is_read(tmp_path: Path) -> None:
    assert not read_lower(tmp_path)
    write(tmp_path, "sentence_bert_config.json", {"max_seq_length": 12, "do_lower_case": True})
    assert read_lower(tmp_path)


KEEP = np.array([[1, 1, 1, 0, 0], [0, 1, 0, 1, 1], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0], [0, 0, 1, 1, 1]])


def by_hand(mode: str, hidden: Any, real: Any, keep: Any) -> Any:
    """What sentence-transformers' Pooling.forward computes."""
    mask, items = keep[:, :, None].astype(np.float64), np.arange(len(keep))
    if mode == "cls":
        return hidden[items, keep.argmax(1)]
    if mode == "lasttoken":
        return hidden[items, keep.shape[1] - 1 - keep[:, ::-1].argmax(1)]
    if mode == "max":
        return np.where(mask == 0, -np.inf, hidden).max(1)
    if mode == "weightedmean":
        mask = mask * (np.arange(1, keep.shape[1] + 1)[None, :] - real.argmax(1)[:, None])[:, :, None]
    count = mask.sum(1)
    return (hidden * mask).sum(1) / (np.sqrt(count) if mode == "mean_sqrt_len_tokens" else count)


@pytest.mark.parametrize("mode", MODES)
def test_pooling_is_the_formula_of_sentence_transformers(mode: str) -> None:
    hidden = np.random.default_rng(0).normal(size=(5, 5, 6))
    got = Pooling([mode])(torch.from_numpy(hidden), torch.from_numpy(KEEP)).numpy()
    np.testing.assert_allclose(got, by_hand(mode, hidden, KEEP, KEEP), rtol=1e-12, atol=1e-14)
    assert all(np.abs(got - by_hand(other, hidden, KEEP, KEEP)).max() > 0.1 for other in MODES if other != mode)


@pytest.mark.parametrize("mode", MODES)
def test_tokens_of_a_prompt_may_be_left_out(mode: str) -> None:
    hidden = np.random.default_rng(0).normal(size=(2, 5, 6))
    real, pooled = np.array([[0, 1, 1, 1, 1], [1, 1, 1, 1, 0]]), np.array([[0, 0, 0, 1, 1], [0, 0, 1, 1, 1]])
    got = Pooling([mode])(*map(torch.from_numpy, (hidden, real, pooled))).numpy()
    np.testing.assert_allclose(got, by_hand(mode, hidden, real, real & pooled), rtol=1e-12, atol=1e-14)


def test_several_modes_stand_side_by_side() -> None:
    hidden = np.random.default_rng(0).normal(size=(5, 5, 6))
    got = Pooling(["cls", "mean"])(torch.from_numpy(hidden), torch.from_numpy(KEEP)).numpy()
    expected = np.concatenate([by_hand(mode, hidden, KEEP, KEEP) for mode in ("cls", "mean")], 1)
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_vectors_are_of_length_one() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [300.0, 400.0]])
    expected = torch.tensor([[0.6, 0.8], [0.0, 0.0], [0.6, 0.8]])
    torch.testing.assert_close(Normalise()(x), expected)
    torch.testing.assert_close(Normalise()(x.half()), expected.half())  # squares overflow in half precision


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_row_without_tokens_gives_zero(mode: str, dtype: torch.dtype) -> None:
    hidden = torch.full((2, 3, 4), 300.0, dtype=dtype)
    keep = torch.tensor([[0, 0, 0], [1, 1, 0]])
    got = Normalise()(Pooling([mode])(hidden, keep))
    assert not got[0].any()
    assert torch.isfinite(got).all()
    assert got[1].all()


def test_places_that_overflow_half_precision_as_a_sum_are_weighed() -> None:
    hidden = torch.ones(1, 1024, 2, dtype=torch.float16)
    got = Pooling(["weightedmean"])(hidden, torch.ones(1, 1024, dtype=torch.int64))
    torch.testing.assert_close(got, torch.ones(1, 2, dtype=torch.float16), rtol=2e-2, atol=0)


@pytest.mark.parametrize("mode", MODES)
def test_what_stands_in_padding_does_not_count(mode: str) -> None:
    hidden, keep = torch.ones(1, 3, 2), torch.tensor([[1, 1, 0]])
    hidden[0, 2] = float("inf")
    expected = torch.full((1, 2), 2**0.5) if mode == "mean_sqrt_len_tokens" else torch.ones(1, 2)
    torch.testing.assert_close(Pooling([mode])(hidden, keep), expected)


def modules(folder: Path, *kinds: str) -> None:
    listed = [{"path": f"{at}_{kind}" if at else "", "type": f"a.{kind}"} for at, kind in enumerate(kinds)]
    write(folder, "modules.json", listed)


@pytest.mark.parametrize("strategy", ["max", "sum"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_splade_is_the_formula_of_sentence_transformers(strategy: str, activation: str, tmp_path: Path) -> None:
    modules(tmp_path, "Transformer", "SpladePooling")
    write(tmp_path, "1_SpladePooling/config.json", {"pooling_strategy": strategy, "activation_function": activation})
    logits, mask = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0)), MASK
    activated = torch.log1p(torch.relu(logits * mask.unsqueeze(-1)))
    activated = torch.log1p(activated) if activation == "log1p_relu" else activated
    expected = activated.amax(1) if strategy == "max" else activated.sum(1)
    found = head(tmp_path)
    assert found.of_words
    assert found.sparse
    assert not found.embeds
    got = found.behind({"logits": logits}, mask)
    assert list(got) == ["sparse_embedding"]
    torch.testing.assert_close(got["sparse_embedding"], expected)
    write(tmp_path, "1_SpladePooling/config.json", {"pooling_strategy": "mean"})
    with pytest.raises(SpecError, match="'mean' of 'relu'; expected max or sum"):
        read_head(tmp_path, PLAIN)


@pytest.mark.parametrize("normalise", [True, False])
def test_features_are_those_of_a_sparse_auto_encoder(normalise: bool, tmp_path: Path) -> None:
    modules(tmp_path, "Transformer", "Pooling", "SparseAutoEncoder")
    write(tmp_path, "1_Pooling/config.json", {"pooling_mode": "cls"})
    place = "2_SparseAutoEncoder"
    write(tmp_path, f"{place}/config.json", {"input_dim": 16, "hidden_dim": 6, "k": 2, "normalize": normalise})
    random = torch.Generator().manual_seed(1)
    matrix = "decoder.linear.weight" if normalise else "encoder.weight"  # both are one, and a file has one of them
    sizes = {"pre_bias": (16,), matrix: (6, 16), "latent_bias": (6,), "stats_last_nonzero": (6,)}
    weights = {name: torch.randn(*size, generator=random) for name, size in sizes.items()}
    save_file(weights, tmp_path / place / "model.safetensors")
    x = HIDDEN[:, 0]
    x = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5) if normalise else x
    expected = torch.relu((x - weights["pre_bias"]) @ weights[matrix].T + weights["latent_bias"])
    got = head(tmp_path).behind({"last_hidden_state": HIDDEN}, MASK)
    torch.testing.assert_close(got["sparse_embedding"], expected)
    tokenizer = TokenizerOf(None, (), known=False)
    assert read_search(tmp_path, head(tmp_path), tokenizer, modules_of(tmp_path)) == Search("dot", 2)
    assert torch.isfinite(SparseAutoEncoder(16, 6, 2, normalise=True).half()(300 * HIDDEN.half())).all()
    assert SpladePooling("max", twice=False)(HIDDEN, torch.zeros_like(MASK)).any().item() is False


def marked(side: str = "right") -> TokenizerOf:
    """A tokenizer with the token of a mask and two of punctuation."""
    import tokenizers

    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[MASK]": 0, ",": 1, ".": 2, "a": 3}, "a"))
    made.enable_padding(direction=side)
    return TokenizerOf(made.to_str(), (), known=True, expanding=0)


PYLATE = {"model_type": "ColBERT", "query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 32,
          "document_length": 180, "attend_to_expansion_tokens": False}  # fmt: skip


def searched(folder: Path, side: str = "right") -> Search:
    return read_search(folder, head(folder), marked(side), modules_of(folder))


def test_what_pylate_says_is_read(tmp_path: Path) -> None:
    write(tmp_path, "modules.json", [{"path": "", "type": "a.Transformer"}])
    write(tmp_path, "config_sentence_transformers.json", {**PYLATE, "similarity_fn_name": "cosine"})
    found = head(tmp_path)
    assert found.of_tokens
    assert found.attended_mask
    got = found.behind({"last_hidden_state": HIDDEN}, MASK)
    torch.testing.assert_close(got["token_embeddings"], HIDDEN / HIDDEN.norm(dim=-1, keepdim=True))
    assert read_prefixes(tmp_path) == ("[Q] ", "[D] ")
    assert read_prompts(tmp_path).named == {"query": "[Q] ", "document": "[D] "}
    search = searched(tmp_path)
    assert search.similarity == "maxsim"
    assert search.document_limit == 180
    assert search.skipped == (1, 2)  # of all punctuation, as nothing else is said
    assert search.expansion is not None
    assert (search.expansion.token, search.expansion.length, search.expansion.fixed) == (0, 32, True)
    with pytest.raises(SpecError, match="padding stands before them"):
        searched(tmp_path, "left")
    write(tmp_path, "config_sentence_transformers.json", {**PYLATE, "do_query_expansion": False, "skiplist_words": []})
    assert not head(tmp_path).attended_mask
    assert searched(tmp_path) == Search("maxsim", query_limit=32, document_limit=180, skipped_of=("document",))


@pytest.mark.parametrize(
    ("expansion", "told"),
    [
        ({"strategy": "most", "length": 3}, "expected the strategy fixed or min"),
        ({"strategy": "min", "length": "3"}, "expansion.length"),
        ({"strategy": "min", "length": 3, "token": "[NONE]"}, "no token"),
    ],
)
def test_an_expansion_without_meaning_is_told(expansion: dict[str, Any], told: str, tmp_path: Path) -> None:
    modules(tmp_path, "Transformer", "MultiVectorMask")
    write(tmp_path, "1_MultiVectorMask/config.json", {})
    write(tmp_path, "sentence_bert_config.json", {"query_expansion": expansion})
    with pytest.raises(SpecError, match=told):
        searched(tmp_path)


def test_tokens_of_pictures_are_refused(tmp_path: Path) -> None:
    modules(tmp_path, "Transformer", "MultiVectorMask")
    write(tmp_path, "1_MultiVectorMask/config.json", {"keep_only_token_ids": [3]})
    with pytest.raises(SpecError, match="keep_only_token_ids"):
        searched(tmp_path)


def test_stanfords_colbert_has_its_projection_among_its_weights(tmp_path: Path) -> None:
    write(tmp_path, "config.json", {"architectures": ["HF_ColBERT"]})
    values = {"query_token_id": "[Q]", "doc_token_id": None, "query_maxlen": 24, "doc_maxlen": 120,
              "attend_to_mask_tokens": True, "mask_punctuation": False}  # fmt: skip
    write(tmp_path, "artifact.metadata", values)
    with pytest.raises(SpecError, match="its projection cannot be loaded"):
        read_head(tmp_path, PLAIN)
    weight = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    save_file({"linear.weight": weight, "bert.other": torch.ones(1)}, tmp_path / "model.safetensors")
    found = head(tmp_path)
    assert not found.attended_mask
    projected = HIDDEN @ weight.T
    expected = projected / projected.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(found.behind({"last_hidden_state": HIDDEN}, MASK)["token_embeddings"], expected)
    assert read_prompts(tmp_path).named == {"query": "[Q] ", "document": "[unused1] "}
    search = searched(tmp_path)
    assert (search.document_limit, search.skipped) == (120, ())
    assert search.expansion is not None
    assert (search.expansion.length, search.expansion.attended) == (24, True)
