"""The C++ reader gives expressions of sizes the values that Python's gives, and refuses the same texts."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

from cpp_builds import Build
from test_cpp_manifest import answers, in_cpp

from attnport_bundle.format.contract import LARGEST, dims_in, evaluate

BUNDLING = Path(__file__).resolve().parents[1] / "bundling"
if str(BUNDLING) not in sys.path:
    sys.path.append(str(BUNDLING))

from test_expressions import NO_EXPRESSION, NO_VALUE, VALUES  # noqa: E402 - see above

SIZES = {"a": 2, "b": 7, "huge": LARGEST}
PIECES = (*"ab", "huge", "c", "0", "1", "8", str(LARGEST), str(LARGEST + 1), "(", ")", "min(", "max(", ",")
OPERATIONS = ("+", "-", "*", "//", "%", " ", "/", "**")


def made_up(count: int) -> Iterator[str]:
    """Expressions and what is nearly one."""
    chance = random.Random(0)

    def expression(depth: int) -> str:
        kind = chance.random()
        if depth == 0 or kind < 0.2:
            return chance.choice(PIECES[:7] if chance.random() < 0.95 else PIECES)
        if kind < 0.3:
            return f"{chance.choice(['min', 'max'])}({expression(depth - 1)},{expression(depth - 1)})"
        between = chance.choice(OPERATIONS[:5] if chance.random() < 0.98 else OPERATIONS)
        text = f"{expression(depth - 1)}{between}{expression(depth - 1)}"
        return f"({text})" if chance.random() < 0.5 else text

    for _ in range(count):
        yield expression(chance.randrange(5))


def in_python(text: str) -> tuple[int, str]:
    try:
        known = dims_in(text) <= set(SIZES)
    except ValueError:
        return 1, "none"
    try:
        return 0 if known else 1, str(evaluate(text, SIZES))
    except ValueError:
        return 0 if known else 1, "none"


def test_expressions_have_the_same_values_in_both_readers(cpp_build: Build) -> None:
    renamed = [text.replace("seq", "a").replace("past", "b") for text in (*VALUES, *NO_VALUE, *NO_EXPRESSION)]
    texts = [*renamed, *VALUES, *made_up(3000)]
    texts = [text for text in texts if text]
    got = [answers(words)[0] for words in in_cpp(cpp_build, "size", [text.encode() for text in texts])]
    wanted = [in_python(text) for text in texts]
    assert list(zip(texts, got, strict=True)) == list(zip(texts, wanted, strict=True))
    assert len({value for _, value in wanted}) > 30
    assert sum(code for code, _ in wanted) > 100
