"""Follows what stands in the rows of padding through a graph: where it goes if these rows change, and where it cannot.

Rows of padding of a result that is computed for real tokens alone hold anything. The pass is right if no row of a real
token, and nothing that is not of tokens, can see them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnport.exporter.fusion.indices import ROW, Located
from attnport.exporter.fusion.kinds import hidden_by, hides_padding
from attnport.exporter.fusion.recognise import Recognised
from attnport.exporter.naming import module_of, upstream
from attnport.exporter.tokens.rows import (
    DOMAINS,
    ELEMENTWISE,
    NORMS,
    REDUCTIONS,
    SOFTMAXES,
    Tokens,
    sizes_of,
    tokens_of,
)
from attnport.masks import MaskSpec
from attnport.onnx_graph import Dim, attribute, constant_of, ir, node_axes, node_axis, perm_of, scalar


class Axes(NamedTuple):
    """Where items and tokens are among the axes of a value whose rows of padding hold anything; both the same if flat.

    Attributes:
        turned: Of one axis of both: whether its rows go position by position.
        heads: How many heads are merged behind each item, in its axis.
    """

    item: int
    token: int
    turned: bool = False
    heads: int = 1

    def moved(self, item: int, token: int) -> Axes:
        """The same elsewhere."""
        return self._replace(item=item, token=token)


ATTENTIONS = {"Attention", "MultiHeadAttention", "GroupQueryAttention"}
_MOVES = {"Tile", "Transpose", "Unsqueeze", "Squeeze", "Reshape", "Identity", "Cast"}
_FIRST = 8
"""Rows at the first so many positions can be picked out, as the one of [CLS] is; they are computed even if padding."""


class Mixed(Exception):
    """A node lets rows of padding be seen elsewhere; the message says which."""


def constants_of_padding(graph: ir.Graph, tokens: Tokens, mask: ir.Value, kept: bool) -> dict[ir.Value, float]:
    """What the values `[batch, seq, ...]` hold in every row of padding, where that is one number.

    Args:
        mask: The padding mask; it is not zero for tokens (`kept`) or for padding.
    """
    known: dict[ir.Value, float] = {}
    if kept:
        known[mask] = 0.0
    elif mask.dtype == ir.DataType.BOOL:
        known[mask] = 1.0
    for node in graph:
        output = node.outputs[0]
        if node.domain == "" and tokens.lead(output) == 2:
            found = _at_padding(node, known)
            if found is not None:
                known[output] = found
    return known


def _at_padding(node: ir.Node, known: Mapping[ir.Value, float]) -> float | None:
    """The number in a result's rows of padding."""
    values = [_number(value, known) for value in node.inputs]
    if node.op_type in ("Identity", "Unsqueeze", "Squeeze", "Expand"):
        return values[0]
    if node.op_type == "Cast":
        to_bool = node.outputs[0].dtype is not None and node.outputs[0].dtype.name == "BOOL"
        return values[0] if values[0] is None or not to_bool else float(values[0] != 0)
    if node.op_type == "Where":
        return None if values[0] is None else values[1] if values[0] else values[2]
    if node.op_type == "Mul" and 0.0 in values:
        return 0.0
    compute = _COMPUTED.get(node.op_type)
    if compute is None:
        return None
    given = [value for value in values if value is not None]
    return float(compute(*given)) if len(given) == len(values) else None


def _number(value: ir.Value | None, known: Mapping[ir.Value, float]) -> float | None:
    if value is not None and value in known:
        return known[value]
    number = scalar(value)
    return None if number is None else float(number)


_COMPUTED: dict[str, Callable[..., float]] = {
    "Not": lambda a: not a,
    "And": lambda a, b: a and b,
    "Or": lambda a, b: a or b,
    "Equal": lambda a, b: a == b,
    "Greater": lambda a, b: a > b,
    "GreaterOrEqual": lambda a, b: a >= b,
    "Less": lambda a, b: a < b,
    "LessOrEqual": lambda a, b: a <= b,
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Neg": lambda a: -a,
}


def picked_positions(
    graph: ir.Graph,
    region: Collection[ir.Node],
    tokens: Tokens,
    constant: Collection[ir.Value],
    hiding: Collection[str],
) -> set[int]:
    """Proves that nothing sees the rows of padding of what `region` computes.

    Args:
        region: The nodes that are to run for real tokens alone.
        constant: Values with one known number in every row of padding, whatever stands in those of other values. The
            number is written there.
        hiding: The names of the attention nodes whose mask hides the keys of padding.

    Returns:
        Positions whose rows are picked out and so have to be computed, padding or not.

    Raises:
        Mixed: it cannot be proved.
    """
    walk = _Walk(tokens, hiding)
    for node in graph:
        if node in region:
            walk.check_operands(node, region)
            spread = {value: Axes(*tokens.axes(value)) for value in node.outputs}
        else:
            axes = walk.through(node)
            spread = {} if axes is None else dict.fromkeys(node.outputs, axes)
        for value, at in spread.items():
            if value in constant:
                continue
            walk.reach[value] = at
            if any(user.graph is not graph for user, _ in value.uses()):
                raise Mixed(f"{_place(node)} is read inside of a branch or loop")
    for value in graph.outputs:
        axes, dims = walk.reach.get(value), sizes_of(value)
        if axes is not None and not (walk.are_tokens(dims, axes) and axes.heads == 1):
            raise Mixed(f"output {value.name} has no row for each token")
    return walk.picked


def seen_without_key(graph: ir.Graph, attentions: Sequence[Recognised], masks: Collection[MaskSpec]) -> dict[str, str]:
    """The attentions whose rows without an allowed key may be seen by other rows, as far as that is not ruled out.

    Such a row may be set to zero only where nothing sees it, unless the module gives zero (or NaN) there too.

    Args:
        graph: Before attentions are written, as `infer_sizes` leaves it: equal sizes have equal names.

    Returns:
        By name of the attention, why, and what may be done about it.
    """
    inputs = {value.name: value for value in graph.inputs}
    found: dict[str, str] = {}
    for attention in attentions:
        mask = attention.mask
        if mask.gives == "zero" or attention.sink is not None:
            continue
        keeps = [factor.keep for factor in mask.factors]
        behind = {name: value for value in hidden_by(keeps) for name in inputs_behind([value])}
        if undeclared := sorted(behind.keys() - {spec.input for spec in masks}):
            name = undeclared[0]
            found[attention.name] = (
                f"{name} is not declared, so it may hide them all; if it is a mask of padding, export it as "
                f"{name}=...:padding"
                if behind[name].is_graph_input()
                else f"a mask that is computed from {name} may hide them all"
            )
            continue
        if mask.empty == "none":
            continue
        padding = [spec for spec in masks if spec.input in inputs and hides_padding(keeps, spec)]
        if mask.empty == "any" or len(padding) != 1:
            found[attention.name] = "the mask may hide all keys of a real token"
            continue
        tokens = tokens_of(graph, inputs[padding[0].input])
        rows = _rows_of(attention, attention.q)
        queries = sizes_of(attention.q.value)[rows.token] if rows is not None else tokens.seq
        if isinstance(queries, str) and queries != tokens.seq:  # behind a cache
            tokens = Tokens(tokens.batch, queries)
        hiding = {
            other.last
            for other in attentions
            if hides_padding([factor.keep for factor in other.mask.factors], padding[0])
        }
        walk = _Walk(tokens, ())
        try:
            walk.from_output(graph, attention, {other.last: other for other in attentions}, hiding)
        except Mixed as err:
            found[attention.name] = f"other rows may read it, as {err}"
    return found


def inputs_behind(values: Iterable[ir.Value | None]) -> Iterator[str]:
    """The names of the graph's inputs whose elements values are computed from; to read a size does not count."""
    walk = upstream(values, lambda _, node: node.op_type not in ("Shape", "Size"))
    return (str(value.name) for value in walk if value.is_graph_input())


def _place(node: ir.Node) -> str:
    module = module_of(node)
    return f"{node.op_type} in {module}" if module else f"{node.op_type} {node.name}"


class _Walk:
    """The values that hold anything in rows of padding, node by node."""

    def __init__(self, tokens: Tokens, hiding: Collection[str]) -> None:
        self.tokens = tokens
        self.hiding = hiding
        self.reach: dict[ir.Value, Axes] = {}
        self.picked: set[int] = set()
        self.joined: set[ir.Value] = set()
        """Keys and values of a cache with new ones behind, of which those of padding hold anything."""

    def check_operands(self, node: ir.Node, region: Collection[ir.Node]) -> None:
        """Raises Mixed where an operand from outside of the region has its tokens elsewhere."""
        for value in node.inputs:
            if value is None or value.producer() in region or value not in self.reach:
                continue
            if self.reach[value] != (*self.tokens.axes(value), 1):
                raise Mixed(f"{_place(node)} has an operand whose tokens are along other axes")

    def through(self, node: ir.Node) -> Axes | None:
        """Where a node's results hold anything; None = nowhere."""
        given = {at: self.reach[value] for at, value in enumerate(node.inputs) if value in self.reach}
        if not given or node.op_type in ("Shape", "Size"):
            return None
        rule = getattr(self, f"_{_RULES.get(node.op_type, '')}", None)
        if rule is None or node.domain not in DOMAINS:
            raise Mixed(f"{_place(node)} may mix tokens")
        axes: Axes | None = rule(node, given)
        return axes

    def from_output(
        self, graph: ir.Graph, start: Recognised, attentions: Mapping[ir.Node, Recognised], hiding: Collection[ir.Node]
    ) -> None:
        """Follows the rows of padding of an attention's output; each attention of `attentions` is one step.

        Args:
            attentions: By its last node.
            hiding: Those that hide the keys of padding.

        Raises:
            Mixed: other rows see them.
        """
        within = {node: _nodes_within(graph, each) for node, each in attentions.items()}
        inside = {node for nodes in within.values() for node in nodes}
        for node in graph:
            if node is start.last:
                axes = _rows_of(start, start.output)
                if axes is None or not self.are_tokens(sizes_of(start.output.value), axes):
                    raise Mixed(f"{_place(node)} has rows in an order that is not known")
                self.reach[start.output.value] = axes
            elif node in attentions:
                self._pass_attention(attentions[node], within[node], hiding)
            elif node in inside or self._joins_cache(node) or (start.mask.last and self._takes_last(node)):
                pass
            elif (axes := self.through(node)) is not None:
                self.reach.update(dict.fromkeys(node.outputs, axes))
            if any(
                user.graph is not graph for value in node.outputs if value in self.reach for user, _ in value.uses()
            ):
                raise Mixed(f"{_place(node)} is read inside of a branch or loop")
        for value in graph.outputs:
            if value in self.reach and not self.are_tokens(sizes_of(value), self.reach[value]):
                raise Mixed(f"output {value.name} has no row for each token")
        if self.picked:
            raise Mixed(f"rows at position {min(self.picked)} are picked out")

    def _joins_cache(self, node: ir.Node) -> bool:
        """Whether a node joins new keys or values to those of a cache: only attentions that hide padding may read them,
        and the next step, whose mask hides it too."""
        if self.joined.intersection(node.inputs) and node.op_type not in ("Shape", "Size"):
            raise Mixed(f"{_place(node)} reads keys of padding in a cache")
        given = {self.reach[value] for value in node.inputs if value in self.reach}
        if node.op_type != "Concat" or len(given) != 1:
            return False
        (axes,) = given
        joins = axes.heads == 1 and node_axis(node, len(sizes_of(node.outputs[0])), 0) == axes.token != axes.item
        self.joined.update(node.outputs if joins else ())
        return joins

    def _takes_last(self, node: ir.Node) -> bool:
        """Whether a node takes the rows of the last token alone, `x[:, -1]`."""
        value = node.inputs[0] if node.inputs else None
        if node.op_type not in ("Gather", "Slice") or value is None or value not in self.reach:
            return False
        rank, (item, token, *_) = len(sizes_of(value)), self.reach[value]
        axes = [node_axis(node, rank, 0)] if node.op_type == "Gather" else node_axes(node, rank, 3)
        first = constant_of(node.inputs[1])
        return axes == [token] and token != item and first is not None and first.reshape(-1).tolist() == [-1]

    def _pass_attention(self, attention: Recognised, within: Collection[ir.Node], hiding: Collection[ir.Node]) -> None:
        """Padded queries give padded rows; keys and values of padding have to be hidden by the mask."""
        node = attention.last
        reached = (self.reach.keys() | self.joined) & _operands_of(attention)
        if not reached:
            return
        steps = set(reached)
        for inner in within:
            if inner is node or not steps.intersection(inner.inputs):
                continue
            steps.update(inner.outputs)
            for value in inner.outputs:
                if value.is_graph_output() or any(user not in within for user, _ in value.uses()):
                    raise Mixed(f"{_place(node)} has steps that are used elsewhere too")
        if reached - {attention.q.value, attention.k.value, attention.v.value}:
            raise self._fail(node)
        if {attention.k.value, attention.v.value} & reached and node not in hiding:
            raise Mixed(f"{_place(node)} does not hide the keys of padding")
        if attention.q.value in self.joined:
            raise self._fail(node)
        if attention.q.value in reached:
            query, output = _rows_of(attention, attention.q), _rows_of(attention, attention.output)
            if query != self.reach[attention.q.value] or output is None:
                raise self._fail(node)
            self.reach[attention.output.value] = output

    def are_tokens(self, dims: Sequence[Dim], axes: Axes) -> bool:
        """Whether the dims at these axes are those of items and tokens."""
        if not all(0 <= axis < len(dims) for axis in axes[:2]):
            return False
        item, token = dims[axes.item], dims[axes.token]
        if axes.heads > 1:
            return token == self.tokens.seq and not isinstance(item, int)
        return (item, token) == (self.tokens.batch, self.tokens.seq) or (
            axes.item == axes.token and bool(self.tokens.flat) and item == self.tokens.flat
        )

    def _fail(self, node: ir.Node) -> Mixed:
        if node.op_type in {*_MOVES, "Concat", "Gather", "Slice", "Split"}:  # these compute nothing
            return Mixed(f"{_place(node)} gives tokens other places, where they are not followed")
        if _RULES.get(node.op_type) == "elementwise":
            return Mixed(f"{_place(node)} has tokens at places where they are not followed")
        return Mixed(f"{_place(node)} mixes tokens")

    def _attention(self, node: ir.Node, given: Mapping[int, Axes]) -> Axes | None:
        """Padded queries give padded rows; keys and values of padding are hidden by the mask."""
        seq = 2 if len(sizes_of(node.inputs[0])) == 4 else 1
        if set(given) - {0, 1, 2} or any(axes != Axes(0, seq) for axes in given.values()):
            raise self._fail(node)
        if {1, 2} & set(given) and node.name not in self.hiding:
            raise Mixed(f"{_place(node)} does not hide the keys of padding")
        if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
            raise Mixed(f"{_place(node)} gives its keys back")
        return given.get(0)

    def _elementwise(self, node: ir.Node, given: Mapping[int, Axes]) -> Axes:
        rank = len(sizes_of(node.outputs[0]))
        found = set()
        for at, axes in given.items():
            more = rank - len(sizes_of(node.inputs[at]))
            found.add(axes.moved(axes.item + more, axes.token + more))
        return self._one(node, found, node.outputs[0])

    def _one(self, node: ir.Node, found: set[Axes], value: ir.Value) -> Axes:
        """The only place of the tokens, which has to be theirs by its dims too."""
        dims = sizes_of(value)
        for axes in found if len(found) == 1 else ():
            if self.are_tokens(dims, axes):
                return axes
        raise self._fail(node)

    def _move(self, node: ir.Node, given: Mapping[int, Axes]) -> Axes:
        before, after = sizes_of(node.inputs[0]), sizes_of(node.outputs[0])
        if set(given) != {0}:
            raise self._fail(node)
        axes = given[0]
        item, token, *_ = axes
        if node.op_type == "Transpose":
            perm = perm_of(node, len(before))
            return self._one(node, {axes.moved(perm.index(item), perm.index(token))}, node.outputs[0])
        if node.op_type == "Unsqueeze":
            new = node_axes(node, len(after)) or []
            left = [axis for axis in range(len(after)) if axis not in new]
            return self._one(node, {axes.moved(left[item], left[token])}, node.outputs[0])
        if node.op_type == "Squeeze":
            gone = node_axes(node, len(before)) or []
            left = [axis for axis in range(len(before)) if axis not in gone]
            return self._one(node, {axes.moved(left.index(item), left.index(token))}, node.outputs[0])
        if node.op_type == "Tile" and not _once(constant_of(node.inputs[1]), (item, token)):
            raise self._fail(node)
        if node.op_type == "Reshape":
            return self._reshape(node, axes, before, after)
        return self._one(node, {axes}, node.outputs[0])

    def _reshape(self, node: ir.Node, axes: Axes, before: Sequence[Dim], after: Sequence[Dim]) -> Axes:
        """Rows merged or taken apart as they go, and heads merged behind their item or taken from it."""
        leads = self.tokens.lead(node.inputs[0]), self.tokens.lead(node.outputs[0])
        if all(leads) and leads[0] != leads[1] and axes[:3] in ((0, leads[0] - 1, axes.turned), (1, 0, False)):
            merged = (axes.item == 1) if leads[0] == 2 else axes.turned
            apart = sizes_of(node.outputs[0])[:2] == (self.tokens.seq, self.tokens.batch)
            if leads[1] == 1 or merged == apart:
                return Axes(0, 0, merged) if leads[1] == 1 else Axes(int(merged), int(not merged))
            raise self._fail(node)
        last = max(axes.item, axes.token)
        if before[: last + 1] == after[: last + 1]:
            return self._one(node, {axes}, node.outputs[0])
        if axes.item == axes.token:
            raise self._fail(node)
        change = _heads_merged(before, after, axes)
        if change is None:
            raise self._fail(node)
        return self._one(node, {change}, node.outputs[0])

    def _along(self, node: ir.Node, given: Mapping[int, Axes]) -> Axes:
        """Works along one axis, which may not be the items' or the tokens'."""
        default = {"Concat": 0, "Split": 0, "GatherElements": 0}.get(node.op_type, -1)
        axis = node_axis(node, len(sizes_of(node.outputs[0])), default)
        found = set(given.values())
        first = axis if node.op_type not in NORMS else min(axis, len(sizes_of(node.outputs[0])))
        if any(first in axes[:2] or (node.op_type in NORMS and max(axes[:2]) >= first) for axes in found):
            raise self._fail(node)
        return self._one(node, found, node.outputs[0])

    def _reduce(self, node: ir.Node, given: Mapping[int, Axes]) -> Axes:
        rank = len(sizes_of(node.inputs[0]))
        axes = node_axes(node, rank)
        if set(given) != {0} or not axes or set(given[0][:2]) & set(axes):
            raise self._fail(node)
        if attribute(node, "keepdims", 1):
            return self._one(node, {given[0]}, node.outputs[0])
        left = [axis for axis in range(rank) if axis not in axes]
        moved = given[0].moved(left.index(given[0].item), left.index(given[0].token))
        return self._one(node, {moved}, node.outputs[0])

    def _product(self, node: ir.Node, given: Mapping[int, Axes]) -> Axes:
        """A product with what is the same for every token, not summed over tokens or items."""
        (at, axes), *others = given.items()
        rank, more = len(sizes_of(node.inputs[at])), len(sizes_of(node.outputs[0])) - len(sizes_of(node.inputs[at]))
        summed = rank - 1 if at == 0 else rank - 2
        if others or summed in axes[:2]:
            raise self._fail(node)
        return self._one(node, {axes.moved(axes.item + more, axes.token + more)}, node.outputs[0])

    def _pick(self, node: ir.Node, given: Mapping[int, Axes]) -> Axes | None:
        """`x[:, 0]`: rows at known first positions, which are then computed for every item. Other axes may be cut."""
        if set(given) != {0}:
            raise self._fail(node)
        item, token, *_ = given[0]
        rank = len(sizes_of(node.inputs[0]))
        axes = [node_axis(node, rank, 0)] if node.op_type == "Gather" else node_axes(node, rank, 3)
        if axes is None or (item in axes and item != token):
            raise self._fail(node)
        if token not in axes:
            fewer = rank - len(sizes_of(node.outputs[0]))
            moved = given[0].moved(item - fewer * (axes[0] < item), token - fewer * (axes[0] < token))
            return self._one(node, {moved}, node.outputs[0])
        picked = _positions(node) if len(axes) == 1 and item != token else ()
        if not picked or not all(0 <= at < _FIRST for at in picked):
            raise self._fail(node)
        self.picked |= set(picked)
        return None


def _operands_of(attention: Recognised) -> set[ir.Value]:
    """What an attention of the graph reads."""
    mask = attention.mask
    origins = [factor.origin.at for factor in mask.factors if factor.origin is not None]
    others = [factor.at for factor in attention.factors] + [bias.at for bias in mask.biases]
    return {at.value for at in (attention.q, attention.k, attention.v, *others, *origins)}


def _nodes_within(graph: ir.Graph, attention: Recognised) -> dict[ir.Node, None]:
    """The nodes that compute an attention from what it reads, in the order of the graph."""
    operands, nodes, pending = _operands_of(attention), set[Any](), [attention.last]
    while pending:
        node = pending.pop()
        nodes.add(node)
        made_by = [value.producer() for value in node.inputs if value is not None and value not in operands]
        pending += [each for each in made_by if each is not None and each not in nodes]
    return {node: None for node in graph if node in nodes}


def _rows_of(attention: Recognised, at: Located) -> Axes | None:
    """The axes of items and queries of what an attention reads or gives; None if either is merged with another."""
    batch = attention.layout.batch
    if len(batch) != 1 or batch[0].axis not in at.index or ROW not in at.index:
        return None
    return Axes(at.index.index(batch[0].axis), at.index.index(ROW))


def _heads_merged(before: Sequence[Dim], after: Sequence[Dim], axes: Axes) -> Axes | None:
    """Where items and tokens are after a reshape that merges heads into the items' axis or takes them from it.

    Each of the two is followed by a product of numbers, up to the next size that is none. As the sizes of all others
    stay, what is missing behind an item was merged into its axis.
    """

    def apart(dims: Sequence[Dim]) -> tuple[list[int], list[int]] | None:
        """The axes whose size is no number, and the product of the numbers before the first and behind each."""
        named = [at for at, dim in enumerate(dims) if not isinstance(dim, int)]
        ends = [*named, len(dims)]
        starts = [0, *(at + 1 for at in named)]
        return named, [math.prod(map(_number_of, dims[low:high])) for low, high in zip(starts, ends, strict=True)]

    (named, products), (named_after, products_after) = apart(before) or ((), ()), apart(after) or ((), ())
    if len(named) != len(named_after) or axes.item not in named or axes.token not in named:
        return None
    item, token = named.index(axes.item), named.index(axes.token)
    products = list(products)
    products[item + 1] *= axes.heads
    for at, (size, left) in enumerate(zip(products, products_after, strict=True)):
        if at != item + 1 and size != left:
            return None
    others = [at for at in range(len(named)) if at != item]
    if (
        any(before[named[at]] != after[named_after[at]] for at in others)
        or products[item + 1] % products_after[item + 1]
    ):
        return None
    heads = products[item + 1] // products_after[item + 1]
    return Axes(named_after[item], named_after[token], heads=heads)


def _number_of(dim: Dim) -> int:
    assert isinstance(dim, int)
    return dim


def _positions(node: ir.Node) -> tuple[int, ...]:
    """The positions that a `Gather` or a `Slice` of one axis takes, if they are known and few."""
    if node.op_type == "Gather":
        found = constant_of(node.inputs[1])
        return () if found is None else tuple(int(number) for number in found.reshape(-1))
    start, end, step = (constant_of(node.inputs[at]) if len(node.inputs) > at else np.ones(1) for at in (1, 2, 4))
    if start is None or end is None or step is None or int(step.reshape(-1)[0]) != 1:
        return ()
    return tuple(range(int(start.reshape(-1)[0]), min(int(end.reshape(-1)[0]), _FIRST + 1)))


def _once(repeats: np.ndarray[Any, Any] | None, axes: tuple[int, int]) -> bool:
    return repeats is not None and all(repeats[axis] == 1 for axis in axes)


_RULES = {
    **dict.fromkeys(ATTENTIONS, "attention"),
    **dict.fromkeys({*ELEMENTWISE, "Expand"}, "elementwise"),
    **dict.fromkeys(_MOVES, "move"),
    **dict.fromkeys({*NORMS, *SOFTMAXES, "Concat", "Split", "GatherElements"}, "along"),
    **dict.fromkeys(REDUCTIONS, "reduce"),
    "MatMul": "product",
    "Gemm": "product",
    "Gather": "pick",
    "Slice": "pick",
}
