"""`attnport report` on a folder: what it reads, when it writes, and what it says when something is missing."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import page_sample as sample
import pytest
import tiny_attention as tiny
import torch
from wellformed import faults

from attnport.artifacts import IOContract, Manifest, ModelSpec
from attnport.dims import Dim, TensorSpec
from attnport.errors import ArtifactError, IntegrityError, SpecError, UsageError
from attnport.folder.workspace import change, open_folder
from attnport.jsonfile import to_json
from attnport.masks import MaskSpec
from attnport.parity import layers
from attnport.transaction import transaction
from attnport.verbs import report as verb

tokenizers = pytest.importorskip("tokenizers")

SENTENCE = "the ferry that crosses river at dawn carries letters bread and anyone who cannot sleep"
WORDS = SENTENCE.split()


class Encoder(torch.nn.Module):
    """Two heads over embeddings, with the padding mask of its input."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = torch.nn.Parameter(torch.randn(len(WORDS) + 3, 8, generator=generator))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        x_BHSD = self.table[input_ids].unflatten(-1, (2, 4)).transpose(1, 2)
        mask_B11T = attention_mask[:, None, None, :].bool()
        y_BHSD = torch.nn.functional.scaled_dot_product_attention(x_BHSD, x_BHSD, x_BHSD, attn_mask=mask_B11T)
        return y_BHSD.transpose(1, 2).flatten(2)


def _io() -> IOContract:
    return IOContract(
        tuple(TensorSpec(key, "int64", ("batch", "seq"), high=18) for key in ("input_ids", "attention_mask")),
        (TensorSpec("y", "float32", ("batch", "seq", 8)),),
        (Dim("batch", 1, 2, 8), Dim("seq", 1, 16, 64)),
        (MaskSpec(("padding",), "attention_mask"),),
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An artifact folder with a tokenizer; the source is the module above."""
    out = tmp_path / "out"
    manifest = dataclasses.replace(sample.manifest("tiny"), io=_io(), files={}, forms={}, engines={}, stages={})
    with transaction(out, "attnport.json") as staged:
        vocabulary = {word: number for number, word in enumerate(["[UNK]", *WORDS, ".", ","])}
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
        tokenizer.normalizer = tokenizers.normalizers.Lowercase()
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        tokenizer.save(str(staged.path("tokenizer.json")))
        files = staged.staged()
        staged.path("attnport.json").write_text(to_json(dataclasses.replace(manifest, files=files)))

    def load(manifest: Manifest) -> ModelSpec:
        return ModelSpec(manifest.name, manifest.source, manifest.io, Encoder)

    monkeypatch.setattr(verb, "load_spec", load)
    return out


def _add(folder: Path, **reports: Any) -> None:
    with change(folder) as edit:
        for name, value in reports.items():
            if name == "parity":
                value = tiny.on(edit.manifest, value)
            edit.path(f"{name}.json").write_text(to_json(value), encoding="utf-8")
        edit.finish("reports", "test")


def test_the_page_shows_the_reports_and_the_maps_of_a_sentence(folder: Path, tmp_path: Path) -> None:
    _add(folder, fusion=sample.fusion(), parity=sample.parity(), latency=sample.latency())
    text = tmp_path / "text.txt"
    text.write_text("\nthe ferry that crosses the river at dawn carries letters and bread\nthe dawn\n")
    page = verb.report(folder, text=text).read_text(encoding="utf-8")
    assert faults(page) == []
    assert "<q>the ferry that crosses the river at dawn carries letters and bread</q>" in page
    assert page.count("<img") == 2
    assert "4 of 4 runtimes" in page
    assert re.findall(r"Not run yet: <code>attnport (\w+)", page) == ["check", "build"]  # check, for the layers


def test_the_maps_are_the_weights_of_the_module(folder: Path) -> None:
    manifest = open_folder(folder)
    read = "the ferry crosses the river at dawn and the bread cannot sleep"
    maps = verb._maps(folder, manifest, read)
    (found,) = maps.heatmaps
    assert found.queries == (
        "the",
        "ferry",
        "crosses",
        "the",
        "river",
        "at",
        "dawn",
        "and",
        "the",
        "bread",
        "cannot",
        "sleep",
    )
    x_SHD = Encoder().table.detach().numpy()[[1, 2, 4, 1, 5, 6, 7, 11, 1, 10, 14, 15]].reshape(12, 2, 4)
    scores_HST = np.einsum("shd,thd->hst", x_SHD, x_SHD) / 2
    expected = np.exp(scores_HST) / np.exp(scores_HST).sum(-1, keepdims=True)
    np.testing.assert_allclose(found.weights_HST[:, :, :12], expected, atol=1e-5)


def test_padding_stands_beside_the_sentence_and_is_drawn_as_what_the_mask_hides(folder: Path) -> None:
    read = "the ferry crosses river at dawn and letters cannot sleep"
    (found,) = verb._maps(folder, open_folder(folder), read).heatmaps
    assert found.keys == (*found.queries, "padding", "padding", "padding")
    assert not found.hidden_ST[:, :-3].any()
    assert found.hidden_ST[:, -3:].all()


def test_what_a_causal_module_hides_is_drawn_too() -> None:
    weights_HST = np.tril(np.ones((2, 3, 3)))
    weights_HST[0, 2, 0] = 0  # of one head alone: a small weight and no mask
    found = verb._heatmap("a", weights_HST, ())
    np.testing.assert_array_equal(found.hidden_ST, ~np.tril(np.ones((3, 3), dtype=bool)))


def test_a_page_without_reports_says_how_to_make_them(folder: Path) -> None:
    page = verb.report(folder).read_text(encoding="utf-8")
    assert faults(page) == []
    for name in ("fuse", "check", "bench"):
        assert f"Not run yet: <code>attnport {name} {folder}" in page
    assert f"Not run yet: <code>attnport report {folder} --maps" in page


def test_a_page_is_written_again_only_when_something_changed(folder: Path) -> None:
    path = verb.report(folder)
    first = path.stat().st_mtime_ns
    assert verb.report(folder).stat().st_mtime_ns == first
    _add(folder, parity=sample.parity())
    second = verb.report(folder).stat().st_mtime_ns
    assert second != first
    assert "4 of 4 runtimes" in path.read_text(encoding="utf-8")
    assert verb.report(folder, force=True).stat().st_mtime_ns != second


def test_a_source_that_changed_leaves_the_maps_out_and_says_why(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(manifest: Manifest) -> ModelSpec:
        raise SpecError("the weights of model changed since export.")

    with monkeypatch.context() as broken:
        broken.setattr(verb, "load_spec", refuse)
        page = verb.report(folder, maps=True).read_text(encoding="utf-8")
    assert "the weights of model changed since export." in page
    assert "<img" not in page
    page = verb.report(folder, maps=True).read_text(encoding="utf-8")
    assert page.count("<img") == 2
    assert f"Inputs: {verb._SENTENCE}" in page
    assert "<q>" not in page  # it is none of the user's


def test_a_report_that_was_edited_is_refused(folder: Path) -> None:
    _add(folder, parity=sample.parity())
    file = folder / "parity.json"
    file.write_text(file.read_text().replace("PASS", "FAIL", 1))
    with pytest.raises(IntegrityError, match=r"parity\.json is not the file that was written"):
        verb.report(folder)
    assert not (folder / verb.FILE).exists()


def test_markdown_is_a_file_of_its_own_beside_the_page(folder: Path) -> None:
    _add(folder, fusion=sample.fusion(), parity=sample.parity(), latency=sample.latency())
    page = verb.report(folder)
    made = verb.report(folder, kind="md")
    assert made == folder / "report.md"
    assert page.is_file()
    assert "4 of 4 runtimes within the bound" in made.read_text(encoding="utf-8")
    written = made.stat().st_mtime_ns, page.stat().st_mtime_ns
    verb.report(folder, kind="md")
    verb.report(folder)
    assert (made.stat().st_mtime_ns, page.stat().st_mtime_ns) == written, "one made the other old"


@pytest.mark.parametrize("options", [{}, {"kind": "md"}, {"kind": "md", "maps": True}])
def test_a_report_without_maps_needs_no_source(
    folder: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "load_spec", None)
    assert "attnport check" in verb.report(folder, **options).read_text(encoding="utf-8")


def test_layers_are_shown_until_parity_is_checked_anew(folder: Path) -> None:
    _add(folder, parity=sample.parity())
    with change(folder) as edit:
        edit.path("layers.json").write_text(to_json(sample.layers()), encoding="utf-8")
        edit.finish("layers", layers._digest(edit.manifest))
    assert "Relative RMS error by layer" in verb.report(folder).read_text(encoding="utf-8")
    _add(folder, parity=sample.parity(fail=True))
    page = verb.report(folder).read_text(encoding="utf-8")
    assert "Relative RMS error by layer" not in page
    assert f"attnport check {folder} --bisect" in page


def test_bad_folders_and_texts_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="is not a folder"):
        verb.report(tmp_path / "nothing")
    with pytest.raises(UsageError, match="cannot be read"):
        verb.report(folder, text=tmp_path / "nothing.txt")


def test_a_text_of_long_sentences_is_cut_to_what_can_be_read(folder: Path) -> None:
    maps = verb._maps(folder, open_folder(folder), " ".join(["ferry"] * 60))
    assert 0 < len(maps.heatmaps[0].queries) <= 40
    assert len(maps.heatmaps[0].queries) == len(maps.inputs.split())


def test_a_model_that_reads_no_text_is_shown_on_random_inputs(folder: Path) -> None:
    manifest = dataclasses.replace(open_folder(folder), tokenizer=None)
    maps = verb._maps(folder, manifest, "the ferry")
    assert (maps.inputs, maps.quoted) == ("random, batch=1,seq=20", False)
    assert maps.heatmaps[0].keys == tuple(map(str, range(20)))


def test_weights_without_a_batch_or_heads_are_those_of_one_head() -> None:
    shapes = {(2, 4, 5, 6): (4, 5, 6), (2, 3, 4, 5, 6): (12, 5, 6), (2, 5, 6): (1, 5, 6), (5, 6): (1, 5, 6)}
    assert {shape: verb._of_first(np.zeros(shape)).shape for shape in shapes} == shapes


def test_tokens_lose_the_marks_of_their_tokenizer() -> None:
    assert [verb.readable(token) for token in ("Ġthe", "▁the", "##ing", "Ġ", "[CLS]")] == [
        "the",
        "the",
        "##ing",
        "␣",
        "[CLS]",
    ]
