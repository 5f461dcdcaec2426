"""The pass: what works on a token alone runs on the real tokens `[1, N, ...]` of a padded batch `[batch, seq, ...]`.

The rows of real tokens are gathered where they enter such a part, once for all layers, and put back around attention
and at outputs. Rows of padding are zero in outputs; elsewhere they hold anything, which `padding` proves is not seen.
(ByteTransformer: Zhai et al., 2022, does it in kernels of its own; here it is two `Gather` in any ONNX runtime.)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.tokens.padding import Mixed, constants_of_padding, inputs_behind, picked_positions
from attnport.exporter.tokens.rows import (
    ELEMENTWISE,
    MOVES,
    SKIP_NORMS,
    Tokens,
    is_heavy,
    sizes_of,
    tokens_of,
    works_on_tokens,
)
from attnport.masks import MaskSpec
from attnport.onnx_graph import ir, passes

_SCOPE, _COUNT = "real_tokens/", "_tokens"
"""What the names of the nodes of one mask begin with, and what the name of the dim that counts its tokens ends with."""
_TURNED, _FLAT_TURNED = "_tokens_turned", "_tokens_flat_turned"
"""The same of rows that go position by position: `[N,1,...]`, `[N,...]`; others are `[1,N,...]`, `[N,...]`."""


def run_real_tokens(model: ir.Model, mask: MaskSpec, hiding: Collection[str]) -> str:
    """Runs the real tokens of one padding mask alone, in place.

    Args:
        model: A lowered graph as `infer_sizes` leaves it: equal sizes have equal names.
        mask: The padding mask: an input `[batch, seq]`.
        hiding: The names of the attention nodes whose mask hides the keys of padding.

    Returns:
        "" if it was done; otherwise why not, and the graph is as it was.
    """
    given = next((value for value in model.graph.inputs if value.name == mask.input), None)
    dims = sizes_of(given)
    if given is None or mask.carries != "mask" or mask.polarity not in ("keep", "hide") or len(dims) != 2:
        return f"{mask} is no mask of tokens, [batch, seq]"
    if not all(isinstance(dim, str) for dim in dims):
        return f"{mask.input} has a fixed size"
    tokens = tokens_of(model.graph, given)
    region = _region(model.graph, tokens)
    if not region:
        return (
            f"no product with weights computes each position of {mask.input} by itself, where padding could be left out"
        )
    if other := _not_hidden(model.graph, region, given, hiding):
        return f"{other} has the sizes of {mask.input}, but no attention hides its keys by that mask"
    kept = mask.polarity == "keep"
    constants = constants_of_padding(model.graph, tokens, given, kept)
    try:
        picked = picked_positions(model.graph, region, tokens, constants, hiding)
    except Mixed as err:
        return str(err)
    _Rewrite(model, tokens, given, kept, picked, constants).run(region)
    return ""


def _not_hidden(graph: ir.Graph, region: Collection[ir.Node], mask: ir.Value, hiding: Collection[str]) -> str:
    """An input with a row for each token that enters `region`, but of which no attention hides keys: its rows may all
    be real. "" where there is none, or no attention hides keys at all."""
    if not hiding:
        return ""
    entering = (value for node in region for value in node.inputs if value is None or value.producer() not in region)
    keys = (value for node in graph if node.name in hiding for value in node.inputs[1:2] or node.inputs[:1])
    rows = {str(value.name) for value in graph.inputs if sizes_of(value)[:2] == sizes_of(mask)} - {mask.name}
    return min(rows & set(inputs_behind(entering)) - set(inputs_behind(keys)), default="")


def _region(graph: ir.Graph, tokens: Tokens) -> dict[ir.Node, None]:
    """The nodes that work on each token alone, from the first one that is worth it."""
    region: dict[ir.Node, None] = {}
    for node in graph:
        if works_on_tokens(node, tokens):
            begun = any(value is not None and value.producer() in region for value in node.inputs)
            if begun or is_heavy(node):
                region[node] = None
    # Rows are put back before they are cut and moved for attention: once for several heads or parts.
    for node in reversed(list(region)):
        users = {user for value in node.outputs for user, _ in value.uses()}
        if node.op_type in MOVES and not users & region.keys() and not any(v.is_graph_output() for v in node.outputs):
            del region[node]
    return region


def dims_of_all(graph: ir.Graph, value: ir.Value) -> tuple[int | str | None, ...]:
    """A value's dims; of one with rows for real tokens alone, the dims that it has with rows for all."""
    dims = sizes_of(value)
    mask = _mask_of(graph, value)
    if mask is None:
        return dims
    sizes = sizes_of(mask)[::-1] if dims[0] == f"{mask.name}{_TURNED}" else sizes_of(mask)
    return (*sizes, *dims[2:]) if _has_two(mask, dims) else ("?", *dims[1:])


def _has_two(mask: ir.Value, dims: Sequence[int | str | None]) -> bool:
    """Whether rows for real tokens alone have an axis for items and one for tokens."""
    return dims[0] in (1, f"{mask.name}{_TURNED}")


def with_all_rows(model: ir.Model, value: ir.Value) -> ir.Value:
    """`value`; if it has rows for real tokens alone, a new value with a row for every token takes its name over."""
    mask = _mask_of(model.graph, value)
    if mask is None:
        return value
    made = {output.name: output for node in model.graph for output in node.outputs}
    build, (*_, last) = Builder(model), model.graph
    dims = sizes_of(value)
    two, turned = _has_two(mask, dims), dims[0] in (f"{mask.name}{_TURNED}", f"{mask.name}{_FLAT_TURNED}")
    build.before, rest = last, dims[2 if two else 1 :]
    rows = build.op("Reshape", value, build.const([-1, *rest], np.int64), name="rows")
    whole = build.op("Gather", rows, made[f"{_SCOPE}{mask.name}/back/output"], name="all", axis=0)
    if two or turned:
        sizes = build.op("Concat", build.op("Shape", mask, name="sizes"), build.const(np.array(rest, np.int64)), axis=0)
        whole = build.op("Reshape", whole, sizes, name="whole", shape=(*sizes_of(mask), *rest))
    if turned:
        perm = [1, 0, *range(2, 2 + len(rest))]
        whole = build.op("Transpose", whole, name="turned", perm=perm, shape=(*sizes_of(mask)[::-1], *rest))
    if turned and not two:
        shape = build.const([-1, *rest], np.int64)
        whole = build.op("Reshape", whole, shape, name="flat", shape=dims_of_all(model.graph, value))
    name, value.name = value.name, f"{value.name}/rows"
    whole.name, whole.type = name, value.type
    return whole


def _mask_of(graph: ir.Graph, value: ir.Value) -> ir.Value | None:
    """The padding mask whose real tokens a value has rows for; None if it has rows for all, or for no tokens."""
    counts = {f"{mask.name}{end}": mask for mask in graph.inputs for end in (_COUNT, _TURNED, _FLAT_TURNED)}
    return next((counts[dim] for dim in sizes_of(value)[:2] if isinstance(dim, str) and dim in counts), None)


class _Rewrite:
    """Writes the graph for real tokens; nodes of the region stay, with other operands."""

    def __init__(
        self,
        model: ir.Model,
        tokens: Tokens,
        mask: ir.Value,
        kept: bool,
        picked: Collection[int],
        constants: dict[ir.Value, float],
    ) -> None:
        self.model, self.graph, self.tokens, self.mask = model, model.graph, tokens, mask
        self.constants = constants
        self.build = Builder(model)
        self.build.scope = f"{_SCOPE}{mask.name}"
        self.count = f"{mask.name}{_COUNT}"
        self.places = f"{tokens.batch}*{tokens.seq}"  # one name is one size: a model may have several masks
        self.build.before = model.graph[0]
        self._write_places(kept, picked)

    def _write_places(self, kept: bool, picked: Collection[int]) -> None:
        """Which rows of `[batch*seq]` are computed, and for each of these the row of the result to take."""
        build, int64 = self.build, ir.DataType.INT64
        batch, seq = self.tokens.batch, self.tokens.seq
        real = build.cast(self.mask, ir.DataType.BOOL, "real")
        if not kept:
            real = build.op("Not", real, name="real", shape=[batch, seq])
        counted = build.cast(real, int64, "counted")
        most = build.op("ReduceMax", counted, build.const([1], np.int64), name="any", keepdims=1, shape=[batch, 1])
        # An item without a real token is computed whole: what the module gives there is defined by the mask contract.
        empty = build.op("Equal", most, build.const(0, np.int64), name="empty", dtype=ir.DataType.BOOL,
                         shape=[batch, 1])  # fmt: skip
        rows = build.op("Or", real, empty, name="rows", dtype=ir.DataType.BOOL, shape=[batch, seq])
        if picked:
            size = build.op("Squeeze", build.size(self.mask, 1), name="seq", shape=[])
            at = build.op("Range", build.const(0, np.int64), size, build.const(1, np.int64), name="at", shape=[seq])
            for position in sorted(picked):
                first = build.op("Equal", at, build.const(position, np.int64), name=f"at_{position}",
                                 dtype=ir.DataType.BOOL, shape=[seq])  # fmt: skip
                rows = build.op("Or", rows, first, name="rows", shape=[batch, seq])
        self.rows = rows
        flat = build.op("Reshape", rows, build.const([-1], np.int64), name="flat", shape=[self.places])
        self.flat_rows = flat
        found = build.op("NonZero", flat, name="found", dtype=int64, shape=[1, self.count])
        self.taken = build.op("Squeeze", found, build.const([0], np.int64), name="taken", shape=[self.count])
        ones = build.op("Cast", flat, name="ones", dtype=int64, to=int64)
        upto = build.op("CumSum", ones, build.const(0, np.int64), name="upto")
        last = build.op("Sub", upto, build.const(1, np.int64), name="last")
        self.back = build.op("Max", last, build.const(0, np.int64), name="back")
        self.sizes = build.op("Shape", self.mask, name="sizes", dtype=int64, shape=[2])

    def run(self, region: Collection[ir.Node]) -> None:
        """Changes the operands of the region's nodes, and what reads their results."""
        entered: dict[Any, ir.Value] = {}
        for node in region:
            self.build.before = node
            for at, value in enumerate(node.inputs):
                if value is not None and value.producer() not in region and self._is_along(node, at, value):
                    like = node.inputs[0] if node.op_type == "Transpose" else node.outputs[0]
                    assert like is not None
                    turned = like in self.tokens.turned
                    key = value, len(sizes_of(like)) - len(sizes_of(value)), self.tokens.lead(like), turned
                    if key not in entered:
                        entered[key] = (self._entered_turned if turned else self._entered)(value, like)
                    node.replace_input_with(at, entered[key])
            if node.op_type == "Reshape":
                sizes = [-1 if isinstance(dim, str) else dim for dim in self._dims_of_rows(node.outputs[0])]
                node.replace_input_with(1, self.build.const(sizes, np.int64))
        for node in region:
            self.build.before = node
            self._put_back(node, region)
        for value in list(self.graph.outputs):
            made_by = value.producer()
            floats = value.dtype is not None and value.dtype.is_floating_point()
            if made_by is not None and floats and sizes_of(value)[:2] == (self.tokens.batch, self.tokens.seq):
                self._zero_padding(value, made_by)
        passes.TopologicalSortPass()(self.model)

    def _is_along(self, node: ir.Node, at: int, value: ir.Value) -> bool:
        """Whether an operand has other elements for other tokens or items."""
        if node.op_type == "Gather":
            return at == 1
        if node.op_type not in ELEMENTWISE:
            return self.tokens.lead(value) > 0 and (at == 0 or node.op_type in ("Concat", *SKIP_NORMS))
        like = node.outputs[0]
        along = len(sizes_of(value)) - (len(sizes_of(like)) - self.tokens.lead(like))
        return any(isinstance(dim, str) for dim in sizes_of(value)[: max(along, 0)])

    def _entered(self, value: ir.Value, like: ir.Value) -> ir.Value:
        """`value` for the rows that are computed, which are `[1, N, ...]` or, if flat, `[N, ...]`."""
        build, dims = self.build, sizes_of(value)
        lead = self.tokens.lead(value)
        if lead == 1:
            return build.op("Gather", value, self.taken, name="entered", shape=[self.count, *dims[1:]], axis=0)
        if lead == 0 and len(dims) < len(sizes_of(like)):  # [seq, ...], the same for every item
            return build.op("Gather", value, self._column(), name="entered", shape=[self.count, *dims[1:]], axis=0)
        rest, shape = dims[2:], [1, self.count, *dims[2:]]
        if dims[0] == 1:
            return build.op("Gather", value, self._column(), name="entered", shape=shape, axis=1)
        if dims[1] == 1:
            rows = build.op("Gather", value, self._row(), name="rows", shape=[self.count, 1, *rest], axis=0)
            return build.op("Reshape", rows, build.const([1, -1, *rest], np.int64), name="entered", shape=shape)
        flat = build.op("Reshape", value, build.const([-1, *rest], np.int64), name="flat", shape=[self.places, *rest])
        rows = build.op("Gather", flat, self.taken, name="rows", shape=[self.count, *rest], axis=0)
        return build.op("Unsqueeze", rows, build.const([0], np.int64), name="entered", shape=shape)

    def _entered_turned(self, value: ir.Value, like: ir.Value) -> ir.Value:
        """As `_entered`, for rows that go position by position: `[N, 1, ...]` or, if flat, `[N, ...]`."""
        build, dims, lead = self.build, sizes_of(value), self.tokens.lead(value)
        if lead == 2:
            shape = build.const([-1, *dims[2:]], np.int64)
            value = build.op("Reshape", value, shape, name="flat", shape=[self.places, *dims[2:]])
        if lead:
            rest, at, axis = dims[lead:], self._taken_turned(), 0
        elif len(dims) < len(sizes_of(like)):  # [batch, ...], the same at every position
            rest, at, axis = dims[1:], self._row(), 0
        else:  # [1, batch, ...] or [seq, 1, ...]
            rest, at, axis = dims[2:], *((self._row(), 1) if dims[0] == 1 else (self._column(), 0))
        rows = build.op("Gather", value, at, name="entered", axis=axis)
        sizes = [self.count, *rest] if self.tokens.lead(like) == 1 else [self.count, 1, *rest]
        shape = build.const([-1, *sizes[1:]], np.int64)
        return build.op("Reshape", rows, shape, name="entered", shape=sizes)

    def _taken_turned(self) -> ir.Value:
        """The rows of `[seq*batch]` that are computed, in the order of `taken`."""

        def make() -> ir.Value:
            first = self.build.op(
                "Mul", self._column(), self.build.size(self.mask, 0), name="turned", shape=[self.count]
            )
            return self.build.op("Add", first, self._row(), name="turned", shape=[self.count])

        return self.build.once("taken_turned", make)

    def _turned(self, places: ir.Value) -> ir.Value:
        """What `[batch*seq]` holds of each place, as `[seq*batch]`."""

        def make() -> ir.Value:
            both = self.build.op("Reshape", places, self.sizes, name="turned")
            turned = self.build.op("Transpose", both, name="turned", perm=[1, 0])
            return self.build.op(
                "Reshape", turned, self.build.const([-1], np.int64), name="turned", shape=[self.places]
            )

        return self.build.once(("turned", places), make)

    def _column(self) -> ir.Value:
        """The position of each row that is computed."""
        return self.build.once("column", lambda: self._place("Mod"))

    def _row(self) -> ir.Value:
        """The item of each row that is computed."""
        return self.build.once("row", lambda: self._place("Div"))

    def _place(self, op_type: str) -> ir.Value:
        return self.build.op(op_type, self.taken, self.build.size(self.mask, 1), name="place", shape=[self.count])

    def _put_back(self, node: ir.Node, region: Collection[ir.Node]) -> None:
        """Puts the rows of a result back for what reads it outside of the region."""
        for value in node.outputs:
            outside = [(user, at) for user, at in value.uses() if user not in region]
            dims, is_output = sizes_of(value), value.is_graph_output()
            if outside or is_output:
                whole = self._whole(value, dims, zero=is_output, turned=value in self.tokens.turned)
                for user, at in outside:
                    user.replace_input_with(at, whole)
                if is_output:
                    self._give(value, whole)
            value.shape = ir.Shape(list(self._dims_of_rows(value)))

    def _dims_of_rows(self, value: ir.Value) -> tuple[int | str | None, ...]:
        """The dims of a value, of all tokens so far, with rows for real tokens alone."""
        lead, turned, name = self.tokens.lead(value), value in self.tokens.turned, self.mask.name
        rest = sizes_of(value)[lead:]
        if lead == 1:
            return (f"{name}{_FLAT_TURNED if turned else _COUNT}", *rest)
        return (f"{name}{_TURNED}", 1, *rest) if turned else (1, self.count, *rest)

    def _give(self, value: ir.Value, instead: ir.Value) -> None:
        """Makes another value the output in place of `value`, under its name."""
        name, value.name = value.name, f"{value.name}/rows"
        instead.name, instead.shape, instead.type = name, value.shape, value.type
        for at, output in enumerate(self.graph.outputs):
            if output is value:
                self.graph.outputs[at] = instead

    def _zero_padding(self, value: ir.Value, made_by: ir.Node) -> None:
        """Sets the rows of padding of an output `[batch, seq, ...]` to zero, unless they are known to be."""
        self.build.before = made_by
        turned, more = value in self.tokens.turned, len(sizes_of(value)) - 2
        real = self.build.once(("real", 2, more, turned), lambda: self._real(2, more, turned))
        if made_by.op_type == "Where" and made_by.inputs[0] is real:
            return
        zero = self.build.like(0.0, value)
        self._give(value, self.build.op("Where", real, value, zero, name="zeroed", dtype=value.dtype))

    def _whole(self, value: ir.Value, dims: tuple[int | str | None, ...], *, zero: bool, turned: bool) -> ir.Value:
        """A result `[batch, seq, ...]`; its rows of padding hold their known number, zero, or anything."""
        build, lead = self.build, self.tokens.lead(value)
        rest, rows = dims[lead:], value
        if lead == 2:
            rows = build.op(
                "Reshape", value, build.const([-1, *rest], np.int64), name="rows", shape=[self.count, *rest]
            )
        back = self._turned(self.back) if turned else self.back
        whole = build.op("Gather", rows, back, name="all", shape=[self.places, *rest], axis=0)
        if lead == 2:
            whole = build.op("Reshape", whole, self._sizes(rest, turned), name="whole", shape=dims)
        number = self.constants.get(value, 0.0 if zero else None)
        if number is None:
            return whole
        real = build.once(("real", lead, len(rest), turned), lambda: self._real(lead, len(rest), turned))
        return build.op("Where", real, whole, build.like(number, value), name="filled", dtype=value.dtype, shape=dims)

    def _sizes(self, rest: tuple[int | str | None, ...], turned: bool) -> ir.Value:
        """The sizes `[batch, seq, *rest]`, or turned."""
        build = self.build

        def make() -> ir.Value:
            first = [build.size(self.mask, 1), build.size(self.mask, 0)] if turned else [self.sizes]
            return build.op("Concat", *first, build.const(np.array(rest, np.int64)), name="sizes", axis=0)

        return build.once((rest, turned), make)

    def _real(self, lead: int, more: int, turned: bool) -> ir.Value:
        """Which rows are computed, with as many axes of size 1 behind."""
        axes = self.build.const([*range(lead, lead + more)], np.int64)
        rows = self.rows if lead == 2 else self.flat_rows
        if turned:
            rows = self._turned(self.flat_rows) if lead == 1 else self.build.op("Transpose", self.rows, perm=[1, 0])
        return self.build.op("Unsqueeze", rows, axes, name="rows") if more else rows
