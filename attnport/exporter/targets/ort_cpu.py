"""ONNX Runtime on CPU: the standard's `Attention`, or the runtime's own operators where they are faster.

Measured by `python benchmarks/ort_forms.py`: medians of interleaved runs on one thread (ONNX Runtime 1.31.1, AMD Zen 5,
12 heads, 4 at T=4096, D 32 and 64). The table has the time divided by that of the standard's operator in its best form,
`is_causal` or a float mask:

| T | no mask, `MultiHeadAttention` | causal, `GroupQueryAttention` | padding, key column | other masks, bias |
|-|-|-|-|-|
| 64 | 1.00-1.02 | 1.02-1.06 | 1.12-1.14 | 1.08-1.21 |
| 128 | 0.97-1.00 | 0.97-1.01 | 1.00-1.04 | 1.06-1.12 |
| 8 x 128 | | | 0.93-0.96 | 1.13 |
| 256 | 0.81-0.88 | 0.94-0.95 | 0.95-0.98 | 0.97-0.98 |
| 512 | 0.83-0.89 | 0.93-0.94 | 0.86-0.92 | 0.93 |
| 1024 | 0.92-0.95 | 0.85-0.86 | 0.79-0.87 | 0.91-0.94 |
| 2048 | 0.85-0.86 | 0.77-0.86 | 0.70-0.77 | 0.88-0.89 |
| 4096 (D=32) | 0.83 | 0.77 | | 0.81 |

The key column (see `contrib.multi_head`) is what lets padding reach the flash kernel: at T=8192 (D=64) one attention
takes 0.70 of the time of the standard's operator, and 181 MB in place of 4162. Grouped heads, repeated for
`MultiHeadAttention`, take 0.79-0.97 without a mask from 256 on, and 0.87-0.92 with padding from 1024 on.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from attnport.artifacts import MANY, PLANS
from attnport.exporter.builder import Builder
from attnport.exporter.contrib.group_query import group_query_attention, why_not_group_query
from attnport.exporter.contrib.multi_head import LOWEST, hides_keys_alone, multi_head_attention, why_not_multi_head
from attnport.exporter.forms.operands import MaskWriter
from attnport.exporter.forms.standard import attention_op, form_name, in_blocks
from attnport.exporter.fusion.recognise import Attention
from attnport.exporter.naming import upstream
from attnport.exporter.targets.base import Lowering, Written
from attnport.onnx_graph import CONTRIB, attribute, attributes_of, constant_of, dims_of, ir, known_size, made_by, passes
from attnport_bundle.format.decoder import IN_PLACE

LONG, LONG_MASKED = 256, 1024
"""Usual numbers of keys from which the runtime's own operators are used. `LONG`: with the causal mask, and where only
keys are hidden, or nothing, without grouped heads (the flash kernel takes memory that is linear in the length).
`LONG_MASKED`: with other masks (at 512 the gain is within the variation between runs) or repeated, grouped heads."""
_MOST_NODES = 200
"""Values that a mask may be computed of; what is further away is another layer's."""
_LENGTH = 2
"""The axis of tokens in a cache, `[B,G,P,D]`."""


class OrtCpu(Lowering):
    """The form measured fastest for the model's usual key length."""

    name = "ort_cpu"
    opset = 23
    plans: ClassVar[tuple[str, ...]] = ("fp32", "fp16")
    proved_by: ClassVar[tuple[str, ...]] = ("ort_cpu",)
    integers: ClassVar[tuple[str, ...]] = ("int8", "int4", "int4_fp16")
    real_tokens: ClassVar[bool] = True
    widens: ClassVar[bool] = True

    def finish(self, model: ir.Model, plan: str, islands: Collection[str] = ()) -> None:
        """As every target; then a decoder's steps write to its cache in place."""
        raise_lowest(model)
        super().finish(model, plan, islands)
        update_in_place(model)

    def write(self, build: Builder, masks: MaskWriter, attention: Attention, plan: str) -> Written:
        """Windows in blocks; many keys by the runtime's own operators; else `Attention`, one mask for all layers.

        Half precision is for WebGPU, where onnxruntime-web (1.30) has no kernel for `Attention`, and those of
        `MultiHeadAttention` and `GroupQueryAttention` are wrong with a bias and with a causal mask (`check --runtime
        ort_webgpu`, Chromium's software adapter): there is a column of keys, or `Attention`, which the processor runs.
        """
        blocks = in_blocks(build, masks, attention, "float_full")
        if not isinstance(blocks, str):
            output, anchors, name, local = blocks
            return Written(output, name, anchors, local=local)
        note = blocks and f"not in blocks: {blocks}"
        length = build.usual_size(attention.v, 2) or 0
        half = bool(PLANS[plan].half)
        if length >= LONG and not half and not why_not_group_query(attention):
            output, anchors = group_query_attention(build, masks, attention)
            return Written(output, f"GroupQueryAttention (keys: {length})", anchors, note)
        heads, key_heads = attention.head_counts()
        alone = heads == key_heads and hides_keys_alone(attention)
        takes = alone if half else length >= (LONG if alone else LONG_MASKED)
        if takes and not why_not_multi_head(attention):
            output, anchors = multi_head_attention(build, masks, attention, key_column=True)
            return Written(output, f"MultiHeadAttention (keys: {length})", anchors, note)
        output, anchors = attention_op(build, masks, attention, "float_full")
        return Written(output, form_name(attention, "float_full"), anchors, note)


def raise_lowest(model: ir.Model) -> None:
    """Replaces the lowest float by a number above it in float masks of `Attention` that may hold it.

    The runtime takes it for -inf, and gives zero in a row where all are (1.31); in the graph, such a row is the mean of
    all values, as in a module that adds `(1 - mask) * torch.finfo(torch.float32).min`.
    """
    build, raised = Builder(model), dict[ir.Value, ir.Value]()
    for node in list(model.graph):
        mask = node.inputs[3] if node.op_type == "Attention" and not node.domain and len(node.inputs) > 3 else None
        if mask is None or mask.dtype != ir.DataType.FLOAT or not _may_be_lowest(mask):
            continue
        if mask not in raised:
            build.before, build.scope = node, str(node.name)
            lowest = build.op("Equal", mask, build.like(LOWEST, mask), name="is_lowest", dtype=ir.DataType.BOOL)
            raised[mask] = build.op("Where", lowest, build.like(-3.4e38, mask), mask, name="mask", dtype=mask.dtype)
        node.replace_input_with(3, raised[mask])


def _may_be_lowest(mask: ir.Value) -> bool:
    """Whether the lowest float is among the constants that a mask is computed of."""
    computed = upstream([mask], lambda value, _: constant_of(value) is None)
    arrays = (constant_of(value) for value in itertools.islice(computed, _MOST_NODES))
    return any(array is not None and array.dtype == np.float32 and array.size and float(array.min()) == LOWEST
               for array in arrays)  # fmt: skip


@dataclass(frozen=True)
class _Cached:
    """An attention over a cache and the new tokens behind it.

    Attributes:
        pasts, news: Of keys, then of values: the graph's input, and what is put behind it, `[B,G,S,D]`.
        wholes: Both together, outputs of the graph.
    """

    node: ir.Node
    pasts: tuple[ir.Value, ir.Value]
    news: tuple[ir.Value, ir.Value]
    wholes: tuple[ir.Value, ir.Value]


@dataclass(frozen=True)
class _Lengths:
    """Where the sizes of a cache come from: a mask `[B,P+S]` at its second axis, and new tokens `[B,S]` at theirs."""

    mask: ir.Value
    ids: ir.Value


def update_in_place(model: ir.Model) -> None:
    """Lets steps of decoding write to their cache in place; a graph of another kind stays as it is.

    `GroupQueryAttention` computes one new token behind a cache. Where cache and longer cache are one buffer, it writes
    the new key and value into it, and reads the places that are filled, so that nothing is copied; where they are not,
    it gives the longer cache as `Concat` does. It refuses several new tokens of several texts: they are left to
    `Concat` and `Attention`, in the other branch of an `If`. A model that takes one token at a time needs no `If`.

    A buffer has more places than tokens. So no size may come from the cache: they come from the mask of its places and
    of the new tokens, and from these. See docs/adr/0023-a-prompt-and-a-step-are-one-graph.md.

    Every attention keeps its name, which is then that of `GroupQueryAttention`.

    Args:
        model: As lowered, with its types, and with every cache an input and what follows it an output.
    """
    found = [cached for node in model.graph if (cached := _cached(node)) is not None]
    caches = [past for cached in found for past in cached.pasts]
    every = {pair[0] for output in model.graph.outputs if (pair := _put_behind(output)) is not None}
    lengths = _lengths(model, caches)
    # A step has all its caches in buffers, or none.
    if not lengths or every != set(caches) or len(every) != len(caches) or not _read_past_alone(found):
        return
    build = Builder(model)
    build.before, build.scope = model.graph[0], "in_place"
    places = {past: _Places(build, of_past) for past, of_past in lengths.items()}
    for cached in found:
        own = places[_past(cached.pasts[0])]
        build.before, build.scope = cached.node, str(cached.node.name)
        _sizes_from_elsewhere(cached, own)
        _read_tokens_alone(build, cached, own)
        _write(build, cached, own)
    model.metadata_props[IN_PLACE] = str(next(iter(lengths.values())).ids.name)
    model.graph.opset_imports.setdefault(CONTRIB, 1)
    passes.RemoveUnusedNodesPass()(model)
    passes.TopologicalSortPass()(model)


def _cached(node: ir.Node) -> _Cached | None:
    """The attention of a node, if `GroupQueryAttention` can compute a step of it."""
    if node.op_type != "Attention" or node.domain or len(node.inputs) != 4 or len(node.outputs) != 1:
        return None
    q, k, v, mask = node.inputs
    if q is None or mask is None or mask.dtype != ir.DataType.FLOAT or q.dtype != ir.DataType.FLOAT:
        return None
    keys, values = _put_behind(k), _put_behind(v)
    if k is None or v is None or keys is None or values is None:
        return None
    if attribute(node, "is_causal", 0) or not attribute(node, "scale", 0.0) or not _has_all_axes(mask):
        return None
    sizes = [dims_of(value) or [None] * 4 for value in (q, keys[0], values[0])]
    depths, (heads, groups, others) = {dims[3] for dims in sizes}, [dims[1] for dims in sizes]
    depth = depths.pop()
    if depths or not isinstance(depth, int) or depth % 8 or not isinstance(heads, int) or not isinstance(groups, int):
        return None
    fits = groups == others and heads % groups == 0
    return _Cached(node, (keys[0], values[0]), (keys[1], values[1]), (k, v)) if fits else None


def _has_all_axes(mask: ir.Value) -> bool:
    """Whether a mask is `[B|1,H|1,S,T]`: the standard's operator takes fewer axes, and one key for all, too."""
    dims = dims_of(mask) or []
    return len(dims) == 4 and dims[3] != 1


def _put_behind(value: ir.Value | None) -> tuple[ir.Value, ir.Value] | None:
    """The input of the graph and what is put behind it, of an output of the graph that is both together."""
    node = made_by(value, "Concat")
    if value is None or node is None or len(node.inputs) != 2:
        return None
    past, new = node.inputs
    axis = attribute(node, "axis", 0)
    if past is None or new is None or not past.is_graph_input() or not value.is_graph_output():
        return None
    return (past, new) if axis in (_LENGTH, _LENGTH - 4) else None


def _past(cache: ir.Value) -> str:
    """The name of a cache's length."""
    return str(known_size(cache, _LENGTH))


def _lengths(model: ir.Model, caches: Sequence[ir.Value]) -> dict[str, _Lengths]:
    """By the name of a length, the inputs that tell it; none if one is not told, or there is a cache besides these."""
    by_dim: dict[str, ir.Value] = {}
    for value in model.graph.inputs:
        if (dims := dims_of(value)) and len(dims) == 2:
            by_dim.setdefault(str(dims[1]), value)
    found: dict[str, _Lengths] = {}
    for past in dict.fromkeys(map(_past, caches)):
        if any(past in (dims_of(value) or []) and value not in caches for value in model.graph.inputs):
            return {}
        for dim, mask in by_dim.items():
            parts = dim.split("+")
            if len(parts) == 2 and past in parts and parts[parts[0] == past] in by_dim:  # in either order
                found.setdefault(past, _Lengths(mask, by_dim[parts[parts[0] == past]]))
        if past not in found:
            return {}
    return found


def _read_past_alone(found: Sequence[_Cached]) -> bool:
    """Whether nothing but the attention itself reads a cache, unless for a size, and no query or mask is made of the
    longer cache, as Doge's mask is of all values."""
    for cached in found:
        before = upstream([cached.node.inputs[0], cached.node.inputs[3]], lambda _, node: not _size(node))
        if {*before} & {*cached.wholes}:
            return False
        for past, whole in zip(cached.pasts, cached.wholes, strict=True):
            if any(user is not whole.producer() and not _size(user) for user, _ in past.uses()):
                return False
    return bool(found)


def _size(node: ir.Node) -> bool:
    """Whether a node is the size of one axis."""
    return node.op_type == "Shape" and attribute(node, "end", None) == attribute(node, "start", 0) + 1


class _Places:
    """The lengths as numbers, each computed once."""

    def __init__(self, build: Builder, lengths: _Lengths) -> None:
        """Writes them before `build.before`."""
        self.total = build.size(lengths.mask, 1)
        self.new = build.size(lengths.ids, 1)
        self.past = build.op("Sub", self.total, self.new, name="past")
        one = build.const([1], np.int64)
        self.is_step = None
        if known_size(lengths.ids, 1) != 1:
            self.is_step = build.op("Equal", self.new, one, name="is_step", dtype=ir.DataType.BOOL)
        last = build.cast(build.op("Sub", self.total, one, name="last"), ir.DataType.INT32, "last")
        self.last = build.op("Expand", last, build.size(lengths.mask, 0), name="last_of_each")
        self.count = build.cast(self.total, ir.DataType.INT32, "total")
        self._build = build

    def no_key(self, mask: ir.Value) -> ir.Value:
        """Where a row of a mask `[B|1,H|1,S,T]` hides every key, bool `[B|1,H|1,S,1]`; once for all attentions."""

        def write() -> ir.Value:
            most = self._build.op("ReduceMax", mask, self._build.const([-1], np.int64), name="most", keepdims=1)
            return self._build.op("IsInf", most, name="no_key", dtype=ir.DataType.BOOL, detect_positive=0)

        return self._build.once(("no key", mask), write)


def _sizes_from_elsewhere(cached: _Cached, places: _Places) -> None:
    for past, whole in zip(cached.pasts, cached.wholes, strict=True):
        for value, length in ((past, places.past), (whole, places.total)):
            for user, at in list(value.uses()):
                if _size(user) and attribute(user, "start", 0) in (_LENGTH, _LENGTH - 4):
                    ir.convenience.replace_all_uses_with(user.outputs[0], length)
                elif _size(user):  # not of the longer cache, which the mask, for which sizes are, is needed for
                    user.replace_input_with(at, past)


def _read_tokens_alone(build: Builder, cached: _Cached, places: _Places) -> None:
    """Gives what else reads a longer cache, as the mean of all values does, its places that hold tokens."""
    for whole in cached.wholes:
        others = [(user, at) for user, at in whole.uses() if user is not cached.node and not _size(user)]
        if others:
            first, axis = build.const([0], np.int64), build.const([_LENGTH], np.int64)
            held = build.op("Slice", whole, first, places.total, axis, name="held", shape=dims_of(whole))
            for user, at in others:
                user.replace_input_with(at, held)


def _write(build: Builder, cached: _Cached, places: _Places) -> None:
    """Replaces an attention and what puts its cache together, by an `If` of both ways unless one token is all."""
    node, step = cached.node, _step(cached, places)
    outputs = list(step.outputs)
    if places.is_step is None:
        step.outputs.clear()
        nodes = list(step)
        step.remove(nodes)
    else:
        attributes = [ir.AttrGraph("then_branch", step), ir.AttrGraph("else_branch", _many(cached))]
        nodes = [ir.Node("", "If", [places.is_step], attributes=attributes, num_outputs=3, name=f"{node.name}/either")]
        outputs = list(nodes[0].outputs)
    olds = (node.outputs[0], *cached.wholes)
    for out, old in zip(outputs, olds, strict=True):
        out.name, out.type = f"{old.name}/either", old.type
    build.model.graph.insert_before(node, nodes)
    for out, old in zip(outputs, olds, strict=True):
        build.replace(old, out)
    build.model.graph.remove(node, safe=True)


class _Branch:
    """A branch of an `If` as it grows; its values are named after the attention."""

    def __init__(self, name: str) -> None:
        self._name, self._nodes = name, list[Any]()
        self._constants = dict[str, Any]()

    def op(self, op_type: str, *inputs: ir.Value | None, name: str = "", outputs: int = 1, domain: str = "",
           **attributes: Any) -> tuple[ir.Value, ...]:  # fmt: skip
        """Adds a node; `name` is what it is called, if not by its number."""
        name = name or f"{self._name}/{len(self._nodes)}"
        node = ir.node(op_type, list(inputs), attributes, domain=domain, num_outputs=outputs, name=name)
        for at, out in enumerate(node.outputs):
            out.name, out.dtype = f"{self._name}/{len(self._nodes)}/out{at}", ir.DataType.FLOAT
        self._nodes.append(node)
        return tuple(node.outputs)

    def sizes(self, sizes: Sequence[int]) -> ir.Value:
        """A constant of sizes."""
        (found,) = self.op("Constant", value_ints=list(sizes))
        found.dtype = ir.DataType.INT64
        return found

    def graph(self, *outputs: ir.Value) -> ir.Graph:
        """The graph with these outputs."""
        return ir.Graph([], list(outputs), nodes=self._nodes, name=self._name)


def _step(cached: _Cached, places: _Places) -> ir.Graph:
    """One new token, by `GroupQueryAttention`."""

    node = cached.node
    q, mask = node.inputs[0], node.inputs[3]
    assert q is not None
    assert mask is not None
    heads, groups, depth = (int(str(known_size(value, axis))) for value, axis in ((q, 1), (cached.pasts[0], 1), (q, 3)))
    branch = _Branch(f"{node.name}/either/step")
    rows = []
    for value, count in ((q, heads), *((new, groups) for new in cached.news)):
        # With one token, the axes of tokens and heads may change places without a copy.
        rows.append(branch.op("Reshape", value, branch.sizes([0, 1, count * depth]))[0])
    more: Mapping[str, Any] = {"softcap": cap} if (cap := attribute(node, "softcap", 0.0)) else {}
    y, *wholes = branch.op(
        "GroupQueryAttention", *rows, *cached.pasts, places.last, places.count, None, None, None, mask,
        name=str(node.name), outputs=3, domain=CONTRIB, num_heads=heads, kv_num_heads=groups,
        scale=attribute(node, "scale", 0.0), **more,
    )  # fmt: skip
    (by_head,) = branch.op("Reshape", y, branch.sizes([0, heads, 1, depth]))
    # A row without a key is NaN here, and zero in the standard's operator.
    (zero,) = branch.op("Constant", value_float=0.0)
    (output,) = branch.op("Where", places.no_key(mask), zero, by_head)
    return branch.graph(output, *wholes)


def _many(cached: _Cached) -> ir.Graph:
    """Any number of new tokens, as they were before."""
    node = cached.node
    branch = _Branch(f"{node.name}/either/many")
    pairs = zip(cached.pasts, cached.news, strict=True)
    wholes = [branch.op("Concat", past, new, axis=_LENGTH)[0] for past, new in pairs]
    (output,) = branch.op(
        "Attention", node.inputs[0], *wholes, node.inputs[3], name=f"{node.name}{MANY}", **attributes_of(node)
    )
    return branch.graph(output, *wholes)


LOWERING = OrtCpu()
