"""The marks of `--input` that say what a mask input means: `:padding`, `:documents`, `:window=128:hide`, ..."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attnport.dims import TensorSpec
from attnport.errors import UsageError
from attnport.masks.spec import ALIGNMENTS, CARRIES, KINDS, POLARITIES, MaskSpec

_INTEGERS = ("int32", "int64")
_NAMED = tuple(kind for kind in KINDS if kind not in ("none", "window"))
_ALONE = {"prefix": "lengths [batch]", "documents": "ids [batch,seq]", "global": "marks [batch,seq]"}
_PATTERNS = {
    "kind": "|".join(_NAMED),
    "window": "window=([0-9]{1,9})",
    "polarity": "|".join(POLARITIES),
    "alignment": "|".join(ALIGNMENTS),
    "content": "|".join(CARRIES),
    "keys": r"keys=([A-Za-z_]\w*)",
}
MARKS = (*_NAMED, "window=N", *POLARITIES, *ALIGNMENTS, *CARRIES, "keys=DIM")
"""What `--input` may say of a mask."""


def mask_of(spec: TensorSpec, marks: Sequence[str]) -> MaskSpec | None:
    """The mask that an input's marks declare; None without marks.

    What the input holds follows from its kind and shape: `documents` are ids, `prefix` and `global` on `[B]` and
    `[B,T]` are lengths and marks, and integers `[batch]` for `padding` are lengths.

    Raises:
        UsageError: an unknown mark, or marks that fit neither each other nor the input; shows the part.
    """
    if not marks:
        return None
    said = _sorted(spec, marks)
    kinds, polarities = list(said["kind"]), said["polarity"]
    if said["window"]:
        kinds.append("window")
    if polarities == ["additive"] and not kinds:
        kinds = ["bias"]  # nothing says that its numbers are of two values only
    if not kinds:
        raise UsageError(
            f"--input {spec}: got {', '.join(marks)} without the kind of mask.",
            hint=f"Add one, for example {spec}:padding:{marks[0]}.",
        )
    try:
        mask = MaskSpec(
            tuple(kinds),
            spec.name,
            next(iter(polarities), "additive" if "bias" in kinds else "keep"),
            next(iter(said["alignment"]), "upper_left"),
            int(next(iter(said["window"]), 0)),
            said["content"][0] if said["content"] else _content(spec, kinds),
            next(iter(said["keys"]), None),
        )
    except UsageError as err:
        raise UsageError(f"--input {spec}: {err}", hint=err.hint) from err
    _check_tensor(spec, mask)
    return mask


def _sorted(spec: TensorSpec, marks: Sequence[str]) -> dict[str, list[str]]:
    """The marks by what they say, each but the kind at most once."""
    said: dict[str, list[str]] = {what: [] for what in _PATTERNS}
    for mark in marks:
        found = next((what for what, pattern in _PATTERNS.items() if re.fullmatch(pattern, mark)), None)
        if found is None:
            raise UsageError(f"--input {spec}: got mark {mark!r}; expected {', '.join(MARKS)} or high=N.")
        said[found].append(mark.partition("=")[2] or mark)
        if found != "kind" and len(said[found]) > 1:
            raise UsageError(f"--input {spec}: got {' and '.join(said[found])}; expected one {found}.")
    return said


def _content(spec: TensorSpec, kinds: Sequence[str]) -> str:
    """What the input holds, by its kinds and shape. Raises UsageError where it may be one or another."""
    rank = len(spec.dims)
    if "documents" in kinds and rank == 2:
        return "ids"
    if "global" in kinds and rank == 2:
        return "marks"
    if "prefix" in kinds and rank == 1:
        return "lengths"
    if "padding" in kinds and rank == 1 and spec.dims[0] == "batch":
        return "lengths"
    if "padding" in kinds and rank == 1 and spec.dtype in _INTEGERS:
        raise UsageError(
            "it is either a length for each item, or a mask over the keys of all items.",
            hint="Say which: add :lengths or :mask.",
        )
    return "mask"


def _check_tensor(spec: TensorSpec, mask: MaskSpec) -> None:
    """Raises UsageError where the dtype or the rank does not hold what the mask says."""
    rank, problem = len(spec.dims), ""
    pairs = [kind for kind in mask.kinds if kind in ("prefix", "documents", "global")]
    if mask.carries in ("lengths", "ids") and spec.dtype not in _INTEGERS:
        problem = f"got dtype {spec.dtype} for {mask.carries}; expected one of {', '.join(_INTEGERS)}"
    elif mask.carries == "lengths" and rank != 1:
        problem = f"got rank {rank} for lengths; expected one for each item, [batch]"
    elif mask.carries in ("ids", "marks") and rank != 2:
        problem = f"got rank {rank} for {mask.carries}; expected one for each position, [batch,seq]"
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
