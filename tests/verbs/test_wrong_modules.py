"""Modules as people first write them: each is refused in its author's own words, with the line and a remedy."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import attnport
from attnport.errors import AttnportError, ExportError
from attnport.verbs.export import export

SOURCE = """
import math
import torch
from torch import nn
from torch.nn import functional as F

class Base(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.ids = nn.Linear(8, 8), nn.Embedding(100, 8)

class IfValues(Base):
    def forward(self, x, mask):
        h = self.linear(x)
        if mask.sum() > 9:  # HERE
            return h
        return h * mask[..., None]

class Ordered(Base):
    def forward(self, x, mask):
        return self.linear(x) * mask[..., None]

class Ignoring(Base):
    def forward(self, x, mask):
        h = self.linear(x)
        return F.scaled_dot_product_attention(h, h, h)

class Inner(Base):
    def __init__(self):
        super().__init__()
        self.inner = IfValues()
    def forward(self, x, mask):
        return self.inner(self.linear(x), mask)

class While(Base):
    def forward(self, x):
        while x.abs().sum() > 10:  # HERE
            x = x / 2
        return self.linear(x)

class Power(Base):
    def forward(self, x):
        size = 2 ** math.ceil(math.log2(x.shape[1]))  # HERE
        x = F.pad(self.linear(x), (0, 0, 0, size - x.shape[1]))
        while size > 1:
            x, size = x[:, ::2] + x[:, 1::2], size // 2
        return x

class Assert(Base):
    def forward(self, x, mask):
        assert int(mask.max()) <= 1  # HERE
        return self.linear(x) * mask[..., None]

class Item(Base):
    def forward(self, x, lengths):
        longest = lengths.max().item()
        return self.linear(x if longest > 3 else x[:, :longest])  # HERE

class Int(Base):
    def forward(self, x, lengths):
        for _ in range(int(lengths.max())):  # HERE
            x = self.linear(x)
        return x

class Max(Base):
    def forward(self, x, lengths):
        kept = torch.arange(max(lengths))[None] < lengths[:, None]  # HERE
        return self.linear(x[:, : kept.shape[1]]) * kept[..., None]

class Rows(Base):
    def forward(self, x):
        total = 0
        for row in x:
            total += float(row.sum() > 0)  # HERE
        return self.linear(x) * total

class ShapeOfIf(Base):
    def forward(self, x):
        if x.shape[1] > 20:  # HERE
            x = x[:, :20]
        return self.linear(x)

class NoOperator(Base):
    def forward(self, x):
        return torch.linalg.eigh(x.mT @ x)[0]  # HERE

class Packed(Base):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 8, batch_first=True)
    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]  # HERE

class Shape(Base):
    def forward(self, x):
        return self.linear(x) @ torch.ones(9, 3)  # HERE

class Dtype(Base):
    def forward(self, ids):
        return self.linear(ids[..., None].expand(-1, -1, 8))  # HERE

class Name(Base):
    def forward(self, x):
        return self.projection(x)  # HERE

class Literal(Base):
    def forward(self, x):
        return self.linear(x).view(3, 7, 2, 4)  # HERE

class Masked(Base):
    def forward(self, x, mask):
        return self.linear(x * mask[..., None])  # HERE

class Padded(Base):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    def forward(self, ids, src_key_padding_mask):
        return self.layer(self.ids(ids), src_key_padding_mask=src_key_padding_mask)

class OfScores(Base):
    def forward(self, input_ids, mask):
        h = self.ids(input_ids)[:, None]
        return F.scaled_dot_product_attention(h, h, h, attn_mask=mask)

class Scored(Base):
    def forward(self, input_ids, mask):
        h = self.ids(input_ids)
        scores = h @ h.mT + (1 - mask[:, None, :].float()) * -1e9
        return (scores.softmax(-1) @ h).view(h.shape)

class Meeting(Base):
    def forward(self, x, mask):
        return self.linear(x) * mask[..., None]

class Optional(Base):
    def forward(self, x, attention_mask=None):
        return x if attention_mask is None else x * attention_mask[..., None]

class Total(Base):
    def forward(self, x, past, mask):
        return self.linear(torch.cat([past, x], 1)) * mask[..., None]  # HERE

class Attends(Base):
    def forward(self, x, keys, values):
        return F.scaled_dot_product_attention(x, keys, values)  # HERE
"""
INPUTS = {
    "x": "float32[batch,seq,8]",
    "mask": "int64[batch,seq]:padding",
    "lengths": "int64[batch]:high=7",
    "ids": "int64[batch,seq]:high=100",
}
EXAMPLES = {
    "x": torch.randn(3, 7, 8),
    "mask": torch.ones(3, 7, dtype=torch.int64),
    "lengths": torch.tensor([7, 3, 5]),
    "ids": torch.arange(21).view(3, 7),
}
VALUES = "needs the values of a tensor"
RAISED = "its forward raised"
CASES = [
    ("IfValues", VALUES, "torch.where"),
    ("Inner", VALUES, "torch.where"),
    ("While", VALUES, "torch.where"),
    ("Power", "decides by a float of a size", "Where one size is enough"),
    ("Item", VALUES, "torch.where"),
    ("Int", VALUES, "torch.arange"),
    ("Max", "", "torch.amax"),
    ("Rows", VALUES, "keep it a tensor"),
    ("NoOperator", "ONNX has no operator for it", "operators that ONNX has"),
    ("Packed", VALUES, "padded batch"),
    ("Shape", RAISED, "correct that line"),
    ("Dtype", RAISED, "correct that line"),
    ("Name", "no attribute 'projection'", "correct that line"),
]
QUICK = {
    ("Power", "examples"),
    ("Inner", "declared"),
    ("Int", "examples"),
    ("NoOperator", "declared"),
}
ONE_WAY = [("ShapeOfIf", "seq > 20", "leave those sizes out"), ("Literal", RAISED, "Look for a literal size")]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "wrong.py"
    path.write_text(SOURCE)
    return path


def loaded(source: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("wrong", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def line_of(name: str) -> str:
    """The marked line of a class, as a message names it."""
    lines = SOURCE.splitlines()
    begins = lines.index(f"class {'IfValues' if name == 'Inner' else name}(Base):")
    at = next(number for number in range(begins, len(lines)) if "# HERE" in lines[number])
    return f"wrong.py, line {at + 1}: {lines[at].strip()}"


def refusal(source: Path, name: str, way: str) -> AttnportError:
    kind = getattr(loaded(source), name)
    names = list(inspect.signature(kind.forward).parameters)[1:]
    given: dict[str, Any] = {"inputs": [f"{each}={INPUTS[each]}" for each in names]}
    model = f"{source}:{name}"
    if way == "examples":
        given, model = {"kwargs": {each: EXAMPLES[each] for each in names}}, kind()
    with pytest.raises(AttnportError) as caught:
        export(model, source.parent / "out", **given)
    return caught.value


@pytest.mark.parametrize(
    ("name", "told", "remedy", "way"),
    [
        pytest.param(*case, way, marks=[] if (case[0], way) in QUICK else pytest.mark.slow)
        for case in CASES
        for way in ("declared", "examples")
    ]
    + [pytest.param(*case, "declared", marks=pytest.mark.slow) for case in ONE_WAY]
    # In a module that can be imported, `int` keeps the size symbolic, and torch assumes that the assertion holds.
    + [("Assert", VALUES, "torch.compiler.is_exporting", "examples")],
)
def test_a_wrong_module_is_told_with_its_line_and_a_remedy(
    name: str, told: str, remedy: str, way: str, source: Path
) -> None:
    err = refusal(source, name, way)
    assert line_of(name) in err.message
    assert told in err.message
    assert remedy in err.hint
    assert err.exit_code == 2
    for jargon in ("GuardOnDataDependent", "Eq(u0", "OpOverload", "FakeTensor"):
        assert jargon not in err.message


@pytest.mark.parametrize(
    ("name", "inputs", "told", "written"),
    [
        (
            "Masked",
            {"x": "float32[batch,seq,8]", "mask": "int64[batch,sequence]:padding"},
            "dims 'seq' of input 'x' and 'sequence' of input 'mask' must be equal",
            "mask=int64[batch,seq]:padding",
        ),
        (
            "Masked",
            {"x": "float32[batch,seq,8]", "mask": "int64[b,seq]:padding"},
            "dims 'batch' of input 'x' and 'b' of input 'mask' must be equal",
            "mask=int64[batch,seq]:padding",
        ),
        (
            "Total",
            {"past": "float32[batch,past,8]", "x": "float32[batch,seq,8]", "mask": "int64[batch,total]:padding"},
            "dim 'total' of input 'mask' must be past+seq",
            "mask=int64[batch,past+seq]:padding",
        ),
        (
            "Attends",  # the fused kernel of attention notices nothing
            {"x": "float32[batch,seq,8]", "keys": "float32[batch,k,8]", "values": "float32[batch,v,8]"},
            "dims 'k' of input 'keys' and 'v' of input 'values' must be equal",
            "values=float32[batch,k,8]",
        ),
        (
            "Masked",
            {"x": "float32[batch,16,8]", "mask": "int64[batch,seq]:padding"},
            "input 'x' declares 16 where 'mask' says 'seq'; the module runs only where they are equal",
            "Give both one name: inputs=['x=float32[batch,seq,8]']; or take that size alone: dims=['seq=16:16:16']",
        ),
        (
            "Masked",
            {"x": "float32[batch,seq,8]", "mask": "int64[batch,128]:padding"},
            "input 'mask' declares 128 where 'x' says 'seq'",
            "mask=int64[batch,seq]:padding",
        ),
        (
            "Masked",
            {"x": "float32[5,16,8]", "mask": "int64[batch,seq]:padding"},
            "input 'x' declares 5 where 'mask' says 'batch', and input 'x' declares 16 where 'mask' says 'seq'",
            "x=float32[batch,seq,8]",
        ),
        (
            "Attends",
            {"x": "float32[batch,seq,8]", "keys": "float32[batch,24,8]", "values": "float32[batch,v,8]"},
            "input 'keys' declares 24 where 'values' says 'v'",
            "keys=float32[batch,v,8]",
        ),
    ],
)
def test_a_dim_under_two_names_or_as_a_number_is_named_with_its_inputs(
    name: str, inputs: dict[str, str], told: str, written: str, source: Path
) -> None:
    with pytest.raises(AttnportError) as caught:
        export(f"{source}:{name}", source.parent / "out", inputs=inputs)
    assert told in caught.value.message
    assert written in caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("inputs", "told", "hint"),
    [
        ({"x": INPUTS["x"], "maks": INPUTS["mask"]}, "input maks: the module takes no input of this name", "'mask'"),
        (
            {"x": "float32[n,t,8]"},
            "no input is declared for 'mask', which the module needs",
            "Declare it, for example so: inputs=['mask=int64[n,t]:padding']",
        ),
        ({"mask": INPUTS["mask"]}, "no input is declared for 'x'", "inputs=['x=float32[batch,seq,256]']"),
    ],
)
def test_an_input_of_another_name_and_a_missing_one_are_named(
    inputs: dict[str, str], told: str, hint: str, source: Path
) -> None:
    with pytest.raises(AttnportError) as caught:
        export(f"{source}:Masked", source.parent / "out", inputs=inputs)
    assert told in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("name", "mask", "told", "written"),
    [
        (
            "Scored",
            "int64[batch,1,1,seq]:padding",
            "input mask=int64[batch,1,1,seq] of 4 dims; it runs with mask=int64[batch,seq], of 2",
            "mask=int64[batch,seq]:padding",
        ),
        (
            "OfScores",  # which runs where the batch is the length: the mask is then one of pairs
            "bool[batch,seq]:padding:hide",
            "input mask=bool[batch,seq] of 2 dims; it runs with mask=bool[batch,1,1,seq], of 4",
            "mask=bool[batch,1,1,seq]:padding:hide",
        ),
        (
            "Padded",
            "int64[batch,seq]:padding",
            "input src_key_padding_mask=int64[batch,seq]; it runs with src_key_padding_mask=bool[batch,seq].",
            "src_key_padding_mask=bool[batch,seq]:padding",
        ),
    ],
)
def test_a_mask_of_other_dims_or_another_type_is_told_as_the_module_takes_it(
    name: str, mask: str, told: str, written: str, source: Path
) -> None:
    ids, called = {"Padded": ("ids", "src_key_padding_mask")}.get(name, ("input_ids", "mask"))
    inputs = {ids: "int64[batch,seq]:high=100", called: mask}
    with pytest.raises(AttnportError) as caught:
        export(f"{source}:{name}", source.parent / "out", inputs=inputs)
    assert f"the module does not run with {told}" in caught.value.message
    assert caught.value.hint == f"Declare it so: inputs={[written]}"


@pytest.mark.parametrize(
    ("name", "likely"),
    [
        ("Padded", ["ids=int64[batch,seq]:high=100", "src_key_padding_mask=bool[batch,seq]:padding"]),
        ("OfScores", ["input_ids=int64[batch,seq]:high=100", "mask=bool[batch,1,1,seq]:padding"]),
        ("Optional", ["x=float32[batch,seq,256]", "attention_mask=int64[batch,seq]:padding"]),
    ],
)
def test_where_nothing_is_declared_the_hint_has_what_the_forward_takes(
    name: str, likely: list[str], source: Path
) -> None:
    with pytest.raises(AttnportError, match="inputs are not known") as caught:
        export(f"{source}:{name}", source.parent / "out")
    assert caught.value.hint == f"Declare them: inputs={likely}"


def test_a_mask_that_makes_items_meet_other_items_is_told_at_export(source: Path, tmp_path: Path) -> None:
    said = list[str]()
    inputs = ("x=float32[batch,seq,8]", "mask=int64[batch,1,seq]:padding")
    export(f"{source}:Meeting", tmp_path / "out", inputs=inputs, tell=said.append)
    assert any("has batch twice" in note and "fewer dims than mask=int64[batch,1,seq]?" in note for note in said)


def test_two_dims_in_another_order_are_told_with_their_inputs(source: Path, tmp_path: Path) -> None:
    with pytest.raises(AttnportError) as caught:
        export(f"{source}:Ordered", tmp_path / "out", inputs=("x=float32[seq,batch,8]", "mask=int64[batch,seq]"))
    assert "in another order: x=float32[seq,batch,8] and mask=int64[batch,seq]" in caught.value.hint


@pytest.mark.parametrize(("name", "told"), [("Ignoring", True), ("Ordered", False)])
def test_a_mask_on_which_nothing_depends_is_told_at_export(name: str, told: bool, source: Path, tmp_path: Path) -> None:
    said = list[str]()
    inputs = ("x=float32[batch,seq,8]", "mask=int64[batch,seq]:padding")
    export(f"{source}:{name}", tmp_path / "out", inputs=inputs, tell=said.append)
    assert any("no output depends on the padding mask 'mask'" in note for note in said) == told


def test_ids_beyond_a_table_are_told_with_its_rows(tmp_path: Path) -> None:
    table = torch.nn.Embedding(20, 8)
    with pytest.raises(ExportError, match="of a table of 20 was read") as caught:
        attnport.export(table, tmp_path / "out", inputs=["input=int64[batch,seq]:high=5000"])
    assert len(caught.value.message) < 150
    assert "input:high=5000" in caught.value.hint


def test_a_mask_with_a_limit_of_values_leaves_the_modules_own_error(tmp_path: Path) -> None:
    class Odd(torch.nn.Module):
        def forward(self, ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("odd ids")

    inputs = ["ids=int64[batch,seq]:high=9", "attention_mask=int64[batch,seq]:high=2"]
    with pytest.raises(AttnportError, match="odd ids"):  # bool, which is tried too, has no such limit
        attnport.export(Odd(), tmp_path / "out", inputs=inputs)
