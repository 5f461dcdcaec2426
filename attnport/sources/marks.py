"""The marks of `--input` that describe a mask input: `:padding`, `:documents`, `:window=128:hide`, ..."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attnport.dims import TensorSpec
from attnport.errors import UsageError
from attnport.masks import ALIGNMENTS, CARRIES, KINDS, OF_INTEGERS, POLARITIES, RANKS, MaskSpec

_INTEGERS = ("int32", "int64")
_NAMED = tuple(kind for kind in KINDS if kind not in ("none", "window"))
_SHAPES = {1: "[batch]", 2: "[batch,seq]"}
_ALONE = {
    kind: f"{content} {_SHAPES[rank]}"
    for content, rank in RANKS.items()
    for kind in CARRIES[content]
    if kind != "padding"
}
"""For each kind of pairs of a query and a key, the content that says it without an element for each pair."""
_PATTERNS = {
    "kind": "|".join(_NAMED),
    "window": "window=([0-9]{1,9})",
    "polarity": "|".join(POLARITIES),
    "alignment": "|".join(ALIGNMENTS),
    "content": "|".join(CARRIES),
    "keys": r"keys=([A-Za-z_]\w*)",
}
_BY_NAME = (
    (re.compile(r"(^|_)(key_)?padding_mask$"), "hide"),
    (re.compile(r"(^|_)(attention|input)_mask$"), "keep"),
)
"""What masks of padding are called, and which of their elements are real tokens: as torch and transformers have it."""
MARKS = (*_NAMED, "window=N", *POLARITIES, *ALIGNMENTS, *CARRIES, "keys=DIM")
"""The marks of a mask in `--input`."""


def mask_of(spec: TensorSpec, marks: Sequence[str]) -> MaskSpec | None:
    """The mask that an input's marks declare; None without marks.

    The polarity follows from the name of the input if no mark says it, see `polarity_of`. The content follows from its
    kind and shape: `documents` of `[B,T]` are ids, `prefix` of `[B]` are lengths, `global` of `[B,T]` are marks, and
    `padding` of `[batch]` are lengths.

    Raises:
        UsageError: a mark is unknown, or the marks do not fit each other or the input; the message shows the part.
    """
    if not marks:
        return None
    by_category = _sorted(spec, marks)
    kinds, polarities = list(by_category["kind"]), by_category["polarity"]
    if by_category["window"]:
        kinds.append("window")
    if polarities == ["additive"] and not kinds:
        kinds = ["bias"]  # its numbers are not declared to have only two values
    if not kinds:
        raise UsageError(
            f"--input {spec}: got {', '.join(marks)} without the kind of mask.",
            hint=f"Add one, for example {spec}:padding:{marks[0]}.",
        )
    try:
        content = by_category["content"][0] if by_category["content"] else _content(spec, kinds)
        named = polarity_of(spec.name) if kinds == ["padding"] and content == "mask" else ""
        mask = MaskSpec(
            tuple(kinds),
            spec.name,
            next(iter(polarities), "additive" if "bias" in kinds else named or "keep"),
            next(iter(by_category["alignment"]), "upper_left"),
            int(next(iter(by_category["window"]), 0)),
            content,
            next(iter(by_category["keys"]), None),
        )
    except UsageError as err:
        raise UsageError(f"--input {spec}: {err}", hint=err.hint) from err
    _check_tensor(spec, mask)
    return mask


def polarity_of(name: str) -> str:
    """`keep` or `hide` for an input that is called as masks of padding are; "" for others."""
    return next((polarity for pattern, polarity in _BY_NAME if pattern.search(name)), "")


def marks_by_name(name: str, dtype: str, rank: int) -> str:
    """The marks of an input `[batch,seq]` that is called as masks of padding are; "" for others.

    A float that hides is added to the scores, as torch has it, and is not marked.
    """
    polarity = polarity_of(name)
    dtypes = (*_INTEGERS, "bool", *(("float32",) if polarity == "keep" else ()))
    if not polarity or rank != 2 or dtype not in dtypes:
        return ""
    return ":padding" if polarity == "keep" else ":padding:hide"


def _sorted(spec: TensorSpec, marks: Sequence[str]) -> dict[str, list[str]]:
    """The marks by category; each category but the kind occurs at most once."""
    by_category: dict[str, list[str]] = {name: [] for name in _PATTERNS}
    for mark in marks:
        category = next((name for name, pattern in _PATTERNS.items() if re.fullmatch(pattern, mark)), None)
        if category is None:
            raise UsageError(
                f"--input {spec}: got mark {mark!r}; expected {', '.join(MARKS)}, high=N, or example beside examples."
            )
        by_category[category].append(mark.partition("=")[2] or mark)
        if category != "kind" and len(by_category[category]) > 1:
            raise UsageError(f"--input {spec}: got {' and '.join(by_category[category])}; expected one {category}.")
    return by_category


def _content(spec: TensorSpec, kinds: Sequence[str]) -> str:
    """The content of the input, by its kinds and shape; raises UsageError if that is ambiguous."""
    rank = len(spec.dims)
    content = next((held for held in RANKS if RANKS[held] == rank and not {*CARRIES[held]}.isdisjoint(kinds)), "mask")
    if "padding" not in kinds or content != "lengths" or spec.dims[0] == "batch":
        return content
    if spec.dtype in _INTEGERS:
        raise UsageError(
            "it is either a length for each item, or a mask over the keys of all items.",
            hint="Say which: add :lengths or :mask.",
        )
    return "mask"


def _check_tensor(spec: TensorSpec, mask: MaskSpec) -> None:
    """Raises UsageError if the dtype or the rank does not fit the mask."""
    rank, problem = len(spec.dims), ""
    pairs = [kind for kind in mask.kinds if kind in _ALONE]
    if mask.carries in OF_INTEGERS and spec.dtype not in _INTEGERS:
        problem = f"got dtype {spec.dtype} for {mask.carries}; expected one of {', '.join(_INTEGERS)}"
    elif rank != RANKS.get(mask.carries, rank):
        of = {1: "item", 2: "position"}[RANKS[mask.carries]]
        problem = f"got rank {rank} for {mask.carries}; expected one for each {of}, {_SHAPES[RANKS[mask.carries]]}"
    elif mask.carries == "mask" and pairs and rank < 3:
        alone = " and ".join(_ALONE[kind] for kind in pairs)
        problem = f"got rank {rank} for {' and '.join(pairs)}; expected {alone}, or a mask of rank 3 or 4"
    elif mask.carries == "mask" and not 1 <= rank <= 4:
        problem = f"got rank {rank} for a mask; expected 1 to 4, the keys last"
    elif mask.polarity == "additive" and "float" not in spec.dtype:
        problem = f"got dtype {spec.dtype} for an additive mask; expected a float"
    elif "bias" in mask.kinds and mask.carries == "mask" and mask.polarity != "additive":
        problem = f"got {mask.polarity} for a bias, which is added"
    if problem:
        raise UsageError(f"--input {spec}: {problem}.")
