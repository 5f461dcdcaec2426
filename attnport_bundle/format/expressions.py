"""Sizes as expressions of dims: `past+seq`, `2*seq-1`, `(height//8)*(width//8)`, `max(seq,4)`.

There are names, whole numbers, `+ - * // %`, `min(a,b)`, `max(a,b)` and parentheses. Values are integers from
-(2^53 - 1) to 2^53 - 1, also within the expression; `//` rounds down, and `//` and `%` divide by positive numbers only.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Collection, Mapping

MAX_LETTERS = 400
MAX_DEPTH = 16
"""The deepest nesting of parentheses, those of `min` and `max` included."""
LARGEST = 2**53 - 1

_TOKEN = re.compile(r" *([A-Za-z_][A-Za-z0-9_]*|[0-9]+|//|[-+*%(),])")
_SUMS = {"+": operator.add, "-": operator.sub}
_PRODUCTS = {"*": operator.mul, "//": operator.floordiv, "%": operator.mod}
_CALLS = {"min": min, "max": max}
_OPERATIONS: dict[str, Callable[[int, int], int]] = {**_SUMS, **_PRODUCTS, **_CALLS}
Step = int | str | tuple[str]
"""A number, a name, or an operation on the last two values."""


def names(text: str) -> frozenset[str]:
    """The dims in an expression. Raises ValueError for text that is none."""
    return frozenset(step for step in steps(text) if isinstance(step, str))


def evaluate(text: str, sizes: Mapping[str, int]) -> int:
    """The value of an expression, 0 or more.

    Raises:
        ValueError: the text is no expression, a dim has no size, or a value is too large, below zero at the end, or
            divided by zero or less.
    """
    values: list[int] = []
    for step in steps(text):
        if isinstance(step, tuple):
            second, first = values.pop(), values.pop()
            if step[0] in ("//", "%") and second < 1:
                raise ValueError(f"it divides by {second}")
            values.append(_OPERATIONS[step[0]](first, second))
        elif isinstance(step, str) and step not in sizes:
            raise ValueError(f"{step} has no size")
        else:
            values.append(sizes[step] if isinstance(step, str) else step)
        if abs(values[-1]) > LARGEST:
            raise ValueError("a value is beyond 2^53 - 1")
    if values[0] < 0:
        raise ValueError(f"the size is {values[0]}")
    return values[0]


@functools.lru_cache(maxsize=256)
def steps(text: str) -> tuple[Step, ...]:
    """The steps of an expression in the order in which they are computed, operands first.

    Raises:
        ValueError: the text is no expression.
    """
    if len(text) > MAX_LETTERS:
        raise ValueError(f"it has more than {MAX_LETTERS} letters")
    tokens, at = [], 0
    text = text.rstrip(" ")
    while at < len(text):
        found = _TOKEN.match(text, at)
        if not found:
            raise ValueError(f"{text[at:].strip()[:20]!r} is not part of an expression")
        tokens.append(found[1])
        at = found.end()
    reader = _Reader(tokens)
    reader.sum(0)
    if reader.tokens:
        raise ValueError(f"{reader.tokens[-1]!r} is not expected there")
    if not any(isinstance(step, str) for step in reader.steps):
        raise ValueError("it names no dim")
    return tuple(reader.steps)


class _Reader:
    """Reads tokens by recursive descent, one method for each strength of operators."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens[::-1]
        self.steps: list[Step] = []

    def sum(self, depth: int) -> None:
        self._row(_SUMS, self.product, depth)

    def product(self, depth: int) -> None:
        self._row(_PRODUCTS, self.value, depth)

    def _row(self, operations: Collection[str], part: Callable[[int], None], depth: int) -> None:
        part(depth)
        while self.tokens and self.tokens[-1] in operations:
            operation = self.tokens.pop()
            part(depth)
            self.steps.append((operation,))

    def value(self, depth: int) -> None:
        token = self.tokens.pop() if self.tokens else ""
        if token == "(":
            self._inside(depth, 1)
        elif token in _CALLS and self.tokens and self.tokens[-1] == "(":
            self.tokens.pop()
            self._inside(depth, 2)
            self.steps.append((token,))
        elif token.isdigit():
            if len(token) > 16 or int(token) > LARGEST:
                raise ValueError(f"{token[:20]} is beyond 2^53 - 1")
            self.steps.append(int(token))
        elif token and (token[0] == "_" or token[0].isalpha()):
            self.steps.append(token)
        else:
            raise ValueError(f"{token!r} stands where a name or a number is expected" if token else "it ends too early")

    def _inside(self, depth: int, count: int) -> None:
        """`count` expressions, and the closing parenthesis."""
        if depth == MAX_DEPTH:
            raise ValueError(f"it is nested deeper than {MAX_DEPTH}")
        for last in (*(",",) * (count - 1), ")"):
            self.sum(depth + 1)
            if (self.tokens.pop() if self.tokens else "") != last:
                raise ValueError(f"a {last!r} is missing")
