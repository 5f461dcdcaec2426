"""Which changes to a file are changes to what was exported from it."""

from __future__ import annotations

import pytest

from attnport.sources.relevant import relevant

FILE = '''
"""A file."""
import math
import torch
from torch import nn

SCALE = 2.0
ACTIVATIONS = {"square": "squared"}
registry = {}

def register(function):
    registry[function.__name__] = function
    return function

@register
def registered(x):
    return x + 1

def squared(x):
    return x * x

def helper(x):
    return scaled(x) * 3

def scaled(x):
    return x * SCALE

class Base(nn.Module):
    """A base."""
    def forward(self, x):
        return helper(x)

class Model(Base):
    size: int = 4

    def forward(self, x):
        """Computes."""
        return super().forward(x)  # a comment

class Other(nn.Module):
    def forward(self, x):
        return x

def unrelated(x):
    return x - 7

def make():
    return Model()

if __name__ == "__main__":
    unrelated(make())
'''


def same(old: str, new: str, names: tuple[str, ...] = ("Model", "make")) -> bool:
    assert old in FILE
    return relevant(FILE.encode(), names) == relevant(FILE.replace(old, new).encode(), names)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# a comment", "# another"),
        ('"""Computes."""', '"""Computes it."""\n'),
        ('"""A file."""', ""),
        ("return x - 7", "return x - 8"),
        ("class Other(nn.Module):\n", "class Other(Model):\n    more = 1\n"),
        ("def unrelated(x):", "def one_more(x):\n    return x\n\ndef unrelated(x):"),
        ("    unrelated(make())", "    print(unrelated(make()))"),
        ("x * SCALE", "(x  *  SCALE)"),
    ],
)
def test_what_the_names_do_not_depend_on_may_change(old: str, new: str) -> None:
    assert same(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("size: int = 4", "size: int = 5"),
        ("return Model()", "return Model().half()"),
        ("helper(x)\n\nclass Model", "helper(x) + 1\n\nclass Model"),
        ("scaled(x) * 3", "scaled(x) * 4"),
        ("return x * SCALE", "return x / SCALE"),
        ("SCALE = 2.0", "SCALE = 3.0"),
        ("return x * x", "return x * x * x"),  # only a string names it
        ("return x + 1", "return x + 2"),  # only its decorator knows it
        ("import math", "import math\nimport cmath"),
        ("registry = {}", "registry = {}\ntorch.set_default_dtype(torch.float64)"),
    ],
)
def test_what_they_depend_on_may_not(old: str, new: str) -> None:
    assert not same(old, new)


@pytest.mark.parametrize("reach", ["globals()[name](x)", "eval(name)(x)", "sys.modules[__name__].unrelated(x)"])
def test_code_that_may_reach_everything_depends_on_everything(reach: str) -> None:
    text = FILE.replace("scaled(x) * 3", reach)
    changed = text.replace("return x - 7", "return x - 8")
    assert relevant(text.encode(), ["Model"]) != relevant(changed.encode(), ["Model"])
    assert relevant(text.encode(), ["Model"]) == relevant(text.replace("# a comment", "").encode(), ["Model"])


@pytest.mark.parametrize("data", [b"\x00binary", b"def (:", b"Model = 1\n"])
def test_what_is_no_such_file_is_taken_as_it_is(data: bytes) -> None:
    assert relevant(data, ["Made"]) == data
    assert relevant(b"from m import *\n", ["Made"]) == b"from m import *\n"
