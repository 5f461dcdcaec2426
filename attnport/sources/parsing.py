"""Declarations as text: `--input` and `--dim` are read here, and written for the manifest and for advice.

An input is written `PATH=DTYPE[DIM,...]` with marks behind it, a constant `PATH=VALUE` with JSON, a dim
`NAME=MIN:OPT:MAX`. What is written is read as the same value. Nothing of torch is needed to read, so that typos are
found at once.

Marks are `high=N` (values below N), `example=TEXT` (`Input.example`) and those of a mask: `:padding`, `:documents`,
`:window=128:hide`, ...
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from attnport.dims import Dim, TensorSpec
from attnport.errors import UsageError, nearest
from attnport.masks import ALIGNMENTS, CARRIES, KINDS, OF_INTEGERS, POLARITIES, RANKS, MaskSpec
from attnport.options import advised
from attnport.sources.structure import NARROW, Constant, Input, Leaf, Path, check_names, flat_name
from attnport_bundle.format.contract import DTYPES, UNKNOWN_SIZE, dims_in

_KEY = r'\w+|"(?:[^"\\]|\\.)*"'
_DECLARATION = re.compile(rf"\s*(?P<path>(?!\d)(?:{_KEY})(?:\.(?:{_KEY}))*)\s*=(?P<rest>.*)", re.DOTALL)
_TENSOR = re.compile(r"(?P<dtype>\w+)\[(?P<dims>[^\]]*)\](?P<marks>(?::[\w=-]+)*)")
_EXAMPLE = "example="
_FORCED = ":example"
"""The mark, beside an example, of an input that is to have its values though random ones do not fail."""
_WORDS = {"True": True, "False": False, "None": None}
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
    (re.compile(r"(^|_)(key_)?padding_mask(_\d+)?$"), "hide"),
    (re.compile(r"(^|_)(attention|input)_mask(_\d+)?$"), "keep"),
)
"""What masks of padding are called, and which of their elements are real tokens: as torch and transformers have it. A
number stands behind where an exporter had the name twice."""
_MASK = re.compile(r"(^|_)masks?(_|$)")
MARKS = (*_NAMED, "window=N", *POLARITIES, *ALIGNMENTS, *CARRIES, "keys=DIM")
"""The marks of a mask in `--input`."""
_MARKS = {mark.partition("=")[0]: mark for mark in (*MARKS, "high=N", "example")}
"""All marks as they are written, by what stands before `=`."""


def parse_leaf(text: str) -> Leaf:
    """Reads `x=float32[batch,seq,256]`, `past.0=float32[batch,heads,past,16]` or `use_cache=false`.

    The path leads to the place in the arguments of the forward; a key in it that is no word is written as JSON, as in
    `held."k=1"`. A constant is JSON, as `mode="mean"`; a list, `grid=[[1,4,4]]`, stands for a tensor.

    Raises:
        UsageError: the text cannot be read; the message shows the part.
    """
    path, rest = _split(text)
    return Leaf(path, _constant(rest) or _input(text, path, rest))


_TORCH_NAMES = {"int": "int64", "long": "int64", "float": "float32", "double": "float64", "half": "float16"}
"""What Python and torch call types of tensors."""


def parse_input(text: str) -> Input:
    """Reads an input: `x=float32[batch,seq,256]`, `mask=int64[batch,seq]:padding`, `ids=int64[batch,seq]:high=30522`.

    A type of `NARROW`, such as uint8, makes an input of int32.

    Raises:
        UsageError: the text cannot be read; the message shows the part.
    """
    path, rest = _split(text)
    return _input(text, path, rest)


class Beside(NamedTuple):
    """A declaration beside an example.

    Attributes:
        declared: The input; None where the example says what it is.
        marks: Marks of the input. If there are any, those by its name and the `high` that was found do not count.
        forced: Whether the input has the values of its example in every test.
    """

    declared: Input | None
    marks: tuple[str, ...]
    forced: bool


def parse_beside(inputs: Iterable[str]) -> dict[str, Beside]:
    """Reads declarations beside examples, such as `x=float32[batch,4]`, `mask=:padding` or `x=:example`, by flat name.

    Raises:
        UsageError: one cannot be read, declares a constant, or is of the same input as another.
    """
    found: dict[str, Beside] = {}
    for text in inputs:
        path, rest = _split(text)
        name = flat_name(path)
        forced, rest = rest.endswith(_FORCED), rest.removesuffix(_FORCED)
        if name in found:
            raise UsageError(f"input {name} is declared twice.", hint="Declare it once.")
        if _constant(rest):
            raise UsageError(
                f"input {text!r}: beside examples, a constant is one of them.", hint="Give its value there."
            )
        alone = rest.startswith(":") or (forced and not rest)
        if not alone and (written := _marks_without_colon(rest)):
            raise UsageError(
                f"input {text!r} cannot be read.",
                hint=f'Write "{written}", with a colon: {advised("inputs", [f"{name}={written}"])}',
            )
        marks = tuple(filter(None, rest.replace(" ", "").split(":"))) if alone else ()
        found[name] = Beside(None if alone else _input(text, path, rest), marks, forced)
    return found


def marked(spec: TensorSpec, marks: Iterable[str], dtype: str = "") -> Input:
    """An input with its marks.

    Args:
        marks: What stands behind its shape, without colons.
        dtype: As of `Input`.

    Raises:
        UsageError: a mark is unknown, or does not fit the input or another mark.
    """
    of_mask, example = [], ""
    for mark in marks:
        if mark.startswith("high=") and mark[5:].isdigit():
            spec = dataclasses.replace(spec, high=int(mark[5:]))
        elif mark.startswith(_EXAMPLE):
            example = mark.removeprefix(_EXAMPLE)
        else:
            of_mask.append(mark)
    mask = _mask_of(spec, of_mask)
    if mask and spec.high and mask.carries in ("mask", "marks"):
        raise UsageError(
            f"input {spec}: got high={spec.high} and {', '.join(of_mask)}; a mask has no limit of its values.",
            hint=f"A limit is for ids: leave out :high={spec.high}, or the marks of a mask if {spec.name} is none.",
        )
    if dtype and not spec.high:
        spec = dataclasses.replace(spec, high=NARROW[dtype])
    return Input(spec, mask, dtype, example)


def text_of(leaf: Leaf) -> str:
    """What `parse_leaf` reads as this leaf. A constant that is an object of Python is written as it prints."""
    path = ".".join(
        key if re.fullmatch(r"\w+" if at else r"[^\W\d]\w*", key) else json.dumps(key)
        for at, key in enumerate(leaf.path)
    )
    if isinstance(leaf.held, Constant):
        return f"{path}={_constant_text(leaf.held.value)}"
    spec, mask, dtype, example = leaf.held
    marks = [f"high={spec.high}"] if spec.high not in (None, NARROW.get(dtype)) else []
    marks += _marks_of(spec, mask) if mask else []
    marks += [f"{_EXAMPLE}{example}"] if example else []
    return f"{path}={dtype or spec.dtype}[{','.join(map(str, spec.dims))}]{''.join(f':{mark}' for mark in marks)}"


def _constant_text(value: object) -> str:
    from attnport.known import PYTHON

    value = value.tolist() if hasattr(value, "tolist") else value
    return json.dumps(
        value if isinstance(value, bool | int | float | str | list | dict | None) else f"{PYTHON}{value!r}"
    )


def _split(text: str) -> tuple[Path, str]:
    """A path, and what is declared of it."""
    if match := _DECLARATION.fullmatch(text):
        with contextlib.suppress(ValueError):  # of a key in quotes
            keys = (json.loads(key) if key.startswith('"') else key for key in re.findall(_KEY, match["path"]))
            return tuple(keys), match["rest"].strip()
    raise _unreadable(text)


def _unreadable(text: str) -> UsageError:
    name, _, rest = text.partition("=")
    if (written := _marks_without_colon(rest.strip().removeprefix(":"))) and not written.startswith(":example"):
        declared = advised("inputs", [f"{name.strip()}=int64[batch,seq]{written}"])
        return UsageError(f"input {text!r} has no type and no dims.", hint=f"Write them too, for example {declared}")
    return UsageError(
        f"input {text!r} cannot be read.",
        hint='Write NAME=DTYPE[DIM,...], for example "attention_mask=int64[batch,seq]:padding".',
    )


def _marks_without_colon(rest: str) -> str:
    """What is declared as marks with their colons, `padding` as `:padding`, where it is nothing but marks; else ""."""
    marks = [mark.partition("=") for mark in rest.replace(" ", "").split(":")]
    near = [difflib.get_close_matches(name, _MARKS, 1) for name, _, _ in marks]
    return (
        "".join(f":{name[0]}{sign}{value}" for name, (_, sign, value) in zip(near, marks, strict=True))
        if all(near)
        else ""
    )


def _constant(text: str) -> Constant | None:
    try:
        return Constant(_WORDS[text] if text in _WORDS else json.loads(text))
    except (ValueError, RecursionError):
        return None


def _input(text: str, path: Path, rest: str) -> Input:
    match = _TENSOR.fullmatch(rest.replace(" ", ""))
    if not match:
        raise _unreadable(text)
    dims = tuple(int(dim) if re.fullmatch(r"[0-9]{1,18}", dim) else dim for dim in match["dims"].split(",") if dim)
    for dim in dims:
        try:
            _ = dims_in(dim) if isinstance(dim, str) else ()
        except ValueError as err:
            raise UsageError(
                f"input {text!r}: dim {dim!r} is neither a name, a size, nor an expression such as past+seq: {err}."
            ) from err
    dtype, known = match["dtype"], (*DTYPES, *NARROW)
    if dtype not in known:
        meant = _TORCH_NAMES.get(dtype)
        hint = f"Is it {meant}?" if meant else nearest(dtype, known)
        raise UsageError(f"input {text!r}: dtype {dtype!r} is not one of {', '.join(known)}.", hint=hint)
    narrow = dtype if dtype in NARROW else ""
    spec = TensorSpec(flat_name(path), "int32" if narrow else dtype, dims)
    return marked(spec, filter(None, match["marks"].split(":")), narrow)


def parse_dim(text: str) -> Dim:
    """Reads `seq=1:128:512` (min, opt, max), `seq=4:128:512:4` (and a step) or `seq=64` (one size); min may be 0, for
    empty inputs.

    Raises:
        UsageError: the text cannot be read.
    """
    if alone := re.fullmatch(r"\s*(\w+)\s*=\s*([1-9]\d{0,17})\s*", text):
        return Dim(alone[1], *[int(alone[2])] * 3)
    match = re.fullmatch(r"\s*(\w+)\s*=\s*(\d{1,18}):(\d{1,18}):(\d{1,18})(?::(\d{1,18}))?\s*", text)
    if not match:
        raise UsageError(
            f"dim {text!r} cannot be read.",
            hint="Write DIM=MIN:OPT:MAX, for example seq=1:128:512; DIM=MIN:OPT:MAX:STEP for multiples of a number; or "
            "DIM=SIZE for one size.",
        )
    dim = Dim(match[1], *map(int, match.groups("1")[1:]))
    if dim.opt < 1:
        raise UsageError(f"dim {text!r}: got the usual size 0; expected 1 or more.", hint="Only MIN may be 0.")
    return dim


def parse_dims(declared: Sequence[str]) -> dict[str, Dim]:
    """`--dim` declarations by name; raises UsageError for one that cannot be read or is given twice."""
    dims: dict[str, Dim] = {}
    for dim in map(parse_dim, declared):
        if dim.name in dims:
            raise UsageError(f"dim {dim}: {dim.name} is given twice.", hint="Give each dim once.")
        dims[dim.name] = dim
    return dims


def declarations(inputs: Iterable[str], dims: Sequence[str]) -> tuple[tuple[Leaf, ...], dict[str, Dim]]:
    """Inputs and constants, and the ranges of dims, that are declared as text.

    Raises:
        UsageError: one cannot be read, or does not fit the others.
    """
    leaves, ranges = parse_leaves(inputs), parse_dims(dims)
    check_dims(leaves, ranges)
    return leaves, ranges


def parse_leaves(inputs: Iterable[str]) -> tuple[Leaf, ...]:
    """Reads declarations; raises UsageError and SpecError as `parse_leaf` and `structure.check_names`."""
    leaves = tuple(map(parse_leaf, inputs))
    check_names(leaves)
    return leaves


def check_dims(leaves: Iterable[Leaf], ranges: Mapping[str, Dim]) -> None:
    """Raises UsageError for a range, an expression or a mask's keys with a dim that no input has alone."""
    tensors = [held for _, held in leaves if isinstance(held, Input)]
    used = names_of([each.spec for each in tensors])
    have = ", ".join(used) or "none"
    for spec, mask, *_ in tensors:
        for dim in spec.dims:
            # Nothing would tell its size.
            if isinstance(dim, str) and (lacking := dims_in(dim) - set(used)):
                hint = "Give the dim a name: only an output has an unknown size." if UNKNOWN_SIZE in lacking else ""
                said = f"input {spec}: no input has the dim {min(lacking)} alone; they have {have}."
                raise UsageError(said, hint=hint)
        if mask and mask.keys is not None and mask.keys not in used:
            raise UsageError(f"input {mask.input}: got keys={mask.keys}; the inputs have {have}.")
    for name in ranges:
        if name not in used:
            raise UsageError(f"dim {name}: no input has that dim; they have {have}.", hint=nearest(name, used))


def names_of(tensors: Sequence[TensorSpec]) -> dict[str, None]:
    """The named dims that inputs have alone, and not only within an expression, in their order there."""
    return dict.fromkeys(dim for spec in tensors for dim in spec.dims if isinstance(dim, str) and dim.isidentifier())


def _mask_of(spec: TensorSpec, marks: Sequence[str]) -> MaskSpec | None:
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
            f"input {spec}: got {', '.join(marks)} without the kind of mask.",
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
        raise UsageError(f"input {spec}: {err}", hint=err.hint) from err
    _check_tensor(spec, mask)
    return mask


def polarity_of(name: str) -> str:
    """`keep` or `hide` for an input that is called as masks of padding are; "" for others."""
    return next((polarity for pattern, polarity in _BY_NAME if pattern.search(name)), "")


def called_a_mask(name: str) -> bool:
    """Whether an input is called as masks of any kind are, such as `mask` or `attn_mask`."""
    return bool(_MASK.search(name))


def marks_by_name(name: str, dtype: str, rank: int) -> tuple[str, ...]:
    """The marks of an input `[batch,seq]` that is called as masks of padding are; none for others.

    A float that hides is added to the scores, as torch has it, and is not marked.
    """
    polarity = polarity_of(name)
    dtypes = (*_INTEGERS, "bool", *(("float32",) if polarity == "keep" else ()))
    if not polarity or rank != 2 or dtype not in dtypes:
        return ()
    return ("padding",) if polarity == "keep" else ("padding", "hide")


def _marks_of(spec: TensorSpec, mask: MaskSpec) -> list[str]:
    """The fewest marks that declare a mask."""
    marks = [f"window={mask.window}" if kind == "window" else kind for kind in mask.kinds]
    marks += [] if mask.keys is None else [f"keys={mask.keys}"]
    optional = [mask.polarity, mask.alignment, mask.carries]
    for mark in tuple(optional):
        fewer = [each for each in optional if each != mark]
        try:
            optional = fewer if _mask_of(spec, [*marks, *fewer]) == mask else optional
        except UsageError:  # it is ambiguous without this one
            continue
    return [*marks, *optional]


def _sorted(spec: TensorSpec, marks: Sequence[str]) -> dict[str, list[str]]:
    """The marks by category; each category but the kind occurs at most once."""
    by_category: dict[str, list[str]] = {name: [] for name in _PATTERNS}
    for mark in marks:
        category = next((name for name, pattern in _PATTERNS.items() if re.fullmatch(pattern, mark)), None)
        if category is None:
            raise UsageError(
                f"input {spec}: got mark {mark!r}; expected {', '.join(MARKS)}, high=N, or example beside examples.",
                hint=_meant(mark),
            )
        by_category[category].append(mark.partition("=")[2] or mark)
        if category != "kind" and len(by_category[category]) > 1:
            raise UsageError(f"input {spec}: got {' and '.join(by_category[category])}; expected one {category}.")
    return by_category


def _meant(mark: str) -> str:
    """A hint for a mark that is unknown, or has another value than it takes."""
    name, sign, value = mark.partition("=")
    near = difflib.get_close_matches(name, _MARKS, 1)
    if near == [name]:
        return f"Write it as :{_MARKS[name]}."
    return f"Is it :{near[0]}{sign}{value}?" if near else ""


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
    rank, problem, hint = len(spec.dims), "", ""
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
    elif mask.carries == "mask" and {*mask.kinds} <= {"causal", "window"} and _of_keys_alone(spec):
        problem = f"got {' and '.join(mask.kinds)}, of queries and keys; its dims have no queries, as [seq,seq] has"
        declared = advised("inputs", [f"{spec}:padding"])
        hint = f"A mask of keys hides padding: {declared}. What the module computes itself needs no mark."
    elif mask.polarity == "additive" and "float" not in spec.dtype:
        problem = f"got dtype {spec.dtype} for an additive mask; expected a float"
    elif "bias" in mask.kinds and mask.carries == "mask" and mask.polarity != "additive":
        problem = f"got {mask.polarity} for a bias, which is added"
    if problem:
        raise UsageError(f"input {spec}: {problem}.", hint=hint)


def _of_keys_alone(spec: TensorSpec) -> bool:
    """Whether a mask has an element for each key, and not for each pair of a query and a key."""
    return len(spec.dims) == 1 or (len(spec.dims) == 2 and spec.dims[0] == "batch") or spec.dims[-2] == 1
