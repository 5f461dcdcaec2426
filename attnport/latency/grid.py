"""Parses sizes to measure, given as a grid over dims: `batch=1/8,seq=64/128` is four shapes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from attnport.dims import Dim, parse_sizes
from attnport.errors import ProfileError, UsageError

MOST = 64
"""The largest number of shapes in a grid; each is measured on every runtime."""

_PART = re.compile(r"([A-Za-z_]\w*)\s*=\s*(\d{1,18}(?:\s*/\s*\d{1,18})*)")
_HINT = "Write a size for each dim, or several between slashes: batch=8,seq=128 or batch=1/8,seq=64/128."


def parse_grid(text: str, dims: Sequence[Dim]) -> list[dict[str, int]]:
    """The sizes of a grid, the last dim varying fastest; a dim that is left out has its opt size.

    Raises:
        UsageError: the text is empty, a range or malformed, or there are too many shapes.
        ProfileError: a dim is unknown or repeated, or a size exceeds the model's limit.
    """
    if not text.strip():
        raise UsageError("--shape is empty.", hint=_HINT)
    if ":" in text or "|" in text:
        raise UsageError(
            f"--shape {text}: got {':' if ':' in text else '|'}, expected sizes.",
            hint=_HINT,
        )
    known = {dim.name: dim for dim in dims}
    parts: list[list[str]] = []
    for part in (piece.strip() for piece in text.split(",")):
        match = _PART.fullmatch(part)
        if not match:
            raise UsageError(f"--shape {text}: cannot read {part!r}.", hint=_HINT)
        name, sizes = match[1], [int(size) for size in re.split(r"\s*/\s*", match[2])]
        for size in sizes:
            if name in known and not known[name].takes(size):
                raise ProfileError(
                    f"--shape {text}: got {name}={size}; the model takes {name} from {known[name].span}."
                )
        parts.append([f"{name}={size}" for size in sizes])
    count = 1
    for part_sizes in parts:
        count *= len(part_sizes)
    if count > MOST:
        raise UsageError(f"--shape {text}: got {count} shapes; at most {MOST} are measured in one run.")
    shapes = [parse_sizes(",".join(shape), dims) for shape in itertools.product(*parts)]
    return [sizes for place, sizes in enumerate(shapes) if sizes not in shapes[:place]]
