"""Reads the texts of `--input` and `--dim`. Nothing of torch is needed, so that typos are found at once."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from attnport.dims import Dim, TensorSpec
from attnport.errors import UsageError
from attnport.masks import MaskSpec
from attnport.sources.marks import mask_of
from attnport.sources.structure import NARROW, Path, flat_name
from attnport_bundle.format.contract import DTYPES, dims_in

PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
"""Where a declaration belongs in the arguments of the forward, see `path_of`."""
_INPUT = re.compile(r"(?P<name>[A-Za-z_]\w*(\.\w+)*)=(?P<dtype>\w+)\[(?P<dims>[^\]]*)\](?P<marks>(:[\w=-]+)*)")
_CONSTANT = re.compile(r"\s*(?P<name>[A-Za-z_]\w*(\.\w+)*)\s*=\s*(?P<value>[^\[\]]+?|\[.*\])\s*")
_EXAMPLE = "example="
_WORDS = {"True": True, "False": False, "None": None}


def parse_input(text: str) -> tuple[TensorSpec, MaskSpec | None]:
    """Reads `x=float32[batch,seq,256]`, `mask=int64[batch,seq]:padding`, `ids=int64[batch,seq]:high=30522`.

    A type of `NARROW`, such as uint8, makes an input of int32, see `narrow_dtypes`.

    A tensor in a structure is written with dots, `past.0=float32[batch,heads,past,16]`, and called `past_0`. Marks
    after the shape are `high=N` (values below N), `example=TEXT` (see `examples_of`) and those of a mask
    (`sources.marks`).

    Raises:
        UsageError: the text cannot be read; the message shows the part.
    """
    match = _INPUT.fullmatch(text.replace(" ", ""))
    if not match:
        raise UsageError(
            f"--input {text!r} cannot be read.",
            hint='Write NAME=DTYPE[DIM,...], for example "attention_mask=int64[batch,seq]:padding".',
        )
    dims = tuple(int(dim) if re.fullmatch(r"[0-9]{1,18}", dim) else dim for dim in match["dims"].split(",") if dim)
    for dim in dims:
        problem = _dim_problem(dim)
        if problem:
            raise UsageError(f"--input {text!r}: dim {dim!r} is {problem}.")
    high: int | None = None
    marks = []
    for mark in filter(None, match["marks"].split(":")):
        if mark.startswith("high=") and mark[5:].isdigit():
            high = int(mark[5:])
        elif not mark.startswith(_EXAMPLE):
            marks.append(mark)
    dtype = match["dtype"]
    if dtype not in (*DTYPES, *NARROW):
        raise UsageError(
            f"--input {text!r}: dtype {dtype!r} is not one of {', '.join((*DTYPES, *NARROW))}.",
            hint=_near(dtype, (*DTYPES, *NARROW)),
        )
    if dtype in NARROW:
        dtype, high = "int32", high or NARROW[dtype]
    spec = TensorSpec(flat_name(path_of(text)), dtype, dims, high)
    return spec, mask_of(spec, marks)


def examples_of(inputs: Iterable[str]) -> dict[str, str]:
    """The values that declared inputs have in tests, where they have them (`example_values.packed`), by flat name."""
    found = {}
    for text in inputs:
        match = _INPUT.fullmatch(text.replace(" ", ""))
        for mark in match["marks"].split(":") if match else ():
            if mark.startswith(_EXAMPLE):
                found[flat_name(path_of(text))] = mark.removeprefix(_EXAMPLE)
    return found


def narrow_dtypes(inputs: Iterable[str]) -> dict[str, str]:
    """By flat name, the types that the module is given where inputs come in as int32: `x=uint8[batch,height,width]`."""
    matches = filter(None, (_INPUT.fullmatch(text.replace(" ", "")) for text in inputs))
    return {flat_name(path_of(match[0])): match["dtype"] for match in matches if match["dtype"] in NARROW}


def path_of(text: str) -> Path:
    """Where a declaration belongs in the arguments of the forward: `past.0.key=...` is `("past", "0", "key")`."""
    return tuple(text.partition("=")[0].strip().split("."))


def parse_constant(text: str) -> tuple[Path, Any] | None:
    """Reads an argument that has the same value in every call: `use_cache=false`, `mode="mean"` or `grid=[[1,4,4]]`.

    Returns:
        The argument's path and its value, where a list stands for a tensor. None if the text declares an input, such
        as `ids=int64[batch,seq]`.
    """
    match = _CONSTANT.fullmatch(text)
    if match is None:
        return None
    try:
        value = _WORDS[match["value"]] if match["value"] in _WORDS else json.loads(match["value"])
    except ValueError:
        return None
    return path_of(text), value


def parse_dim(text: str) -> Dim:
    """Reads `seq=1:128:512` (min, opt, max) or `seq=4:128:512:4` (and a step); min may be 0, for empty inputs.

    Raises:
        UsageError: the text cannot be read.
    """
    match = re.fullmatch(r"\s*(\w+)\s*=\s*(\d{1,18}):(\d{1,18}):(\d{1,18})(?::(\d{1,18}))?\s*", text)
    if not match:
        raise UsageError(
            f"--dim {text!r} cannot be read.",
            hint="Write DIM=MIN:OPT:MAX, for example seq=1:128:512; or DIM=MIN:OPT:MAX:STEP for multiples of a number.",
        )
    dim = Dim(match[1], *map(int, match.groups("1")[1:]))
    if dim.opt < 1:
        raise UsageError(f"--dim {text!r}: got the usual size 0; expected 1 or more.", hint="Only MIN may be 0.")
    return dim


def parse_dims(declared: Sequence[str]) -> dict[str, Dim]:
    """`--dim` declarations by name; raises UsageError for one that cannot be read or is given twice."""
    dims: dict[str, Dim] = {}
    for dim in map(parse_dim, declared):
        if dim.name in dims:
            raise UsageError(f"--dim {dim}: {dim.name} is given twice.", hint="Give each dim once.")
        dims[dim.name] = dim
    return dims


def declarations(
    inputs: Sequence[str], dims: Sequence[str], *, whole: bool = True
) -> tuple[tuple[TensorSpec, ...], tuple[MaskSpec, ...], dict[str, Dim]]:
    """The tensors, masks and ranges that are declared, without the constants. torch is not imported.

    Args:
        whole: Whether there are no other inputs, which may have further dims.

    Raises:
        UsageError: one cannot be read, or does not fit the others.
    """
    texts = [each for each in inputs if parse_constant(each) is None]
    parsed = [parse_input(each) for each in texts]
    tensors = tuple(spec for spec, _ in parsed)
    places: dict[str, str] = {}
    for spec, text in zip(tensors, texts, strict=True):
        place = ".".join(path_of(text))
        if spec.name in places:
            twice = f"{places[spec.name]} and {place} are both the input {spec.name}"
            raise UsageError(f"--input: a name is declared twice: {twice}.", hint="Declare each once, or rename one.")
        places[spec.name] = place
    ranges = parse_dims(dims)
    used = names_of(tensors)
    if whole:
        _check_expressions(tensors, used)
    for name in ranges:
        if name not in used:
            near = _near(name, used)
            raise UsageError(f"--dim {name}: no input has that dim; they have {', '.join(used) or 'none'}.", hint=near)
    masks = tuple(mask for _, mask in parsed if mask)
    for mask in masks if whole else ():
        if mask.keys is not None and mask.keys not in used:
            raise UsageError(f"--input {mask.input}: got keys={mask.keys}; the inputs have {', '.join(used)}.")
    return tensors, masks, ranges


def names_of(tensors: Sequence[TensorSpec]) -> dict[str, None]:
    """The named dims that inputs have alone, and not only within an expression, in their order there."""
    return dict.fromkeys(dim for spec in tensors for dim in spec.dims if isinstance(dim, str) and dim.isidentifier())


def _check_expressions(tensors: Sequence[TensorSpec], used: Collection[str]) -> None:
    """Raises UsageError for an expression of a dim that no input has alone, as nothing would tell its size."""
    for spec in tensors:
        for dim in spec.dims:
            if isinstance(dim, str) and (lacking := dims_in(dim) - set(used)):
                raise UsageError(
                    f"--input {spec}: no input has the dim {min(lacking)} alone; they have {', '.join(used) or 'none'}."
                )


def _near(word: str, known: Iterable[str]) -> str:
    """A hint with the known word that is spelled most like another; "" if none is."""
    found = difflib.get_close_matches(word, list(known), 1)
    return f"Is it {found[0]}?" if found else ""


def _dim_problem(dim: str | int) -> str:
    """Why a dim of an input cannot be read, or ""."""
    if isinstance(dim, int):
        return "" if dim else "neither a name nor a size"
    try:
        dims_in(dim)
    except ValueError as err:
        return f"neither a name, a size, nor an expression such as past+seq: {err}"
    return ""
