"""Sizes as expressions of dims: `past+seq`, `2*seq-1`, `(height//8)*(width//8)`, `max(seq,4)`.

There are names, whole numbers, `+ - * // %`, `min(a,b)`, `max(a,b)` and parentheses. Values are integers from
-(2^53 - 1) to 2^53 - 1, also within the expression; `//` rounds down, and `//` and `%` divide by positive numbers only.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping

MAX_LETTERS = 400
MAX_DEPTH = 16
"""The deepest nesting of parentheses, those of `min` and `max` included."""
LARGEST = 2**53 - 1

_TOKEN = re.compile(r" *([A-Za-z_][A-Za-z0-9_]*|[0-9]+|//|[-+*%(),])")
_STRENGTHS = {"+": 1, "-": 1, "*": 2, "//": 2, "%": 2}
_CALLS = {"min": min, "max": max}
_OPERATIONS: dict[str, Callable[[int, int], int]] = dict(
    zip(_STRENGTHS, (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod), strict=True), **_CALLS
)
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
    tokens.reverse()
    read: list[Step] = []
    _read(tokens, read, 0, 1)
    if tokens:
        raise ValueError(f"{tokens[-1]!r} is not expected there")
    if not any(isinstance(step, str) for step in read):
        raise ValueError("it names no dim")
    return tuple(read)


def _read(tokens: list[str], steps: list[Step], depth: int, strength: int) -> None:
    """Moves an expression, whose operators have at least this strength, from the end of `tokens` to `steps`."""
    _read_value(tokens, steps, depth)
    while tokens and _STRENGTHS.get(tokens[-1], 0) >= strength:
        operation = tokens.pop()
        _read(tokens, steps, depth, _STRENGTHS[operation] + 1)
        steps.append((operation,))


def _read_value(tokens: list[str], steps: list[Step], depth: int) -> None:
    token = tokens.pop() if tokens else ""
    is_call = token in _CALLS and tokens[-1:] == ["("]
    if is_call:
        tokens.pop()
    if is_call or token == "(":
        if depth == MAX_DEPTH:
            raise ValueError(f"it is nested deeper than {MAX_DEPTH}")
        for end in ",)" if is_call else ")":
            _read(tokens, steps, depth + 1, 1)
            if (tokens.pop() if tokens else "") != end:
                raise ValueError(f"a {end!r} is missing")
        if is_call:
            steps.append((token,))
    elif token.isdigit():
        if len(token) > 16 or int(token) > LARGEST:
            raise ValueError(f"{token[:20]} is beyond 2^53 - 1")
        steps.append(int(token))
    elif token and (token[0] == "_" or token[0].isalpha()):
        steps.append(token)
    else:
        raise ValueError(f"{token!r} stands where a name or a number is expected" if token else "it ends too early")
