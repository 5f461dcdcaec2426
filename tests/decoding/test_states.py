"""Decoders whose memory has one size: tokens, padding, beams and proof, as of those with keys and values alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoders import END, STATES, VOCABULARY, Once, continued
from representatives import representatives

import attnport
from attnport.artifacts import IOContract, Window
from attnport.cases.choosing import DECODING, cases_of, decoding_cases, few_batches, in_steps
from attnport.decoders import roles_in
from attnport.dims import Dim, TensorSpec
from attnport.errors import FeedError, SpecError
from attnport.folder.workspace import open_folder, opened
from attnport.masks import MaskSpec
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse
from attnport_bundle.decoding.caches import Buffers, Decoding

PROMPTS = [[5, 17, 60, 3], [44], [9, 9, 30, 71, 12, 50, 2]]
QUICK = ("lfm2",)
RUNTIMES = ("ort_cpu", "openvino")


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Once:
    return Once(tmp_path_factory)


@pytest.mark.parametrize("kind", representatives(STATES, QUICK))
def test_tokens_of_prompts_of_several_lengths_are_those_of_transformers(artifacts: Once, kind: str) -> None:
    folder = artifacts(kind)
    fuse(folder, targets=list(RUNTIMES))
    weights, artifact = folder.parent / "weights", attnport.open(folder)
    greedy = continued(weights, PROMPTS, 20, min_new_tokens=20)
    beams = continued(weights, PROMPTS, 12, num_beams=3, min_new_tokens=12)
    for runtime in RUNTIMES:
        assert artifact.generate(PROMPTS, runtime, max_tokens=20, min_tokens=20) == greedy, runtime
        assert artifact.generate(PROMPTS, runtime, max_tokens=12, min_tokens=12, beams=3) == beams, runtime


@pytest.mark.parametrize("kind", representatives(STATES, QUICK))
def test_steps_are_what_one_pass_of_the_module_over_all_tokens_gives(artifacts: Once, kind: str) -> None:
    folder = artifacts(kind)
    fuse(folder, targets=["ort_cpu"])
    rows = check(folder, ["ort_cpu", "torch_eager"]).runtimes
    assert {row.verdict for row in rows.values()} == {"PASS"}, {name: row.reason for name, row in rows.items()}
    outputs = {case.output for case in rows["ort_cpu"].cases if case.case.startswith("decode, ")}
    assert outputs == {spec.name for spec in open_folder(folder).io.outputs}


def test_inputs_and_outputs_of_one_token_at_a_time(artifacts: Once) -> None:
    io = open_folder(artifacts("lfm2")).io
    assert [str(spec) for spec in io.inputs] == [
        "input_ids=int64[batch,1]", "attention_mask=int64[batch,past+1]", "past_conv_0=float32[batch,32,3]",
        "past_key_0=float32[batch,2,past,8]", "past_value_0=float32[batch,2,past,8]",
    ]  # fmt: skip
    assert [str(spec) for spec in io.outputs] == [
        f"logits=float32[batch,{VOCABULARY}]", "present_conv_0=float32[batch,32,3]",
        "present_key_0=float32[batch,2,past+1,8]", "present_value_0=float32[batch,2,past+1,8]",
    ]  # fmt: skip
    assert {dim.name: (dim.min, dim.max) for dim in io.dims if dim.name != "batch"} == {"past": (0, 319)}
    assert [spec.name for spec, _, axis in roles_in(io).caches if axis is None] == ["past_conv_0"]


def test_padding_in_a_state_and_a_state_that_is_lost_are_found(artifacts: Once) -> None:
    folder = artifacts("lfm2")
    io = open_folder(folder).io
    session: Any = opened(folder, open_folder(folder), "ort_cpu")
    (case, *_) = decoding_cases(io)
    right = in_steps(session, io, case.feeds)["logits"]

    class Faulty:
        def __init__(self, change: Any) -> None:
            self.change = change

        def run(self, feeds: dict[str, Any]) -> dict[str, Any]:
            return dict(session.run(self.change(dict(feeds))))

    def padded(feeds: dict[str, Any]) -> dict[str, Any]:
        return {**feeds, "attention_mask": np.ones_like(feeds["attention_mask"])}

    def lost(feeds: dict[str, Any]) -> dict[str, Any]:
        late = feeds["attention_mask"].shape[1] == right.shape[0] + 37
        return {**feeds, "past_conv_0": feeds["past_conv_0"] * (not late)}

    changes = {change: np.abs(in_steps(Faulty(change), io, case.feeds)["logits"] - right).max(-1)
               for change in (padded, lost)}  # fmt: skip
    assert changes[padded][0] == 0 < changes[padded][1]  # the second text alone has padding
    assert (changes[lost] > 1e-3).all()


def test_sentences_are_checked_token_by_token(artifacts: Once) -> None:
    folder = artifacts("lfm2")
    manifest = open_folder(folder)
    tried = few_batches(cases_of(folder, manifest, ["ab c", "qrstuv"], None, 0, 2), 1)
    (case,) = (one for one in tried if one.name == "sentences 1-2")
    assert case.group == DECODING
    assert case.feeds["attention_mask"].tolist() == [[0, 0, 1, 1, 1, 1], [1] * 6]
    session: Any = opened(folder, manifest, "ort_cpu")
    alone = {"input_ids": case.feeds["input_ids"][:1, 2:], "attention_mask": case.feeds["attention_mask"][:1, 2:]}
    alone |= {name: array[:1] for name, array in case.feeds.items() if name not in alone}
    both, one = (in_steps(session, manifest.io, feeds)["logits"] for feeds in (case.feeds, alone))
    np.testing.assert_allclose(both[:1], one, rtol=1e-4, atol=1e-4)


COMPRESSED = {
    "head_dim": 16, "index_head_dim": 16, "index_n_heads": 2, "index_topk": 8, "moe_intermediate_size": 32,
    "n_routed_experts": 4, "num_attention_heads": 4, "num_experts_per_tok": 2, "num_key_value_heads": 1,
    "hidden_size": 64, "o_groups": 2, "o_lora_rank": 16, "q_lora_rank": 16, "sliding_window": 8,
    "max_position_embeddings": 64,
}  # fmt: skip
LAYERS = ["heavily_compressed_attention", "compressed_sparse_attention"]


@pytest.mark.parametrize(
    ("name", "sizes", "reason"),
    [
        ("Rwkv", {"hidden_size": 32, "context_length": 32}, "token by token it gives other"),
        ("DeepseekV4", COMPRESSED, "it does not go on with what its cache was found to hold: "),
        (
            "DeepseekV4",
            {**COMPRESSED, "layer_types": LAYERS},
            r"layers.1.buffer_kv.compressor in its cache is \[5, 2, \d+\] of 6 tokens and \[5, 3",
        ),
    ],
)
def test_models_whose_memory_cannot_be_given_to_them_are_refused_with_the_reason(
    name: str, sizes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    import transformers

    config = getattr(transformers, f"{name}Config")(vocab_size=50, num_hidden_layers=2, **sizes)
    getattr(transformers, f"{name}ForCausalLM")(config).save_pretrained(tmp_path / "model")
    with pytest.raises(SpecError, match=f"{name}ForCausalLM does not go with --with-past: {reason}"):
        export(f"hf:{tmp_path / 'model'}", tmp_path / "out", part="with-past")


class Recurrent(torch.nn.Module):
    """A user's own: a state in, a state out, and no cache of tokens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.cell = torch.nn.Embedding(VOCABULARY, 16), torch.nn.GRUCell(16, 16)
        self.scores = torch.nn.Linear(16, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        following = self.cell(self.words(input_ids[:, 0]), state)
        return self.scores(4 * following), following


@pytest.mark.slow
def test_a_module_with_a_state_of_its_own_generates(tmp_path: Path) -> None:
    module = Recurrent().eval()
    ids = f"input_ids=int64[batch,1]:high={VOCABULARY}"
    export(module, tmp_path / "out", inputs=[ids, "state=float32[batch,16]"], dims=["batch=1:2:8"])
    fuse(tmp_path / "out", targets=["ort_cpu"])
    prompts, expected = [[5, 17, 60], [44, 3, 9]], []
    for prompt in prompts:
        text, state = list(prompt), torch.zeros(1, 16)
        for at in range(len(prompt) + 9):
            with torch.no_grad():
                logits, state = module(torch.tensor([[text[at]]]), state)
            text += [int(logits.argmax())] if at >= len(prompt) - 1 else []
        expected.append(text[len(prompt) :])
    artifact = attnport.open(tmp_path / "out")
    assert artifact.generate(prompts, max_tokens=10) == expected
    with pytest.raises(FeedError, match="they have different lengths, and the model takes no mask"):
        artifact.generate(PROMPTS)


@pytest.mark.parametrize("kind", representatives(STATES, QUICK))
def test_a_text_ends_and_is_drawn_as_any_other(artifacts: Once, kind: str) -> None:
    artifact = attnport.open(artifacts(kind))
    draws = [artifact.generate(PROMPTS[:1], max_tokens=8, temperature=2.0, seed=seed) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    stop = [draws[0][0][3], END]
    ended = artifact.generate(PROMPTS[:1], max_tokens=8, temperature=2.0, seed=1, stop=stop)
    assert ended[0][-1] in stop


def test_a_step_is_one_token_and_no_prompt_is_passed_at_once(artifacts: Once) -> None:
    folder = artifacts("lfm2")
    io, calls = open_folder(folder).io, list[tuple[int, ...]]()
    session: Any = opened(folder, open_folder(folder), "ort_cpu")

    def run(**feeds: Any) -> dict[str, Any]:
        calls.append(feeds["input_ids"].shape)
        return dict(session.run(feeds))

    from attnport_bundle.decoding.generate import Options, generated

    assert len(list(generated(Decoding(run, io, roles_in(io)), [[5, 17, 60]], Options(max_tokens=2)))) == 2
    assert calls == [(1, 1)] * 4


def test_a_state_a_window_and_a_cache_of_all_tokens_go_together() -> None:
    sizes = (Dim("batch", 1, 1, 4), Dim("past", 0, 1, 400), Dim("kept", 0, 1, 400))
    inputs = (
        TensorSpec("ids", "int64", ("batch", 1), high=VOCABULARY),
        TensorSpec("mask", "int64", ("batch", "past+1"), high=2),
        TensorSpec("near", "int64", ("batch", "kept+1"), high=2),
        TensorSpec("all", "float32", ("batch", "past")),
        TensorSpec("last", "float32", ("batch", "kept")),
        TensorSpec("state", "float32", ("batch",)),
    )
    outputs = tuple(
        TensorSpec(name, "float32", ("batch", *dims))
        for name, dims in (("logits", (VOCABULARY,)), ("all_", ("past+1",)), ("last_", ("kept+1",)), ("state_", ()))
    )
    masks = (MaskSpec(("padding",), "mask"), MaskSpec(("padding",), "near"))
    io = IOContract(inputs, outputs, sizes, masks, window=Window("kept", 3))
    most = 0

    def step(ids: Any, mask: Any, near: Any, **kept: Any) -> dict[str, Any]:
        nonlocal most
        most = max(most, near.shape[1])
        full, last = np.append(kept["all"], ids, 1), np.append(kept["last"], ids, 1)
        state = kept["state"] / 2 + ids[:, 0] * mask[:, -1]
        seen = (full * mask).sum(1) + 3 * (last * near)[:, -4:].sum(1) + 7 * state
        made = {"all_": full, "last_": last, "state_": state, "logits": -abs(np.arange(VOCABULARY) - seen[:, None])}
        return {name: array.astype(np.float32) for name, array in made.items()}

    def in_place(feeds: Any, buffers: Any) -> dict[str, Any]:
        lengths = {"all": feeds["mask"].shape[1], "last": feeds["near"].shape[1]}
        filled = {name: buffer[:, : lengths[name] - 1] for name, (_, buffer) in buffers.items()}
        made = step(**feeds, **filled)
        for name, (output, buffer) in buffers.items():
            buffer[:, : lengths[name]] = made.pop(output)
        return made

    roles, rng = roles_in(io), np.random.default_rng(0)
    assert [axis for _, _, axis in roles.caches] == [1, 1, None]
    ids, keep = rng.integers(1, VOCABULARY, (2, 200)), np.ones((2, 200), bool)
    keep[1, :4] = False
    copied, kept = Decoding(step, io, roles), Decoding(step, io, roles, lambda of: Buffers(in_place, of))
    whole_text = {"all": np.zeros((2, 0)), "last": np.zeros((2, 0)), "state": np.zeros(2)}
    for at in range(200):
        whole = keep[:, : at + 1].astype(int)
        expected = step(ids[:, at : at + 1], whole, whole, **whole_text)
        whole_text = {name: expected[f"{name}_"] for name in whole_text}
        most = 0
        for decoding, longest in ((copied, 4), (kept, 4 + 64)):
            scores = decoding.push(ids[:, at : at + 1], keep[:, at : at + 1])
            np.testing.assert_array_equal(scores, expected["logits"])
            assert most <= longest
        if at == 120:
            whole_text = {name: array[[1, 0]] for name, array in whole_text.items()}
            ids, keep = ids[[1, 0]], keep[[1, 0]]
            copied.take(np.array([1, 0]))
            kept.take(np.array([1, 0]))
    assert most > 4
    for name, array in whole_text.items():
        np.testing.assert_array_equal(kept.cache(name), array[:, -most:] if name == "last" else array)
