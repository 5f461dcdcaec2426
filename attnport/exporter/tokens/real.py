"""The pass: what works on a token alone runs on the real tokens `[1, N, ...]` of a padded batch `[batch, seq, ...]`.

The rows of real tokens are gathered where they enter such a part, once for all layers, and put back around attention
and at outputs. Rows of padding are zero in outputs; elsewhere they hold anything, which `padding` proves is not seen.
(ByteTransformer: Zhai et al., 2022, does it in kernels of its own; here it is two `Gather` in any ONNX runtime.)
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.tokens.padding import Mixed, constants_of_padding, picked_positions
from attnport.exporter.tokens.rows import (
    ELEMENTWISE,
    MOVES,
    SKIP_NORMS,
    Tokens,
    dims_of,
    is_heavy,
    tokens_of,
    works_on_tokens,
)
from attnport.masks.spec import MaskSpec

if TYPE_CHECKING:
    import onnx_ir as ir

_SCOPE, _COUNT = "real_tokens/", "_tokens"
"""What the names of the nodes of one mask begin with, and what the name of the dim that counts its tokens ends with."""


def run_real_tokens(model: ir.Model, mask: MaskSpec, hiding: Collection[str]) -> str:
    """Runs the real tokens of one padding mask alone, in place.

    Args:
        model: A lowered graph with the standard's names of dims on its values.
        mask: The padding mask: an input `[batch, seq]`.
        hiding: The names of the attention nodes whose mask hides the keys of padding.

    Returns:
        "" if it was done; otherwise why not, and the graph is as it was.
    """
    given = next((value for value in model.graph.inputs if value.name == mask.input), None)
    dims = dims_of(given)
    if given is None or mask.carries != "mask" or mask.polarity not in ("keep", "hide") or len(dims) != 2:
        return f"{mask} is no mask of tokens, [batch, seq]"
    if not all(isinstance(dim, str) for dim in dims):
        return f"{mask.input} has a fixed size"
    tokens = tokens_of(model.graph, given)
    region = _region(model.graph, tokens)
    if not region:
        return f"nothing works on each token of {mask.input} alone"
    kept = mask.polarity == "keep"
    constants = constants_of_padding(model.graph, tokens, given, kept)
    try:
        picked = picked_positions(model.graph, region, tokens, constants, hiding)
    except Mixed as err:
        return str(err)
    _Rewrite(model, tokens, given, kept, picked, constants).run(region)
    return ""


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
    dims = dims_of(value)
    mask = _mask_of(graph, value)
    if mask is None:
        return dims
    return (*dims_of(mask), *dims[2:]) if dims[0] == 1 else ("?", *dims[1:])


def with_all_rows(model: ir.Model, value: ir.Value) -> ir.Value:
    """`value`; if it has rows for real tokens alone, a new value with a row for every token takes its name over."""
    mask = _mask_of(model.graph, value)
    if mask is None:
        return value
    made = {output.name: output for node in model.graph for output in node.outputs}
    build, (*_, last) = Builder(model), model.graph
    build.before, rest = last, dims_of(value)[2 if dims_of(value)[0] == 1 else 1 :]
    rows = build.op("Reshape", value, build.const([-1, *rest], np.int64), name="rows")
    whole = build.op("Gather", rows, made[f"{_SCOPE}{mask.name}/back/output"], name="all", axis=0)
    if dims_of(value)[0] == 1:
        sizes = build.op("Concat", build.op("Shape", mask, name="sizes"), build.const(np.array(rest, np.int64)), axis=0)
        whole = build.op("Reshape", whole, sizes, name="whole", shape=dims_of_all(model.graph, value))
    name, value.name = value.name, f"{value.name}/rows"
    whole.name, whole.type = name, value.type
    return whole


def _mask_of(graph: ir.Graph, value: ir.Value) -> ir.Value | None:
    """The padding mask whose real tokens a value has rows for; None if it has rows for all, or for no tokens."""
    counts = {f"{mask.name}{_COUNT}": mask for mask in graph.inputs}
    return next((counts[dim] for dim in dims_of(value)[:2] if isinstance(dim, str) and dim in counts), None)


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
        import onnx_ir as ir

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
        import onnx_ir.passes.common as passes

        entered: dict[Any, ir.Value] = {}
        for node in region:
            self.build.before = node
            for at, value in enumerate(node.inputs):
                if value is not None and value.producer() not in region and self._is_along(node, at, value):
                    key = value, len(dims_of(node.outputs[0])) - len(dims_of(value)), self.tokens.lead(node.outputs[0])
                    if key not in entered:
                        entered[key] = self._entered(value, node.outputs[0])
                    node.replace_input_with(at, entered[key])
            if node.op_type == "Reshape":
                lead = self.tokens.lead(node.outputs[0])
                sizes = [*[1] * (lead - 1), -1, *dims_of(node.outputs[0])[lead:]]
                node.replace_input_with(1, self.build.const(sizes, np.int64))
        for node in region:
            self.build.before = node
            self._put_back(node, region)
        for value in list(self.graph.outputs):
            made_by = value.producer()
            floats = value.dtype is not None and value.dtype.is_floating_point()
            if made_by is not None and floats and dims_of(value)[:2] == (self.tokens.batch, self.tokens.seq):
                self._zero_padding(value, made_by)
        passes.TopologicalSortPass()(self.model)

    def _is_along(self, node: ir.Node, at: int, value: ir.Value) -> bool:
        """Whether an operand has other elements for other tokens or items."""
        if node.op_type == "Gather":
            return at == 1
        if node.op_type not in ELEMENTWISE:
            return self.tokens.lead(value) > 0 and (at == 0 or node.op_type in ("Concat", *SKIP_NORMS))
        like = node.outputs[0]
        along = len(dims_of(value)) - (len(dims_of(like)) - self.tokens.lead(like))
        return any(isinstance(dim, str) for dim in dims_of(value)[: max(along, 0)])

    def _entered(self, value: ir.Value, like: ir.Value) -> ir.Value:
        """`value` for the rows that are computed, which are `[1, N, ...]` or, if flat, `[N, ...]`."""
        build, dims = self.build, dims_of(value)
        lead = self.tokens.lead(value)
        if lead == 1:
            return build.op("Gather", value, self.taken, name="entered", shape=[self.count, *dims[1:]], axis=0)
        if lead == 0 and len(dims) < len(dims_of(like)):  # [seq, ...], the same for every item
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
        import onnx_ir as ir

        for value in node.outputs:
            outside = [(user, at) for user, at in value.uses() if user not in region]
            dims, is_output = dims_of(value), value.is_graph_output()
            if outside or is_output:
                whole = self._whole(value, dims, zero=is_output)
                for user, at in outside:
                    user.replace_input_with(at, whole)
                if is_output:
                    self._give(value, whole)
            lead = self.tokens.lead(value)
            value.shape = ir.Shape([*[1] * (lead - 1), self.count, *dims[lead:]])

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
        real = self.build.once(("real", 2, len(dims_of(value)) - 2), lambda: self._real(2, len(dims_of(value)) - 2))
        if made_by.op_type == "Where" and made_by.inputs[0] is real:
            return
        zero = self.build.like(0.0, value)
        self._give(value, self.build.op("Where", real, value, zero, name="zeroed", dtype=value.dtype))

    def _whole(self, value: ir.Value, dims: tuple[int | str | None, ...], *, zero: bool) -> ir.Value:
        """A result `[batch, seq, ...]`; its rows of padding hold their known number, zero, or anything."""
        build, lead = self.build, self.tokens.lead(value)
        rest, rows = dims[lead:], value
        if lead == 2:
            rows = build.op(
                "Reshape", value, build.const([-1, *rest], np.int64), name="rows", shape=[self.count, *rest]
            )
        whole = build.op("Gather", rows, self.back, name="all", shape=[self.places, *rest], axis=0)
        if lead == 2:
            whole = build.op("Reshape", whole, self._sizes(rest), name="whole", shape=dims)
        number = self.constants.get(value, 0.0 if zero else None)
        if number is None:
            return whole
        real = build.once(("real", lead, len(rest)), lambda: self._real(lead, len(rest)))
        return build.op("Where", real, whole, build.like(number, value), name="filled", dtype=value.dtype, shape=dims)

    def _sizes(self, rest: tuple[int | str | None, ...]) -> ir.Value:
        """The sizes `[batch, seq, *rest]`."""
        build = self.build
        more = build.const(np.array(rest, np.int64))
        return build.once(rest, lambda: build.op("Concat", self.sizes, more, name="sizes", axis=0))

    def _real(self, lead: int, more: int) -> ir.Value:
        """Which rows are computed, with as many axes of size 1 behind."""
        axes = self.build.const([*range(lead, lead + more)], np.int64)
        rows = self.rows if lead == 2 else self.flat_rows
        return self.build.op("Unsqueeze", rows, axes, name="rows") if more else rows
