"""The contract of a model: what goes in and out, named dims with their ranges, masks, profiles.

Three classes of rows, the same on every runtime:

- *valid* rows equal the module's and never depend on the amount of padding;
- an *attention row with no allowed key* gives zero as the attention's own output (the ONNX standard's answer);
- *padded query rows* are unspecified but finite.

The table says which keys each kind of mask allows, for query i of S, at position p(i), key j of T and batch item b.
p(i) is i with alignment `upper_left`, and i + T - S with `lower_right`, where the last query stands at the last key
(as with a key/value cache).

==========  ====================================================================================================
none        every key
padding     the real keys of item b: `keep[b, j]`, or `j < lengths[b]`
causal      j <= p(i)
window      |p(i) - j| <= window; with `causal` that leaves the last window + 1 keys
prefix      j <= p(i) or j < prefix[b] (prefix-LM, Raffel et al. 2020): widens `causal`, which need not be named
documents   ids[b, p(i)] == ids[b, j]; with `padding` from the same ids, id 0 is padding
global      widens `window`: keys and queries marked global see and are seen by all (Beltagy et al. 2020)
bias        every key; finite numbers are added to the scores
explicit    any other pattern over queries and keys
==========  ====================================================================================================

Kinds combine: a key is allowed where all of them allow it, after `prefix` has widened `causal` and `global` `window`.

Sizes are numbers, dims, or expressions of dims: `past+seq`, `2*seq-1`, `(height//8)*(width//8)`, `max(seq,4)`. There
are names, whole numbers, `+ - * // %`, `min(a,b)`, `max(a,b)` and parentheses. Values are integers from -(2^53 - 1) to
2^53 - 1, also within the expression; `//` rounds down, and `//` and `%` divide by positive numbers only. An output has
`?` for a size that only its values tell, as that of `x[mask]`.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import ProfileError, UsageError

DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int64", "bool")
KINDS = ("none", "padding", "causal", "window", "prefix", "documents", "global", "bias", "explicit")
POLARITIES = ("keep", "hide", "additive")
ALIGNMENTS = ("upper_left", "lower_right")
CARRIES = {"mask": KINDS, "lengths": ("padding", "prefix"), "ids": ("documents",), "marks": ("global",)}
"""What an input may hold, and the kinds of mask that each can express."""
RANKS = {"lengths": 1, "ids": 2, "marks": 2}
"""The rank of an input by what it holds; a mask may have any rank from 1 to 4."""
OF_INTEGERS = ("lengths", "ids")
"""What only an input of integers may hold."""
COMPUTED = ("none", "causal", "window", "bias")
"""Kinds that need no input: the module makes them from positions or from its weights."""

UNKNOWN_SIZE = "?"
"""The size of an output that no expression of dims tells: each call has its own."""

Verdict = Literal["PASS", "FAIL", "NOT_RUN"]

_INTEGERS = ("int32", "int64")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Dim:
    """A named dimension that stays dynamic: its smallest, usual and largest size.

    The smallest may be 0, for an input that may be empty, as a cache. The usual size of a model's dim is 1 or more.

    Attributes:
        step: Every size is a multiple of it, as with an image that is cut into windows of equal size.
    """

    name: str
    min: int
    opt: int
    max: int
    step: int = 1

    def __post_init__(self) -> None:
        if not _IDENTIFIER.fullmatch(self.name):
            raise ProfileError(
                f"dim name {self.name!r} is not an identifier; expected a name of ASCII letters, digits and _."
            )
        if not 0 <= self.min <= self.opt <= self.max:
            raise ProfileError(
                f"dim {self.name}: got min={self.min}, opt={self.opt}, max={self.max}; expected 0 <= min <= opt <= max."
            )
        if self.step < 1 or any(size % self.step for size in (self.min, self.opt, self.max)):
            raise ProfileError(
                f"dim {self.name}: got {self.min}, {self.opt} and {self.max} with step {self.step}; "
                "expected multiples of a step of 1 or more."
            )

    def takes(self, size: int) -> bool:
        """Whether a size is in the range, and a multiple of the step."""
        return self.min <= size <= self.max and size % self.step == 0

    def at_least(self, size: int) -> int:
        """The smallest size that it takes and that is `size` or more; the largest one if there is none."""
        return max(self.min, min(-(-size // self.step) * self.step, self.max))

    @property
    def span(self) -> str:
        """The sizes that it takes, in words: `1 to 512`, or `4 to 512 in steps of 4`."""
        return f"{self.min} to {self.max}" + (f" in steps of {self.step}" if self.step > 1 else "")

    def __str__(self) -> str:
        return f"{self.name}={self.min}:{self.opt}:{self.max}" + (f":{self.step}" if self.step > 1 else "")


@dataclass(frozen=True)
class TensorSpec:
    """A declared input or output: name, dtype and dims (names of dynamic dims, or fixed sizes).

    A dim may be an expression of dims, such as `past+seq`, that inputs have as such; that of an output, `UNKNOWN_SIZE`.
    `high` bounds an integer input's values (exclusive), as a vocabulary bounds token ids. `labels` name the places on
    the last axis, as the classes of a classifier.
    """

    name: str
    dtype: str
    dims: tuple[str | int, ...]
    high: int | None = None
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UsageError(f"{self.name}: dtype {self.dtype!r} is not one of {', '.join(DTYPES)}.")
        if self.high is not None and (self.dtype not in _INTEGERS or self.high < 1):
            raise UsageError(f"{self.name}: got high {self.high} for {self.dtype}; expected 1 up, of integers.")

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The concrete shape for `sizes`, a size for each named dim.

        Raises:
            UsageError: an expression has no value for these sizes.
        """
        return tuple(self._size(dim, sizes) for dim in self.dims)

    def known_shape(self, sizes: Mapping[str, int]) -> tuple[int | None, ...]:
        """As `shape`, with None for a size that has no value."""
        return tuple(self._size(dim, sizes, needed=False) for dim in self.dims)

    def fits(self, shape: Sequence[int], sizes: Mapping[str, int]) -> bool:
        """Whether a shape is the one for `sizes`; an unknown size may be any, an expression without a value is none."""
        return len(shape) == len(self.dims) and all(
            dim == UNKNOWN_SIZE or got == size
            for got, dim, size in zip(shape, self.dims, self.known_shape(sizes), strict=True)
        )

    def _size(self, dim: str | int, sizes: Mapping[str, int], *, needed: bool = True) -> Any:
        if isinstance(dim, int):
            return dim
        try:
            return evaluate(dim, sizes)
        except ValueError as err:
            if not needed:
                return None
            at = ", ".join(f"{name}={size}" for name, size in sizes.items())
            raise UsageError(f"{self.name}: the size {dim!r} has no value at {at}: {err}.") from err

    def __str__(self) -> str:
        return f"{self.name}={self.dtype}[{','.join(map(str, self.dims))}]"


@dataclass(frozen=True)
class MaskSpec:
    """The meaning of one mask: of an input tensor, or of the mask recognised in an attention.

    Attributes:
        kinds: The kinds that it combines, of `KINDS`; the module's docstring says what each allows.
        input: The input that carries it; None when the model computes it, or when several inputs carry it.
        polarity: Of a `mask`: `keep` (nonzero or True may be attended), `hide` (nonzero is hidden) or `additive`.
        alignment: Where queries stand among the keys: `upper_left` (query i at i) or `lower_right` (the last query
            at the last key).
        window: For `window`: the largest distance of an allowed key; otherwise 0.
        carries: What the input holds: `mask` (an element for each key, `[B,T]`, or pair, `[B,1|H,1|S,T]`), `lengths`
            (integers `[B]`: of the items for `padding`, of the prefixes for `prefix`), `ids` (integers `[B,T]`, equal
            within a document) or `marks` (`[B,T]`, nonzero for global tokens).
        keys: For `lengths`: the dim that they count, needed where the inputs have several beside the batch. A bundle
            always has it.

    Raises:
        UsageError: an unknown kind, polarity, alignment or content, or a combination that has no meaning.
    """

    kinds: tuple[str, ...] = ("none",)
    input: str | None = None
    polarity: str = "keep"
    alignment: str = "upper_left"
    window: int = 0
    carries: str = "mask"
    keys: str | None = None

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown or not self.kinds:
            raise UsageError(f"mask kind {', '.join(unknown) or 'missing'}; expected one of {', '.join(KINDS)}.")
        for what, got, known in (
            ("polarity", self.polarity, POLARITIES),
            ("alignment", self.alignment, ALIGNMENTS),
            ("content", self.carries, tuple(CARRIES)),
        ):
            if got not in known:
                raise UsageError(f"mask {what} {got!r}; expected one of {', '.join(known)}.")
        if problem := self._problem():
            raise UsageError(f"mask {self}: {problem}.")

    def _problem(self) -> str:
        """Why the combination has no meaning, or ""."""
        kinds, carries, named = self.kinds, self.carries, ", ".join(self.kinds)
        says = [kind for kind in kinds if kind in CARRIES[carries]]
        others = set(kinds) - {*says, *COMPUTED, *["padding"] * (carries == "ids")}
        problems = {
            "a kind is named twice; each is there once": len(set(kinds)) < len(kinds),
            "none hides nothing and does not combine with other kinds; none is alone": "none" in kinds
            and len(kinds) > 1,
            f"got window {self.window}; expected 0 or more": self.window < 0,
            f"got window {self.window} without the kind window": self.window > 0 and "window" not in kinds,
            f"got keys={self.keys!r}; only lengths count the keys of a dim": self.keys is not None
            and carries != "lengths",
        }
        if carries != "mask":
            expected, more = ", ".join(CARRIES[carries]), ", ".join(sorted(others))
            problems |= {
                f"got {carries} without the input that holds them": self.input is None,
                f"{carries} cannot say {named}; expected exactly one of {expected}": len(says) != 1,
                f"{carries} of {', '.join(says)} cannot say {more} as well; use another input for that": bool(others),
                f"got polarity {self.polarity} for {carries}; only a mask has one": self.polarity != "keep",
            }
        return next((problem for problem, found in problems.items() if found), "")

    def __str__(self) -> str:
        text = "+".join(self.kinds)
        return f"{text}({self.input})" if self.input else text


@dataclass(frozen=True)
class IO:
    """The contract of inputs and outputs."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    dims: tuple[Dim, ...]
    masks: tuple[MaskSpec, ...] = ()

    def given(self) -> tuple[str, ...]:
        """The named dims that inputs have as such, and not only within an expression, in their order there."""
        known = {dim.name for dim in self.dims}
        return tuple(dict.fromkeys(str(dim) for tensor in self.inputs for dim in tensor.dims if dim in known))

    def padding_masks(self) -> tuple[MaskSpec, ...]:
        """The masks that an input carries and that hide padding."""
        return tuple(mask for mask in self.masks if mask.input and "padding" in mask.kinds)

    def check(self) -> None:
        """Raises UsageError if names, dims, masks and dtypes contradict each other."""
        for names in ([x.name for x in self.inputs], [x.name for x in self.outputs], [dim.name for dim in self.dims]):
            if len(set(names)) != len(names):
                raise UsageError(f"a name is there twice among {', '.join(names)}.")
        known, given = {dim.name for dim in self.dims}, set(self.given())
        if unusual := [dim for dim in self.dims if dim.opt < 1]:
            raise UsageError(f"dim {unusual[0]}: got the usual size 0; expected 1 or more.")
        for tensor in self.inputs:
            _check_sizes(tensor, known, given)
        for tensor in self.outputs:
            _check_sizes(tensor, known, given | {UNKNOWN_SIZE})
        if limited := [tensor for tensor in self.outputs if tensor.high is not None]:
            raise UsageError(f"output {limited[0].name!r}: got high {limited[0].high}; only inputs have one.")
        inputs = {tensor.name: tensor for tensor in self.inputs}
        for mask in self.masks:
            _check_carried(mask, inputs.get(mask.input or ""), known)
        if not self.inputs or not self.outputs:
            raise UsageError("a model has at least one input and one output.")


def _check_sizes(tensor: TensorSpec, known: Set[str], given: Set[str]) -> None:
    """Raises UsageError unless each dim is a size, a name or an expression of names in `given`."""
    for dim in tensor.dims:
        problem = "" if isinstance(dim, str) or dim >= 0 else "it is below 0"
        if isinstance(dim, str) and dim not in known:
            try:
                unknown = sorted(dims_in(dim) - given)
                problem = f"no input has {', '.join(unknown)}" if unknown else ""
            except ValueError as err:
                problem = str(err)
        if problem:
            names = ", ".join(sorted(known))
            raise UsageError(f"tensor {tensor.name!r}: got dim {dim!r} ({problem}); known are {names}.")
    if tensor.labels and tensor.dims[-1:] != (len(tensor.labels),):
        raise UsageError(f"tensor {tensor.name!r}: got {len(tensor.labels)} labels; expected one for each place.")


def _check_carried(mask: MaskSpec, carrier: TensorSpec | None, dims: set[str]) -> None:
    """Raises UsageError unless the input that carries a mask, and the dims, fit the mask."""
    if mask.keys is not None and mask.keys not in dims:
        raise UsageError(f"{mask.input!r} counts {mask.keys!r}, which is no dim.")
    if mask.input is None:
        return
    if carrier is None:
        raise UsageError(f"a mask is carried by {mask.input!r}, which is no input.")
    rank = RANKS.get(mask.carries, len(carrier.dims))
    if len(carrier.dims) != rank:
        raise UsageError(f"{carrier} carries {mask.carries}, which have rank {rank}.")
    if mask.carries in OF_INTEGERS and carrier.dtype not in _INTEGERS:
        raise UsageError(f"{carrier} carries {mask.carries}, which are integers.")
    if mask.polarity == "additive" and "float" not in carrier.dtype:
        raise UsageError(f"{carrier} carries an additive mask, which is of floats.")


@dataclass(frozen=True)
class Profile:
    """An optimization profile: a range for every named dim of a model."""

    dims: tuple[Dim, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.dims))

    def sizes(self, which: str) -> dict[str, int]:
        """The sizes at `which` of `min`, `opt`, `max`."""
        return {dim.name: getattr(dim, which) for dim in self.dims}

    def admits(self, sizes: Mapping[str, int]) -> bool:
        """Whether its dims take every given size."""
        return all(dim.takes(sizes.get(dim.name, dim.min)) for dim in self.dims)

    def check(self, io: IO) -> None:
        """Raises ProfileError unless it has the model's dims, in order, each inside its range and with its step."""
        own_names, names = ([dim.name for dim in dims] for dims in (self.dims, io.dims))
        if own_names != names:
            raise ProfileError(f"a profile has dims {own_names}; expected {names}.")
        for own, limit in zip(self.dims, io.dims, strict=True):
            if own.min < limit.min or own.max > limit.max or own.step != limit.step:
                raise ProfileError(f"a profile has {own.name} from {own.span}; the model takes {limit.span}.")


@dataclass(frozen=True)
class Ran:
    """What really ran, as the runtime itself reports it."""

    device: str
    provider: str
    precision: str


MAX_LETTERS = 400
"""The longest expression."""
MAX_DEPTH = 16
"""The deepest nesting of parentheses, those of `min` and `max` included."""
LARGEST = 2**53 - 1
"""The largest value in an expression."""

_TOKEN = re.compile(r" *([A-Za-z_][A-Za-z0-9_]*|[0-9]+|//|[-+*%(),])")
_STRENGTHS = {"+": 1, "-": 1, "*": 2, "//": 2, "%": 2}
_CALLS = {"min": min, "max": max}
_OPERATIONS: dict[str, Callable[[int, int], int]] = dict(
    zip(_STRENGTHS, (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod), strict=True), **_CALLS
)
Step = int | str | tuple[str]
"""A number, a name, or an operation on the last two values."""


def dims_in(text: str) -> frozenset[str]:
    """The dims in an expression, or an unknown size. Raises ValueError for text that is neither."""
    return (
        frozenset((text,)) if text == UNKNOWN_SIZE else frozenset(step for step in steps(text) if isinstance(step, str))
    )


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
    _read_expression(tokens, read, 0, 1)
    if tokens:
        raise ValueError(f"{tokens[-1]!r} is not expected there")
    if not any(isinstance(step, str) for step in read):
        raise ValueError("it names no dim")
    return tuple(read)


def _read_expression(tokens: list[str], steps: list[Step], depth: int, strength: int) -> None:
    """Moves an expression, whose operators have at least this strength, from the end of `tokens` to `steps`."""
    _read_value(tokens, steps, depth)
    while tokens and _STRENGTHS.get(tokens[-1], 0) >= strength:
        operation = tokens.pop()
        _read_expression(tokens, steps, depth, _STRENGTHS[operation] + 1)
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
            _read_expression(tokens, steps, depth + 1, 1)
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
