"""Inputs that random values do not fit: every test has the values of the example."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path

import hf_folders
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import attnport
from attnport.cases.inputs import cases
from attnport.cli import cli
from attnport.errors import UsageError
from attnport.example_values import continued, packed, without_examples
from attnport.folder.given import Given


class Patches(nn.Module):
    """Patches that have their row in front, as a float, beside ids and the logarithm of a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.words = nn.Embedding(6, 8), nn.Embedding(50, 8)

    def forward(self, patches: torch.Tensor, ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        found = patches[..., 1:] + self.rows(patches[..., 0].long())
        return found.amax(1) * weight.log()[:, None] + self.words(ids).amax(1)


def patches(batch: int = 5) -> tuple[torch.Tensor, ...]:
    found = torch.randn(batch, 6, 9)
    found[..., 0] = torch.arange(6)
    return found, torch.randint(0, 50, (batch, 4)), torch.rand(batch) + 0.1


def test_an_array_continues_in_another_shape_and_keeps_its_values() -> None:
    text = packed(np.array([[1, 2, 3], [4, 5, 6]]))
    assert continued(text, (3, 4)).tolist() == [[1, 2, 3, 3], [4, 5, 6, 6], [4, 5, 6, 6]]
    assert continued(packed(np.array([0.5, 1.5])), (3,)).tolist() == [0.5, 1.5, 0.5]
    assert continued(text, (1, 2)).tolist() == [[1, 2]]
    assert continued(packed(np.float32(2.5)), ()).tolist() == 2.5
    with pytest.raises(UsageError, match=r"shape \[2, 3\]"):
        continued(text, (2,))
    for damaged in (text[:-9], "***", base64.urlsafe_b64encode(zlib.compress(bytes(1 << 29))).decode()):
        with pytest.raises(UsageError, match="damaged"):
            continued(damaged, (2, 3))


def test_inputs_that_random_values_do_not_fit_have_those_of_the_example_and_no_others_have() -> None:
    found, ids, weight = patches()
    spec = Given(Patches(), (found, ids, weight)).spec()
    assert set(spec.io.examples) == {"patches", "weight"}
    assert [note.partition(":")[0] for note in spec.notes if "every test" in note] == ["input patches", "input weight"]
    for case in cases(spec.io):
        whole = case.feeds["patches"][..., 0]
        assert (whole == whole.round()).all()
        assert (case.feeds["weight"] > 0).all()
        batch = len(whole)
        np.testing.assert_array_equal(case.feeds["weight"], weight[:4].numpy()[np.arange(batch) % 4])
    again = Given(Patches(), inputs=spec.source.inputs, dims=spec.source.dims).spec()
    assert again.io == spec.io


@pytest.mark.slow
def test_such_a_module_is_exported_checked_and_bundled_without_its_examples(tmp_path: Path) -> None:
    artifact = attnport.export(Patches(), tmp_path / "out", args=patches())
    artifact.fuse("ort_cpu")
    assert artifact.check(["ort_cpu"]).verdict == "PASS"
    artifact.bundle(tmp_path / "app", lang="python")
    for file in tmp_path.joinpath("app").rglob("*.json"):
        assert "example" not in file.read_text()
    assert without_examples("x=float32[batch]:example=eJw-_=") == "x=float32[batch]"


def test_an_input_has_the_values_of_its_example_where_that_is_asked_for() -> None:
    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(50, 8)

        def forward(self, ids: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.bag(ids, begins)
            return found

    examples = torch.randint(0, 50, (11,)), torch.tensor([0, 4, 4, 9])
    spec = Given(Bags(), examples, inputs={"begins": ":example"}).spec()
    assert set(spec.io.examples) == {"begins"}
    spec = Given(Bags(), examples, inputs={"begins": "int64[bags]:example"}).spec()
    assert (set(spec.io.examples), spec.io.inputs[1].dims) == ({"begins"}, ("bags",))
    with pytest.raises(UsageError, match="got places"):
        Given(Bags(), examples, inputs={"places": ":example"}).spec()


def test_three_inputs_that_have_to_be_equally_long_share_a_dim() -> None:
    class Sum(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
            if not len(a) == len(b) == len(c):
                raise ValueError("other lengths")
            return a + b + c + d.sum()

    tensors = {name: torch.ones(3) for name in "abcd"}
    spec = Given(Sum(), tuple(tensors.values())).spec()
    dims = [tensor.dims for tensor in spec.io.inputs]
    assert dims[0] == dims[1] == dims[2] != dims[3]


@pytest.mark.slow
def test_a_model_of_transformers_takes_examples_from_a_file(tmp_path: Path) -> None:
    folder = hf_folders.save("bert", tmp_path / "bert")
    ids, mask = np.ones((2, 7), np.int64), np.ones((2, 7), np.int64)
    np.savez(tmp_path / "batch.npz", input_ids=ids, attention_mask=mask)
    command = ["export", f"hf:{folder}", "-o", str(tmp_path / "out"), "--examples", str(tmp_path / "batch.npz")]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    io = attnport.open(tmp_path / "out").manifest.io
    assert [str(each) for each in io.inputs] == ["input_ids=int64[batch,seq]", "attention_mask=int64[batch,seq]"]
    lacking = CliRunner().invoke(cli, [*command[:-1], str(tmp_path / "none.npz")])
    assert lacking.exit_code == 2
    assert "none.npz cannot be read" in lacking.output


class Nested(nn.Module):
    """PyTorch's own encoder as it is made by default: with a mask it packs the keys, and refuses a mask of none."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.encoder(x, src_key_padding_mask=mask)


@pytest.mark.parametrize("polarity", ["keep", "hide"])
def test_a_mask_of_either_meaning_hides_some_keys_where_a_module_is_tried(polarity: str) -> None:
    declared = ["x=float32[batch,seq,16]", f"mask=bool[batch,seq]:padding:{polarity}"]
    (output,) = Given(Nested().eval(), inputs=declared).spec().io.outputs
    assert output.dims == ("batch", "seq", 16)
