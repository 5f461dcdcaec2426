"""Decoders as onnxruntime-genai's model builder writes them: their sizes, and what follows from them.

The builder's `GroupQueryAttention` takes the lengths of texts from `attention_mask`, and from it alone: it counts the
ones of a row, wherever they are. Padding at the left, as `generate` puts it, would be read as keys. So the input gives
way to what it says of texts without padding: every row is as long as cache and new tokens together. `position_ids` for
the operator's rotation follow from that too. A cache of a window alone, in a buffer that the caller gives, becomes one
of all tokens: what is out of sight is masked, so that logits are the same.

Source: onnxruntime-genai 0.18, `models/builders/base.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnport.errors import SpecError
from attnport.onnx_graph import CONTRIB, attribute, ir, known_size, rank_of, scalar

CONFIG = "genai_config.json"
_MOST = 1024
"""Places of cache and of new tokens where no table of angles ends them."""
_FORGETS = "sliding_window_cache"
_WAY = frozenset({"Add", "Cast", "Identity"})


@dataclass(frozen=True)
class Decoder:
    """A decoder with a cache.

    Attributes:
        past, seq: The dims of the cache's places and of the new tokens.
        most: The most places of both together.
        dropped: The inputs that gave way.
        forgetting: How many attentions had a cache of a window alone, and have one of all tokens instead.
    """

    past: str
    seq: str
    most: int
    dropped: tuple[str, ...]
    forgetting: int

    @property
    def dims(self) -> tuple[str, str]:
        """Declarations of the two dims; half of the places is for the cache, and half for a pass."""
        half = max(1, self.most // 2)
        return f"{self.seq}=1:1:{half}", f"{self.past}=0:{min(128, half)}:{half}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user is told."""
        found = []
        if "attention_mask" in self.dropped:
            found.append("input attention_mask is left out: it says how long texts are, and here every token counts. "
                         "Prompts of one length are continued at a time")  # fmt: skip
        if self.forgetting:
            found.append(f"{self.forgetting} caches of a window alone are of all tokens here, and masked")
        return tuple(found)


def prepare_decoder(model: ir.Model) -> Decoder | None:
    """Gives the caches of a decoder their sizes, and replaces inputs that its lengths say; None of another graph."""
    attentions = [node for node in model.graph if _is_cached(node)]
    ids = next((value for value in model.graph.inputs if value.name == "input_ids" and rank_of(value) == 2), None)
    if not attentions or ids is None:
        return None
    whole = next((node for node in attentions if not _forgets(node)), attentions[0])
    past, seq = _name(whole.inputs[3], 2), _name(ids, 1)
    if past is None or seq is None:
        return None
    for node in attentions:
        _give_sizes(node, past)
    forgetting = sum(map(_forgets, attentions))
    for node in attentions:
        node.attributes.pop(_FORGETS, None)
    tables = [node.inputs[7].const_value for node in attentions if len(node.inputs) > 7 and node.inputs[7] is not None]
    most = min((table.numpy().shape[0] for table in tables if table is not None), default=_MOST)
    sizes, dropped = _Sizes(ids, attentions[0].inputs[3]), []
    for value in list(model.graph.inputs):
        drop = _DROPS.get(str(value.name))
        if drop is not None and drop(model.graph, value, sizes):
            dropped.append(str(value.name))
            model.graph.inputs.remove(value)
        elif value.name == "attention_mask" and value.shape is not None and len(value.shape) == 2:
            value.shape = ir.Shape([value.shape[0], f"{past}+{seq}"])
    if dropped:
        sizes.write(model.graph)
    return Decoder(past, seq, most, tuple(dropped), forgetting)


def stops_of(config: Path | None) -> tuple[int, ...]:
    """The tokens behind which a text ends, by the config of a decoder; none without one.

    Raises:
        SpecError: the config cannot be read.
    """
    if config is None:
        return ()
    try:
        found: Any = json.loads(config.read_text())["model"].get("eos_token_id", [])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
        raise SpecError(f"{config} is no config of onnxruntime-genai: {err}.") from err
    every = found if isinstance(found, list) else [found]
    return tuple(token for token in every if isinstance(token, int) and not isinstance(token, bool) and token >= 0)


def _is_cached(node: ir.Node) -> bool:
    pasts = node.inputs[3:5]
    return (
        node.domain == CONTRIB
        and node.op_type == "GroupQueryAttention"
        and len(pasts) == 2
        and all(value is not None and value.is_graph_input() and rank_of(value) == 4 for value in pasts)
    )


def _forgets(node: ir.Node) -> bool:
    """Whether a cache is of a window alone."""
    return bool(attribute(node, _FORGETS, 0))


def _name(value: ir.Value | None, axis: int) -> str | None:
    dim = known_size(value, axis)
    return dim if isinstance(dim, str) else None


def _give_sizes(node: ir.Node, past: str) -> None:
    """Writes the head size of a cache into its shape, where the file leaves a name for it."""
    depth = _depth(node)
    for value in node.inputs[3:5]:
        if value is not None and value.shape is not None:
            dims = list(value.shape)
            value.shape = ir.Shape([*dims[:2], past, dims[3] if isinstance(dims[3], int) else depth or dims[3]])


def _depth(node: ir.Node) -> int | None:
    """The size of a head: what the product that makes the queries gives, by the number of heads."""
    heads, groups = (int(attribute(node, name, 0)) for name in ("num_heads", "kv_num_heads"))
    width = _width(node.inputs[0])
    return None if width is None else width // (heads if node.inputs[1] is not None else heads + 2 * groups)


def _width(value: ir.Value | None) -> int | None:
    """The size of the last axis of a product by a constant, or of what changes no size."""
    while value is not None:
        known = value.shape[-1] if value.shape else None
        node = value.producer()
        if isinstance(known, int) or node is None:
            return known if isinstance(known, int) else None
        if node.op_type == "MatMulNBits":
            return int(attribute(node, "N", 0))
        weight = node.inputs[1] if node.op_type == "MatMul" else None
        if weight is not None and weight.const_value is not None:
            return int(str(weight.const_value.shape[-1]))
        value = node.inputs[0] if node.op_type in _WAY or node.domain == CONTRIB else None
    return None


class _Sizes:
    """The sizes of a decoder, as int64[1], by nodes that `write` puts at the beginning of its graph."""

    def __init__(self, ids: ir.Value, cache: ir.Value | None) -> None:
        self._nodes: list[ir.Node] = []
        self.batch, self.seq = self.size(ids, 0), self.size(ids, 1)
        self.past = self.size(cache, 2)
        self.total = self.op("Add", self.past, self.seq)

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Makes a node whose output is of whole numbers."""
        node = ir.node(op_type, list(inputs), attributes or None)
        output = node.outputs[0]
        output.dtype = ir.DataType.INT64
        output.name = node.name = f"lengths/{op_type}/{len(self._nodes)}"
        self._nodes.append(node)
        return output

    def write(self, graph: ir.Graph) -> None:
        """Puts the nodes into the graph."""
        graph.insert_before(graph[0], self._nodes)

    def size(self, value: ir.Value | None, axis: int) -> ir.Value:
        """The size of one axis."""
        return self.op("Shape", value, start=axis, end=axis + 1)

    def ints(self, *numbers: int) -> ir.Value:
        """A constant."""
        return self.op("Constant", value_ints=list(numbers))

    def number(self, size: ir.Value) -> ir.Value:
        """A size without its axis."""
        return self.op("Squeeze", size, self.ints(0))


def _drop_mask(graph: ir.Graph, mask: ir.Value, sizes: _Sizes) -> bool:
    """Replaces a mask of which only the sums of rows and the size are used; whether it was one."""
    users = [user for user, _ in mask.uses()]
    counts = [user for user in users if _counts(user)]
    if not counts or any(user.op_type != "Shape" and user not in counts for user in users):
        return False
    for user in users:
        if user.op_type == "Shape":
            ends = slice(attribute(user, "start", None), attribute(user, "end", None))
            both = [sizes.batch, sizes.total][ends]
            made = sizes.op("Concat", *both, axis=0)
        else:
            shape = (
                sizes.op("Concat", sizes.batch, sizes.ints(1), axis=0)
                if attribute(user, "keepdims", 1) == 1
                else sizes.batch
            )
            made = sizes.op("Expand", sizes.total, shape)
            if mask.dtype not in (None, ir.DataType.INT64):
                made = sizes.op("Cast", made, to=mask.dtype)
                made.dtype = mask.dtype
        ir.convenience.replace_all_uses_with(user.outputs[0], made)
        graph.remove(user, safe=True)
    return True


def _counts(node: ir.Node) -> bool:
    """Whether a node sums a mask along its second axis."""
    return node.op_type == "ReduceSum" and len(node.inputs) > 1 and scalar(node.inputs[1]) in (1, -1)


def _drop_positions(graph: ir.Graph, positions: ir.Value, sizes: _Sizes) -> bool:
    """Replaces positions that nothing but rotations takes; whether they were such."""
    if any((user.domain, user.op_type, at) not in _ROTATIONS for user, at in positions.uses()):
        return False
    end = sizes.number(sizes.total)
    every = sizes.op("Range", sizes.number(sizes.past), end, sizes.number(sizes.ints(1)))
    shape = sizes.op("Concat", sizes.batch, sizes.seq, axis=0)
    ir.convenience.replace_all_uses_with(positions, sizes.op("Expand", every, shape))
    return True


_ROTATIONS = {(CONTRIB, "GroupQueryAttention", 9), (CONTRIB, "RotaryEmbedding", 1)}
_DROPS = {"attention_mask": _drop_mask, "position_ids": _drop_positions}
