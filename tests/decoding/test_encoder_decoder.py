"""Encoder-decoders as two artifacts: tokens as transformers makes them, every step checked, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from decoders import END, VOCABULARY, letters
from encoder_decoders import KINDS, Once, answered, sounds
from refusing import call
from representatives import representatives
from torch import nn

import attnport
import attnport_bundle
from attnport.errors import BundleError, FeedError
from attnport.folder.workspace import open_folder
from attnport.sources.hf.modules import WITH_PAST
from attnport.verbs.bundle import bundle
from attnport.verbs.check import check
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse
from attnport.verbs.generate import generate
from attnport_bundle.format.decoder import IN_PLACE

PROMPTS = [[5, 17, 60, 3], [44], [9, 9, 30, 71, 12, 50, 2]]
QUICK = ("t5",)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Once:
    return Once(tmp_path_factory)


RUNTIMES = ["ort_cpu", "openvino", "torch_eager"]


def prompts_of(kind: str) -> Any:
    return {"input_features": sounds(3)} if kind == "whisper" else PROMPTS


@pytest.mark.parametrize("kind", representatives(KINDS, QUICK))
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}])
def test_tokens_are_those_of_transformers(artifacts: Once, kind: str, options: dict[str, int]) -> None:
    decoder, encoder = map(attnport.open, artifacts(kind))
    beams = options.get("num_beams", 1)
    found = decoder.generate(prompts_of(kind), encoder=encoder, max_tokens=20, beams=beams)
    given = sounds(3) if kind == "whisper" else PROMPTS
    assert found == answered(decoder.folder.parent / "weights", kind, given, 20, **options)


@pytest.mark.parametrize(
    ("kind", "runtimes"),
    [("t5", ["ort_cpu"]), *(pytest.param(kind, RUNTIMES, marks=pytest.mark.slow) for kind in KINDS)],
)
def test_both_parts_pass_and_steps_write_in_place(artifacts: Once, kind: str, runtimes: list[str]) -> None:
    import onnx

    decoder, encoder = artifacts(kind)
    targets = [name for name in runtimes if name != "torch_eager"]
    for folder, attentions in ((decoder, 4), (encoder, 2)):  # of the decoder, its own and those of what was read
        tables = fuse(folder, targets=targets).targets
        assert {(table.fused, table.attentions) for table in tables.values()} == {(attentions, attentions)}
        rows = check(folder, runtimes).runtimes
        assert {row.verdict for row in rows.values()} == {"PASS"}, {name: row.reason for name, row in rows.items()}
        decoded = any(case.case.startswith("decode, ") for row in rows.values() for case in row.cases)
        assert decoded == (folder == decoder)
    model = onnx.load(decoder / "model.ort_cpu.onnx", load_external_data=False)
    assert {prop.key: prop.value for prop in model.metadata_props}[IN_PLACE] == "decoder_input_ids"


def test_a_decoder_that_is_not_causal_with_a_cache_takes_one_token_at_a_time(tmp_path: Path) -> None:
    """FSMT makes no causal mask where it is given a cache: several tokens at once would see each other."""
    config = transformers.FSMTConfig(
        langs=["en", "de"], src_vocab_size=VOCABULARY, tgt_vocab_size=VOCABULARY, d_model=32, encoder_layers=2,
        decoder_layers=2, encoder_ffn_dim=64, decoder_ffn_dim=64, encoder_attention_heads=4, decoder_attention_heads=4,
        max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.FSMTForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path / "weights")
    folders = [tmp_path / "encoder", tmp_path / "decoder"]
    for folder, part in zip(folders, ("encoder-with-past", "with-past"), strict=True):
        export(f"hf:{tmp_path / 'weights'}", folder, part=part)
    report = check(folders[1], ["ort_cpu"])
    assert report.runtimes["ort_cpu"].verdict == "PASS", report.runtimes["ort_cpu"].reason
    encoder, decoder = map(attnport.open, folders)
    begun = [2, 30, 41]
    (found,) = decoder.generate([PROMPTS[0]], encoder=encoder, start=begun, max_tokens=8, stop=[], beams=1)
    read = torch.tensor([PROMPTS[0]])
    with torch.no_grad():
        for token in found[:7]:  # the last one is forced
            scores = model(input_ids=read, decoder_input_ids=torch.tensor([begun]), use_cache=False).logits
            assert token == int(scores[0, -1].argmax())
            begun.append(token)


def test_openvino_gives_the_same_tokens(artifacts: Once) -> None:
    decoder, encoder = map(attnport.open, artifacts("t5"))
    for artifact in (decoder, encoder):
        fuse(artifact.folder, targets=["ort_cpu", "openvino"])
    options: dict[str, Any] = {"encoder": encoder, "max_tokens": 12}
    assert decoder.generate(PROMPTS, "openvino", **options) == decoder.generate(PROMPTS, **options)


def test_texts_are_read_and_answered_in_pieces(artifacts: Once) -> None:
    decoder, encoder = map(attnport.open, artifacts("t5"))
    told: list[str] = []
    text = decoder.generate("ab c", encoder=encoder, max_tokens=9, on_token=lambda row, piece: told.append(piece))
    ids = decoder.generate([[65, 66, 0, 67]], encoder=encoder, max_tokens=9)[0]
    assert text == "".join(told) == "".join(chr(32 + one) if one < 95 else f"<{one}>" for one in ids)
    assert decoder.generate(["ab c", "q"], encoder=encoder, max_tokens=9)[0] == text
    assert decoder.generate(["ab c"], encoder=encoder, max_tokens=9, as_text=False) == [ids]
    begun = decoder.generate("ab c", encoder=encoder, max_tokens=8, start=["<0>" if ids[0] > 94 else " ", ids[0]])
    assert begun == text[len(chr(32 + ids[0]) if ids[0] < 95 else f"<{ids[0]}>") :]


def test_sounds_may_be_answered_in_text(artifacts: Once, tmp_path: Path) -> None:
    decoder, encoder = artifacts("t5")
    ids = np.array([PROMPTS[0]])
    np.savez(tmp_path / "read.npz", input_ids=ids, attention_mask=np.ones_like(ids))
    told = generate(decoder, encoder=encoder, inputs=tmp_path / "read.npz", max_tokens=6)
    expected = attnport.open(decoder).generate(PROMPTS[:1], encoder=attnport.open(encoder), max_tokens=6, as_text=True)
    assert (told.prompts, list(told.texts), told.answers) == ((), expected, True)


def test_a_bundle_of_each_part_answers_too(artifacts: Once, tmp_path: Path) -> None:
    apps = []
    for folder in artifacts("t5"):
        check(folder, ["ort_cpu"])
        apps.append(bundle(folder, tmp_path / folder.name, forms=("ort_cpu",)))
    decoder, encoder = map(attnport.open, artifacts("t5"))
    with attnport_bundle.load(apps[0]) as model, attnport_bundle.load(apps[1]) as reads:
        assert model.io.decoder
        assert model.io.decoder.start == (0,)
        found = model.generate(PROMPTS, encoder=reads, max_tokens=8)
    assert found == decoder.generate(PROMPTS, encoder=encoder, max_tokens=8)


def test_the_command_line_says_what_is_missing(artifacts: Once) -> None:
    decoder, encoder = artifacts("t5")
    done = call(
        "generate", decoder, "--encoder", encoder, "--prompt", "ab", "--prompt", "c d", "--max-tokens", 5, "--json"
    )
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["answers"], told["tokens"], len(told["texts"])) == (True, 10, 2)
    for arguments, said in (
        (("--prompt", "ab"), "the same at every step: what an encoder gives"),
        (("--prompt", "ab", "--start", "a"), "it is for texts behind an encoder"),
        (("--encoder", encoder), "got neither"),
        (("--encoder", encoder, "--prompt", "a", "--inputs", decoder / "golden.npz"), "got both"),
        (("--encoder", decoder, "--prompt", "a"), "give an array for each by its name"),
        (("--encoder", encoder, "--prompt", "a", "--start", "nothing"), "start: got 'nothing'"),
    ):
        done = call("generate", decoder, *arguments)
        assert done.exit_code == 2, done.stderr
        assert said in done.stderr


@pytest.mark.parametrize(
    ("prompts", "options", "said"),
    [
        (PROMPTS, {}, "context: got nothing; expected attention_mask, cross_key_0"),
        (PROMPTS, {"context": {"states": np.zeros(1)}}, "context: got states"),
        ({"input_ids": np.array([[1]])}, {}, "which an encoder takes"),
    ],
)
def test_what_a_decoder_cannot_answer_is_refused(
    artifacts: Once, prompts: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(FeedError, match=said):
        attnport.open(artifacts("t5")[0]).generate(prompts, **options)


def test_prompts_that_an_encoder_does_not_read_are_refused(artifacts: Once) -> None:
    decoder, encoder = map(attnport.open, artifacts("t5"))
    for prompts, said in (
        ([[]], "without a token"),
        ([[500]], "expected 0 to 100"),
        ([[1] * 600], "reads at most 512"),
    ):
        with pytest.raises(FeedError, match=said):
            decoder.generate(prompts, encoder=encoder)
    with pytest.raises(FeedError, match="450 new ones; the model keeps at most"):
        decoder.generate(PROMPTS, encoder=encoder, max_tokens=450)


class Captioner(nn.Module):
    """A decoder of one's own behind pictures: cross-attention to them, and a cache of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.scores = nn.Embedding(30, 16), nn.Linear(16, 30)
        self.key_value, self.seen = nn.Linear(16, 32), nn.Linear(16, 32)

    def forward(self, ids: torch.Tensor, seen: torch.Tensor, past_key: torch.Tensor, past_value: torch.Tensor) -> Any:
        x_BTD = self.words(ids)
        key_BTD, value_BTD = self.key_value(x_BTD).chunk(2, -1)
        key_BTD, value_BTD = torch.cat([past_key, key_BTD], 1), torch.cat([past_value, value_BTD], 1)
        length = key_BTD.shape[1]
        behind_ST = torch.arange(length)[None] <= torch.arange(length)[past_key.shape[1] :, None]
        attend = nn.functional.scaled_dot_product_attention
        x_BTD = x_BTD + attend(x_BTD[:, None], key_BTD[:, None], value_BTD[:, None], attn_mask=behind_ST)[:, 0]
        key_BSD, value_BSD = self.seen(seen).chunk(2, -1)
        x_BTD = x_BTD + attend(x_BTD[:, None], key_BSD[:, None], value_BSD[:, None])[:, 0]
        return self.scores(x_BTD), key_BTD, value_BTD


@pytest.mark.slow
def test_a_module_of_ones_own_generates_behind_what_it_is_given(tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = Captioner().eval()
    export(module, tmp_path / "out", inputs=[
        "ids=int64[batch,seq]:high=30", "seen=float32[batch,patches,16]", "past_key=float32[batch,past,16]",
        "past_value=float32[batch,past,16]"], dims=["past=0:16:63"])  # fmt: skip
    fuse(tmp_path / "out", targets=["ort_cpu"])
    seen = np.random.default_rng(0).standard_normal((2, 5, 16)).astype(np.float32)
    found = attnport.open(tmp_path / "out").generate([[3, 4], [7, 1]], context={"seen": seen}, max_tokens=8, stop=[])
    for row, prompt in enumerate([[3, 4], [7, 1]]):
        ids = list(prompt)
        for _ in range(8):
            empty = torch.zeros(1, 0, 16)
            logits = module(torch.tensor([ids]), torch.from_numpy(seen[row : row + 1]), empty, empty)[0]
            ids.append(int(logits[0, -1].argmax()))
        assert found[row] == ids[2:]


@pytest.mark.slow
def test_a_cache_whose_batch_is_not_its_first_axis_is_kept_as_a_state(tmp_path: Path) -> None:
    class Second(Captioner):
        def forward(self, ids: Any, seen: Any, past_key: Any, past_value: Any) -> Any:
            out, key, value = super().forward(ids, seen, past_key[0], past_value[0])
            return out, key[None], value[None]

    torch.manual_seed(1)
    export(Second().eval(), tmp_path / "out", inputs=[
        "ids=int64[batch,seq]:high=30", "seen=float32[batch,patches,16]", "past_key=float32[1,batch,past,16]",
        "past_value=float32[1,batch,past,16]"], dims=["past=0:16:63"])  # fmt: skip
    fuse(tmp_path / "out", targets=["ort_cpu", "openvino"])
    seen = np.random.default_rng(0).standard_normal((2, 5, 16)).astype(np.float32)
    artifact = attnport.open(tmp_path / "out")
    options: dict[str, Any] = {"context": {"seen": seen}, "max_tokens": 8, "stop": []}
    for beams in (1, 3):
        found = [artifact.generate([[3, 4], [7, 1]], one, beams=beams, **options) for one in ("ort_cpu", "openvino")]
        assert found[0] == found[1]


def test_what_an_encoder_gives_may_be_given_in_its_place(artifacts: Once) -> None:
    decoder, encoder = map(attnport.open, artifacts("t5"))
    expected = decoder.generate([[5, 17, 60]], encoder=encoder, max_tokens=6)
    feeds = {"input_ids": np.array([[5, 17, 60]]), "attention_mask": np.ones((1, 3), np.int64)}
    with encoder.open() as running:
        given = {**running.run(**feeds), "attention_mask": feeds["attention_mask"]}
    assert decoder.generate([[0]], context=given, max_tokens=6) == expected
    few = {name: given[name] for name in ("cross_key_0", "attention_mask")}
    assert decoder.generate([[5, 17, 60]], encoder=encoder, context=few, max_tokens=6) == expected
    twice = {name: np.repeat(array, 2, axis=0) for name, array in given.items()}
    with pytest.raises(FeedError, match="behind a context, all have the same"):
        decoder.generate([[0], [0, 4]], context=twice)
    off = {name: np.full_like(array, np.nan) if name.startswith("cross") else array for name, array in given.items()}
    for beams in (1, 2):
        with pytest.raises(BundleError, match="scores are NaN"):
            decoder.generate([[0]], context=off, beams=beams, max_tokens=2)
    with pytest.raises(FeedError, match="start: got no token"):
        decoder.generate([[5]], encoder=encoder, start=[])


@pytest.mark.slow
def test_where_padding_moves_positions_texts_of_several_lengths_are_refused(tmp_path: Path) -> None:
    config = transformers.PegasusConfig(
        vocab_size=VOCABULARY, d_model=32, decoder_layers=1, decoder_ffn_dim=64, decoder_attention_heads=4,
        max_position_embeddings=64, pad_token_id=0, eos_token_id=END, is_encoder_decoder=False, is_decoder=True,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.PegasusForCausalLM(config).save_pretrained(tmp_path / "weights")
    letters().save(str(tmp_path / "weights" / "tokenizer.json"))
    export(f"hf:{tmp_path / 'weights'}", tmp_path / "out", part=WITH_PAST)
    fuse(tmp_path / "out", targets=["ort_cpu"])
    assert [spec.name for spec in open_folder(tmp_path / "out").io.inputs][:2] == ["input_ids", "past_key_0"]
    with pytest.raises(FeedError, match="they have different lengths"):
        attnport.open(tmp_path / "out").generate(PROMPTS, max_tokens=4)
    assert len(attnport.open(tmp_path / "out").generate([[5, 6], [7, 8]], max_tokens=4, stop=[])[1]) == 4
