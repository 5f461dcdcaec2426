"""Examples of all kinds are taken as they are: what becomes an input, what a constant, and what is refused."""

from __future__ import annotations

import collections
import dataclasses
import types
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from attnport.errors import SpecError, UsageError
from attnport.folder.given import Given
from attnport.sources.examples import constant_texts, refuse_unwritten
from attnport.sources.memory import kept_copy, memory_spec
from attnport.sources.parsing import parse_constant, parse_input
from attnport.sources.structure import of_examples


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
        ((X, {"k=1": 2}), ["x"], ["held_k_1=2"]),
        ((X, None, np.float32(2)), ["x"], ["held=null", "scale=2.0"]),
        ((X, None, np.int64(2), torch.float64), ["x"], ["held=null", "scale=2", 'kind="<python> torch.float64"']),
        ((X.numpy(), None, "a[b]"), ["x"], ["held=null", 'scale="a\\u005bb\\u005d"']),
    ],
)
def test_examples_are_taken_as_they_are(args: tuple[Any, ...], inputs: list[str], constants: list[str]) -> None:
    arguments, found = of_examples(Adds(), args, {})
    assert list(arguments.names) == inputs
    assert all(tensor.equal(X) for tensor in found.values())
    assert constant_texts(arguments.nodes) == constants
    for text in constants:
        assert parse_constant(text) is not None


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
    with pytest.raises(UsageError, match=r"d\.a and d_a are both the input d_a"):
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


def test_what_no_declaration_holds_is_refused_of_a_spec_and_of_a_module_given_again() -> None:
    spec = Given(Adds(), (X, None, 1, torch.float64)).spec()
    again = memory_spec(kept_copy(Adds()), spec.source.inputs, spec.source.dims)
    assert again.make()(X).dtype == torch.float64
    with pytest.raises(SpecError, match="is <function f>, which is known to the process"):
        memory_spec(kept_copy(Adds()), ["x=float32[batch,3]", 'scale="<python> <function f>"'])
    with pytest.raises(SpecError, match="the key 'k=1' of held cannot be declared"):
        refuse_unwritten("a.py:f", of_examples(Adds(), (X, {"k=1": X}), {})[0])
    with pytest.raises(SpecError, match="scale, a function, cannot be declared"):
        refuse_unwritten("a.py:f", of_examples(Adds(), (X, None, lambda: None), {})[0])


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
    _, declared = parse_input(f"{name}=bool[batch,seq]:padding")
    _, said = parse_input(f"{name}=bool[batch,seq]:padding:keep")
    assert (declared and declared.polarity, said and said.polarity) == (polarity or "keep", "keep")
