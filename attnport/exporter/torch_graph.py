"""Rewrites the torch graph where torch's exporter fails before it asks for a translation, or writes what few runtimes
take. The first three functions are for `scaled_dot_product_attention`."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

aten = torch.ops.aten


def to_rank_4(program: torch.export.ExportedProgram) -> None:
    """Rewrites each `sdpa` of rank 3 to one head, and of rank 5 or more to one batch axis, in place.

    torch's exporter accepts rank 4 alone. A call whose leading axes broadcast is left, and the exporter refuses it.
    """
    for node in _calls(program):
        rank = node.args[0].meta["val"].dim()
        if rank == 3:
            _add_head_axis(node.graph, node)
        elif rank > 4 and _have_equal_leading_axes(node.args[:3]):
            _merge_leading_axes(node.graph, node)


def share_heads(program: torch.export.ExportedProgram) -> None:
    """Marks each `sdpa` of rank 4 whose keys and values have one head for all queries, in place.

    torch broadcasts such a head without being told (Falcon's do); the exporter takes it only as grouped heads.
    """
    for node in _calls(program):
        q, k, v = (value.meta["val"] for value in node.args[:3])
        if q.dim() != 4 or k.dim() != 4 or v.dim() != 4 or node.kwargs.get("enable_gqa"):
            continue
        if _same(k.shape[1], 1) and _same(v.shape[1], 1) and not _same(q.shape[1], 1) and _same(q.shape[0], k.shape[0]):
            node.kwargs = {**node.kwargs, "enable_gqa": True}


def name_squeezed_axes(program: torch.export.ExportedProgram) -> None:
    """Has each `squeeze` without axes name those that the trace found to be one long, in place.

    The rank of an ONNX `Squeeze` without axes is known when it runs, and OpenVINO compiles no such graph.
    """
    for node in program.graph.nodes:
        if node.target is aten.squeeze.default:
            shape = node.args[0].meta["val"].shape
            node.target = aten.squeeze.dims
            node.args = (node.args[0], [axis for axis, size in enumerate(shape) if isinstance(size, int) and size == 1])


def widen_masks(program: torch.export.ExportedProgram) -> None:
    """Expands each mask of `sdpa` that broadcasts over queries or keys to `[...,S,T]`, in place.

    ONNX Runtime's `Attention` refuses a mask that broadcasts so, such as `[B,1,1,T]`, which the standard and torch
    allow.
    """
    for node in _calls(program):
        mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
        if mask is None:
            continue
        q, k, *_ = node.args
        val = mask.meta["val"]
        lengths = (q.meta["val"].shape[-2], k.meta["val"].shape[-2])
        if all(map(_same, val.shape[-2:], lengths)):
            continue
        lead = [-1] * (val.dim() - 2)
        with node.graph.inserting_before(node):
            sizes = [*lead, *(size for of in (q, k) for size in _sizes(node, of, (of.meta["val"].dim() - 2,)))]
            wide = node.graph.call_function(aten.expand.default, (mask, sizes))
        wide.meta = {**node.meta, "val": val.expand(*lead, *lengths)}
        node.replace_input_with(mask, wide)


def _calls(program: torch.export.ExportedProgram) -> list[Any]:
    """The calls of `sdpa` in the graph and its branches; what is done to them needs no recompiling."""
    attention = aten.scaled_dot_product_attention.default
    graphs = [module.graph for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    return [node for graph in graphs for node in graph.find_nodes(op="call_function", target=attention)]


def _sizes(near: Any, value: Any, axes: Iterable[int]) -> list[Any]:
    """Sizes of a value, as numbers or as nodes that read them where the graph is being changed."""
    result: list[Any] = []
    for axis in axes:
        size = value.meta["val"].shape[axis]
        if not isinstance(size, int):
            read = near.graph.call_function(aten.sym_size.int, (value, axis))
            read.meta = {**near.meta, "val": size}
            size = read
        result.append(size)
    return result


def _have_equal_leading_axes(values: Any) -> bool:
    first, *others = (list(value.meta["val"].shape[:-3]) for value in values)
    return all(len(other) == len(first) and all(map(_same, other, first)) for other in others)


def _same(size: Any, other: Any) -> bool:
    """Whether two sizes are the same expression; comparing the sizes themselves would add a guard to the trace."""
    return str(size) == str(other)


def _add_head_axis(graph: torch.fx.Graph, node: Any) -> None:
    unsqueeze, squeeze = aten.unsqueeze.default, aten.squeeze.dim

    def head(value: Any) -> Any:
        # A mask of rank 2 broadcasts over heads as it does over the batch.
        if not isinstance(value, torch.fx.Node) or value.meta["val"].dim() != 3:
            return value
        unsqueezed = graph.call_function(unsqueeze, (value, 1))
        unsqueezed.meta = {**node.meta, "val": value.meta["val"].unsqueeze(1)}
        return unsqueezed

    whole = node.meta["val"]
    with graph.inserting_before(node):
        node.args = tuple(head(argument) for argument in node.args)
        node.kwargs = {name: head(argument) for name, argument in node.kwargs.items()}
    with graph.inserting_after(node):
        back = graph.call_function(squeeze, (node, 1))
    _replace_result(node, back, whole, whole.unsqueeze(1))


def _merge_leading_axes(graph: torch.fx.Graph, node: Any) -> None:
    """`[A,B,H,S,D]` as `[A B,H,S,D]`; a mask with leading axes of other sizes is broadcast to all of them."""
    q, whole = node.args[0], node.meta["val"]
    rank = q.meta["val"].dim()

    def call(target: Any, value: Any, *arguments: Any, val: Any) -> Any:
        result = graph.call_function(target, (value, *arguments))
        result.meta = {**node.meta, "val": val}
        return result

    def merged(value: Any) -> Any:
        if not isinstance(value, torch.fx.Node) or value.meta["val"].dim() < 4:
            return value
        val = value.meta["val"]
        lead = q.meta["val"].shape[: rank - 3]
        if len(val.shape) != rank or not all(map(_same, val.shape[:-3], lead)):
            whole_val = val.expand(*lead, *val.shape[-3:])
            wanted = [*_sizes(node, q, range(rank - 3)), *[-1] * 3]
            value, val = call(aten.expand.default, value, wanted, val=whole_val), whole_val
        return call(aten.flatten.using_ints, value, 0, rank - 4, val=val.flatten(0, rank - 4))

    with graph.inserting_before(node):
        shape = [*_sizes(node, q, range(rank - 1)), *_sizes(node, node.args[2], range(rank - 1, rank))]
        node.args = tuple(merged(argument) for argument in node.args)
        node.kwargs = {name: merged(argument) for name, argument in node.kwargs.items()}
    with graph.inserting_after(node):
        back = graph.call_function(aten.reshape.default, (node, shape))
    _replace_result(node, back, whole, whole.flatten(0, rank - 4))


def _replace_result(node: Any, back: Any, whole: Any, own: Any) -> None:
    """Makes the users of `node` read `back`, whose value is `whole`; the node itself now has the value `own`."""
    node.replace_all_uses_with(back, delete_user_cb=lambda user: user is not back)
    back.meta = {**node.meta, "val": whole}
    node.meta["val"] = own


def promote(program: torch.export.ExportedProgram) -> None:
    """Casts what has another type than the result of a product or a sum, in place.

    torch 2.13 cannot decompose `1.0 - mask` of an integer mask (https://github.com/pytorch/pytorch/issues/194381). Its
    `einsum` takes integer positions beside frequencies in float32, ONNX's takes one type.
    """
    with_number = (aten.rsub.Scalar, aten.sub.Scalar, aten.mul.Scalar, aten.add.Scalar)
    for node in list(program.graph.nodes):
        if node.target is aten.einsum.default:
            given = list(node.args[1])
        elif node.target in with_number and len(node.args) > 1 and isinstance(node.args[1], float):
            given = [node.args[0]]
        else:
            continue
        after = node.meta["val"].dtype
        for value in given:
            if not isinstance(value, torch.fx.Node) or value.meta["val"].dtype == after:
                continue
            with program.graph.inserting_before(node):
                cast = program.graph.call_function(aten._to_copy.default, (value,), {"dtype": after})
            cast.meta = {**node.meta, "val": value.meta["val"].to(after)}
            node.replace_input_with(value, cast)


def settle_dropout(program: torch.export.ExportedProgram) -> None:
    """Replaces `torch.rand_like(x) >= 0` and `torch.rand(n) >= 0` by True, in place: they are always true.

    OpenFold and Boltz compute this in eval mode. ONNX Runtime has no operator for random numbers at opset 22.
    """
    for node in program.graph.find_nodes(op="call_function", target=aten.ge.Scalar):
        drawn, least = node.args
        zeros = {aten.rand_like.default: aten.zeros_like.default, aten.rand.default: aten.zeros.default}
        if drawn.target in zeros and not isinstance(least, torch.fx.Node) and least <= 0:
            with program.graph.inserting_before(node):
                same = _call(program.graph, zeros[drawn.target], drawn.args, drawn.meta["val"])
            node.replace_input_with(drawn, same)


def choose_by_masks(program: torch.export.ExportedProgram) -> int:
    """Writes `x[mask] = value` of a bool mask as a choice between both, in place; returns how many there were.

    So it does `x[rows, columns] = value` of the places at which a tensor is not zero, as of `torch.where(mask)`.

    The exporter writes it with `NonZero`, which TensorRT-RTX does not have, and whose size no runtime knows beforehand.
    It is left where the value has another element for each place at which the mask is true, unless that is `y[mask]`.
    """
    graph = program.graph
    changed = 0
    for node in list(graph.nodes):
        in_place = node.target is aten.index_put_.default
        if not (in_place or node.target is aten.index_put.default) or (*node.args[3:], False)[0]:
            continue
        x, indices, value = node.args[:3]
        before = next((at for at, index in enumerate(indices) if index is not None), 0)
        mask = _mask_of(indices[before:])
        if mask is None:
            continue
        behind = x.meta["val"].dim() - before - mask.meta["val"].dim()
        with graph.inserting_before(node):
            value = _at_each_place(node, value, behind)
            if value is None:
                continue
            if mask.meta["val"].dtype != torch.bool:
                mask = _made(graph, aten.ne.Scalar, mask, 0)
            for _ in range(behind):
                mask = _made(graph, aten.unsqueeze.default, mask, -1)
            if value.meta["val"].dtype != x.meta["val"].dtype:
                value = _made(graph, aten.to.dtype, value, x.meta["val"].dtype)
            chosen = _made(graph, aten.where.self, mask, value, x)
            if in_place:
                chosen = _made(graph, aten.copy_.default, x, chosen)
        chosen.meta |= {key: kept for key, kept in node.meta.items() if key != "val"}
        node.replace_all_uses_with(chosen)
        graph.erase_node(node)
        changed += 1
    return changed


def _mask_of(indices: Sequence[Any]) -> Any:
    """The tensor that is not zero at the places of indices: a bool one itself, or one whose places were looked for."""
    first = indices[0]
    if len(indices) == 1 and first is not None and first.meta["val"].dtype == torch.bool:
        return first
    found = [_coordinate(index) for index in indices]
    mask = found[0][0] if found[0] is not None else None
    if mask is None or found != [(mask, axis) for axis in range(mask.meta["val"].dim())] or not _unwritten(mask):
        return None
    return mask


def _coordinate(index: Any) -> tuple[Any, int] | None:
    """Of an index that holds the places on one axis at which a tensor is not zero: the tensor, and the axis."""
    index = _uncast(index)
    if index is None or index.target not in (operator.getitem, aten.select.int):
        return None
    source, axis = index.args[0], index.args[-1]
    along = 0  # the axis of `source` that counts the axes of the tensor
    if index.target is aten.select.int:
        along = index.args[1]
    elif source.target is aten.unbind.int:
        source, along = source.args[0], (*source.args[1:], 0)[0]
    elif source.target in (aten.where.default, aten.nonzero_numpy.default):
        return source.args[0], axis
    source = _uncast(source)
    if source is not None and source.target in (aten.numpy_T.default, aten.t.default) and along == 0:
        source, along = _uncast(source.args[0]), 1
    if source is None or source.target is not aten.nonzero.default or along not in (1, -1):
        return None
    return source.args[0], axis


def _uncast(value: Any) -> Any:
    """A value without casts to another integer; None if it is none of the graph."""
    while isinstance(value, torch.fx.Node) and value.target in (aten.to.dtype, aten._to_copy.default):
        value = value.args[0]
    return value if isinstance(value, torch.fx.Node) else None


def _at_each_place(put: torch.fx.Node, value: torch.fx.Node, behind: int) -> torch.fx.Node | None:
    """The value of `x[indices] = value` in a form that broadcasts over `x`; None if it has none.

    Args:
        behind: The axes of `x` behind those of the mask.
    """
    sizes = value.meta["val"].shape
    x, indices = _arguments(put)
    if value.target is aten.index.Tensor and _equal(value.args[1], indices):
        source: torch.fx.Node
        source, same = _arguments(value)
        order = {node: at for at, node in enumerate(put.graph.nodes)}
        first = min(order[node] for node in (value, *same, *indices) if node is not None)
        written = any(_writes(node) for node in list(order)[first : order[put]])
        if not written and _unwritten(source) and _equal_sizes(source, x):
            return source
    if len(sizes) <= behind or all(isinstance(size, int) and size == 1 for size in sizes[: len(sizes) - behind]):
        while len(value.meta["val"].shape) > behind:
            value = _made(value.graph, aten.squeeze.dim, value, 0)
        return value
    return None


def _arguments(node: torch.fx.Node) -> tuple[Any, Any]:
    """The tensor that is indexed, and the indices."""
    return node.args[0], node.args[1]


def _equal_sizes(one: torch.fx.Node, other: torch.fx.Node) -> bool:
    """Whether two tensors have the same sizes, as the graph knows them."""
    return [str(size) for size in one.meta["val"].shape] == [str(size) for size in other.meta["val"].shape]


def _equal(one: Any, other: Any) -> bool:
    """Whether two arguments are the same value, computed twice or once."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    if not isinstance(one, torch.fx.Node) or not isinstance(other, torch.fx.Node):
        return bool(type(one) is type(other) and one == other)
    if not _unwritten(one) or not _unwritten(other):
        return False
    same = one.op == other.op == "call_function" and one.target is other.target
    return one is other or (same and one.kwargs == other.kwargs and _equal(one.args, other.args))


def _unwritten(node: torch.fx.Node) -> bool:
    """Whether nothing writes into a node's result in place, nor is it a random number or a result in place itself."""
    random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    written = any(_writes(user) and user.args[0] is node for user in node.users)
    return not (written or random or _writes(node))


def _writes(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _made(graph: torch.fx.Graph, target: Any, *args: Any) -> torch.fx.Node:
    """A call at the graph's place of insertion, with the shape and type of its result."""
    values = [arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg for arg in args]
    return _call(graph, target, args, target(*values))


def slice_splits(program: torch.export.ExportedProgram) -> None:
    """Writes `split` and `chunk` of a dynamic size as slices, in place.

    The exporter's own form is a sequence that its optimizer cannot fold
    (https://github.com/microsoft/onnxscript/pull/2434 is about the same of `chunk`).
    """
    graph = program.graph
    for node in list(graph.nodes):
        chunks = node.target is aten.chunk.default
        if not chunks and not (node.target is aten.split.Tensor and isinstance(node.args[1], torch.fx.Node)):
            continue
        value, dim = node.args[0], node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
        total = value.meta["val"].shape[dim]
        parts = [user for user in node.users if user.target is operator.getitem]
        if isinstance(total, int) or len(parts) != len(node.users):
            continue
        with graph.inserting_before(node):
            size = node.args[1]
            if chunks:
                # Parts are of the size rounded up, the last one of what is left.
                whole = _call(graph, aten.sym_size.int, (value, dim), total)
                more = _call(graph, operator.add, (whole, node.args[1] - 1), total + node.args[1] - 1)
                size = _call(graph, operator.floordiv, (more, node.args[1]), (total + node.args[1] - 1) // node.args[1])
        for part in parts:
            at, known = part.args[1], size.meta["val"]
            with graph.inserting_before(part):
                begin = _call(graph, operator.mul, (size, at), known * at)
                end = _call(graph, operator.mul, (size, at + 1), known * (at + 1))
                slice_ = graph.call_function(aten.slice.Tensor, (value, dim, begin, end))
            slice_.meta = dict(part.meta)
            part.replace_all_uses_with(slice_)
            graph.erase_node(part)
        graph.erase_node(node)


def slice_from_the_front(program: torch.export.ExportedProgram, is_guarded: Callable[[torch.SymInt], bool]) -> None:
    """Rewrites slice bounds that count from the end, `x[:, :-n]`, as `size - n`, in place.

    Code that may have n = 0 slices under a condition, `if n: x = x[:, :-n]`. The graph always slices: with `-n` it
    would return nothing at n = 0, with `size - n` it returns all of x, as the code does.

    Args:
        is_guarded: Whether the code around a negative bound branches where the bound is 0.
    """
    graph = program.graph
    for node in [node for node in graph.nodes if node.target is aten.slice.Tensor]:
        value, dim = node.args[0], node.args[1] if len(node.args) > 1 else 0
        for at, place in list(enumerate(node.args))[2:4]:
            size = place.meta.get("val") if isinstance(place, torch.fx.Node) else None
            if not isinstance(size, torch.SymInt) or (size.node.hint or 0) >= 0 or not is_guarded(size):
                continue
            total = value.meta["val"].shape[dim]
            with graph.inserting_before(node):
                whole = total if isinstance(total, int) else _call(graph, aten.sym_size.int, (value, dim), total)
                node.update_arg(at, _call(graph, operator.add, (whole, place), total + size))


def read_in_order(program: torch.export.ExportedProgram) -> None:
    """Transposes what `as_strided` reads to the order in which it lies in memory, in place.

    The exporter counts places in what a tensor's rows make one after the other. Longformer's queries are a transposed
    view: their rows lie between those of other items.
    """
    for node in [node for node in program.graph.nodes if node.target is aten.as_strided.default]:
        value = node.args[0].meta["val"]
        sizes, strides = ([_hint(each) for each in own] for own in (value.shape, value.stride()))
        order = sorted(range(value.dim()), key=lambda axis: -strides[axis])
        dense = all(strides[axis] == math.prod(sizes[behind] for behind in order[at + 1 :])
                    for at, axis in enumerate(order))  # fmt: skip
        if not dense or order == sorted(order):
            continue
        with program.graph.inserting_before(node):
            whole = _call(program.graph, aten.permute.default, (node.args[0], order), value.permute(order))
        node.update_arg(0, whole)


def _hint(size: int | torch.SymInt) -> int:
    """A size at which the graph was traced."""
    return size if isinstance(size, int) else int(size.node.hint)


def _call(graph: torch.fx.Graph, target: Any, args: tuple[Any, ...], value: Any) -> torch.fx.Node:
    node = graph.call_function(target, args)
    node.meta["val"] = value
    return node
