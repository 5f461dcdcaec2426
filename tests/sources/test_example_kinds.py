"""Examples of all kinds are taken as they are: what becomes an input, what a constant, and what is refused."""

from __future__ import annotations

import collections
import dataclasses
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loaded import load
from torch import nn

import attnport
from attnport.errors import SpecError, UsageError
from attnport.folder.given import Given
from attnport.sources.load import factory_of
from attnport.sources.memory import given_again
from attnport.sources.parsing import parse_input, parse_leaf, text_of
from attnport.sources.structure import Constant, flat_name, of_examples


class Adds(nn.Module):
    """Adds up what it is given, whatever it is in."""

    def forward(self, x: torch.Tensor, held: Any = None, scale: Any = 1, kind: Any = torch.float32) -> Any:
        parts = held.values() if hasattr(held, "values") else vars(held).values() if held is not None else ()
        return (x * scale + sum(part for part in parts if isinstance(part, torch.Tensor))).to(kind)


@dataclasses.dataclass
class WithLayers:
    """What looks like a cache of transformers, with a list of layers that is empty."""

    hidden: torch.Tensor
    layers: list[Any] = dataclasses.field(default_factory=list)


class Deep:
    """Tensors inside of an object inside of an object."""

    __slots__ = ("inner",)

    def __init__(self) -> None:
        self.inner = {"state": [torch.ones(2)]}


X = torch.ones(2, 3)
TABLE = collections.UserDict({"a": X})


@pytest.mark.parametrize(
    ("args", "inputs", "constants"),
    [
        ((X, WithLayers(X)), ["x", "held_hidden"], []),
        ((X, TABLE), ["x", "held_a"], []),
        ((X, collections.OrderedDict(a=X)), ["x", "held_a"], []),
        ((X, {"k=1": X, "a:b[0]": X, "": X}), ["x", "held_k_1", "held_a_b_0_", "held_"], []),
        ((X, {"k=1": 2}), ["x"], ['held."k=1"=2']),
        ((X, None, np.float32(2)), ["x"], ["held=null", "scale=2.0"]),
        ((X, None, np.int64(2), torch.float64), ["x"], ["held=null", "scale=2", 'kind="<python> torch.float64"']),
        ((X.numpy(), None, "a[b]"), ["x"], ["held=null", 'scale="a[b]"']),
    ],
)
def test_examples_are_taken_as_they_are(args: tuple[Any, ...], inputs: list[str], constants: list[str]) -> None:
    arguments, found = of_examples(Adds(), args, {})
    assert list(arguments.names) == inputs
    assert list(found) == inputs
    assert all(tensor.equal(X) for tensor in found.values())
    assert [text_of(leaf) for leaf in arguments.leaves if isinstance(leaf.held, Constant)] == constants
    assert [parse_leaf(text_of(leaf)).path for leaf in arguments.leaves] == [leaf.path for leaf in arguments.leaves]


def test_a_structure_is_made_anew_of_the_tensors_of_a_call() -> None:
    arguments, _ = of_examples(Adds(), (X, TABLE), {})
    _, named = arguments.bound({"x": X, "held_a": X + 1})
    assert named["held"]["a"].equal(X + 1)
    assert TABLE["a"].equal(X)


@pytest.mark.parametrize("held", [Deep(), {"deep": Deep()}, types.SimpleNamespace(a=X), {0: {X}}])
def test_an_object_that_holds_tensors_where_nothing_sees_them_is_refused(held: Any) -> None:
    with pytest.raises(SpecError, match="which holds tensors"):
        of_examples(Adds(), (X, held), {})


def test_inputs_of_one_name_are_refused_and_so_is_self() -> None:
    class Collides(nn.Module):
        def forward(this, d: Any, d_a: torch.Tensor, self: Any = None) -> Any:  # noqa: N805
            return d["a"] + d_a

    with pytest.raises(SpecError, match=r"d\.a and d_a would both be the input d_a"):
        of_examples(Collides(), ({"a": X}, X), {})
    with pytest.raises(SpecError, match="self cannot be the name of an input"):
        of_examples(Collides(), ({"b": X}, X, X), {})
    with pytest.raises(UsageError, match=r"d\.a and d_a would both be the input d_a"):
        Given(Collides(), inputs=["d.a=float32[batch,3]", "d_a=float32[batch,3]"]).spec()


class Picture(nn.Module):
    """Pixels, which are as bright as they are bright in eight bits."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.dtype == torch.uint8
        return (x + 128).float().mean((1, 2))  # in eight bits, 200 + 128 is 72


@pytest.mark.parametrize("declared", [False, True])
def test_numbers_of_eight_bits_are_inputs_of_int32(declared: bool) -> None:
    x = torch.full((2, 8, 9, 3), 200, dtype=torch.uint8)
    given = Given(Picture(), inputs={"x": "uint8[batch,8,9,3]"}) if declared else Given(Picture(), (x,))
    spec = given.spec()
    assert (spec.io.inputs[0].dtype, spec.io.inputs[0].high) == ("int32", 256)
    assert any("input x is uint8 in the module" in note for note in spec.notes)
    assert torch.equal(spec.make()(x.int()), Picture()(x))


SOURCE = """import torch
class Adds(torch.nn.Module):
    def forward(self, x, held=None, scale=1, kind=torch.float32, past=None):
        x = x if past is None else torch.cat([past, x], 1)
        return (x * scale + sum(part.sum() for part in (held or {}).values())).to(kind)
class Calls(torch.nn.Module):
    def forward(self, x, change):
        return change(x)
"""
TYPED = {"scale": np.float32(2), "kind": torch.float64}
KEYS = {"held": {"k=1": X, "a:b[0]": X + 1, "c d": X + 2}}


@pytest.mark.parametrize("kwargs", [TYPED, KEYS, {"past": torch.ones(2, 0)}, {**TYPED, **KEYS}])
@pytest.mark.parametrize("in_memory", [True, False])
def test_values_that_are_no_words_are_loaded_again(kwargs: dict[str, Any], in_memory: bool, tmp_path: Path) -> None:
    (tmp_path / "adds.py").write_text(SOURCE)
    text = f"{tmp_path / 'adds.py'}:Adds"
    module = factory_of(text)()
    shapes = {"x": None, "past": {0: torch.export.Dim.AUTO, 1: 0}} if "past" in kwargs else None
    spec = Given(module if in_memory else text, (X,), kwargs, dynamic_shapes=shapes).spec()
    again = (
        given_again(module, spec.source) if in_memory else load(text, inputs=spec.source.inputs, dims=spec.source.dims)
    )
    assert again.io == spec.io
    feeds = {each.name: torch.rand(each.shape({dim.name: 2 for dim in spec.io.dims})) for each in spec.io.inputs}
    nested = {name: {key: feeds[f"{name}_{flat_name((key,))}"] for key in value} if name == "held" else value
              for name, value in kwargs.items()}  # fmt: skip
    expected = module(feeds["x"], **nested)
    for made in (spec, again):
        got = made.make()(**feeds)
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected)


@pytest.mark.slow
def test_a_spec_with_such_values_is_exported_and_checked(tmp_path: Path) -> None:
    (tmp_path / "adds.py").write_text(SOURCE)
    kwargs = {**KEYS, "scale": np.float32(2), "kind": torch.float32, "past": torch.ones(2, 0)}
    shapes = {"x": None, "past": {0: torch.export.Dim.AUTO, 1: 0}}
    text = f"{tmp_path / 'adds.py'}:Adds"
    artifact = attnport.export(text, tmp_path / "out", args=(X,), kwargs=kwargs, dynamic_shapes=shapes)
    assert artifact.check("ort_cpu").verdict == "PASS"
    run = [sys.executable, "-m", "attnport.cli", "check", str(tmp_path / "out"), "--runtime", "torch_eager"]
    assert subprocess.run(run, capture_output=True, check=False).returncode == 0


def test_an_object_of_one_process_is_refused_of_a_spec_and_taken_of_a_module(tmp_path: Path) -> None:
    (tmp_path / "calls.py").write_text(SOURCE)
    text = f"{tmp_path / 'calls.py'}:Calls"
    module = factory_of(text)()
    spec = Given(module, (X, torch.exp)).spec()
    assert torch.equal(spec.make()(X), X.exp())
    with pytest.raises(SpecError, match=r"a constant is <built-in method exp.*which cannot be declared"):
        given_again(module, spec.source)
    with pytest.raises(SpecError, match="a constant is <built-in method exp"):
        Given(text, (X, torch.exp)).spec()


@pytest.mark.parametrize(
    "arguments",
    [
        {"args": (X.to(torch.complex64),)},
        {"args": (X,), "inputs": {"x": "float33[batch,3]"}},
        {"args": (X,), "inputs": {"x": "float32[batch,4]"}},
        {"args": (X,), "inputs": {"x": ":paddin"}},
        {"args": (X,), "inputs": {"scale": "0.5"}},
        {"args": (X,), "outputs": "hidden"},
        {"args": (X,), "dims": {"seq": 3}},
        {"args": (X,), "dims": {"sqe": (1, 2, 3)}},
        {"args": (X, {0: X, "0": X})},
        {"inputs": {"y": "float32[batch,3]"}},
        {"inputs": {"x": "float32[batch,3]"}, "dims": {"sqe": (1, 2, 3)}},
    ],
)
def test_refusals_in_python_name_no_option_of_the_command_line(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        Given(Adds(), **arguments).spec()
    assert "--" not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize(
    ("name", "polarity"),
    [
        ("attention_mask", "keep"), ("encoder_attention_mask", "keep"), ("input_mask", "keep"),
        ("padding_mask", "hide"), ("key_padding_mask", "hide"), ("src_key_padding_mask", "hide"), ("mask", ""),
    ],
)  # fmt: skip
def test_a_mask_means_what_its_name_says_beside_examples_and_in_declarations(name: str, polarity: str) -> None:
    class Masked(nn.Module):
        def forward(self, **masks: torch.Tensor) -> torch.Tensor:
            return masks[name] * 1.0

    spec = Given(Masked(), kwargs={name: torch.ones(2, 3, dtype=torch.bool)}).spec()
    assert [mask.polarity for mask in spec.io.masks] == ([polarity] if polarity else [])
    declared = parse_input(f"{name}=bool[batch,seq]:padding").mask
    said = parse_input(f"{name}=bool[batch,seq]:padding:keep").mask
    assert (declared and declared.polarity, said and said.polarity) == (polarity or "keep", "keep")


def test_items_are_the_first_axis_of_a_mask_of_padding_and_not_of_what_stands_before_it() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 16)  # as torch makes it: [seq, batch, width]
    hidden = torch.arange(9)[None] >= torch.tensor([[9], [5]])
    spec = Given(layer, kwargs={"src": torch.randn(9, 2, 16), "src_key_padding_mask": hidden}).spec()
    assert {one.name: one.dims for one in spec.io.inputs} == {
        "src": ("seq", "batch", 16), "src_key_padding_mask": ("batch", "seq")
    }  # fmt: skip
