"""Rewrites what runtimes refuse or misread in graphs of torch's exporter and of others."""

from __future__ import annotations

import itertools
import re
import string

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.naming import all_nodes
from attnport.onnx_graph import attribute, dims_of, ir


def name_padded_axes(model: ir.Model) -> None:
    """Rewrites each constant `Pad` before a `MaxPool` to name its axes, in place.

    Where a `Pad` names the padding of all axes, ONNX Runtime takes its zeros for the padding of the `MaxPool`, which is
    minus infinity (https://github.com/microsoft/onnxruntime/pull/18136): a window of negative numbers at the border
    then has another maximum.
    """
    for pool in list(all_nodes(model)):
        pad = pool.inputs[0].producer() if pool.op_type == "MaxPool" and pool.inputs[0] is not None else None
        if pad is None or pad.op_type != "Pad" or pad.graph is None:
            continue
        if len(pad.inputs) > 3 and pad.inputs[3] is not None:
            continue
        known = ir.convenience.get_const_tensor(pad.inputs[1]) if pad.inputs[1] is not None else None
        if known is None:
            continue
        begin_end = known.numpy().reshape(2, -1)
        axes = np.flatnonzero(begin_end.any(axis=0))
        wanted = {"pads": begin_end[:, axes].reshape(-1), "axes": axes.astype(np.int64)}
        constants = [ir.node("Constant", [], {"value": ir.tensor(array)}) for array in wanted.values()]
        pad.graph.insert_before(pad, constants)
        pad.resize_inputs(4)
        pad.replace_input_with(1, constants[0].outputs[0])
        pad.replace_input_with(3, constants[1].outputs[0])


def pair_einsums(model: ir.Model) -> None:
    """Replaces every `Einsum` of three operands or more, or with an ellipsis, by ones of two operands and with letters
    alone, in place.

    OpenVINO fails on some ellipses, such as that of Performer's `...de,...nd,...n->...ne`, and TensorRT takes two
    operands at most. Operands are taken from left to right; an index is summed with the last operand that has it.
    """
    build = Builder(model)
    for node in [node for node in all_nodes(model) if node.op_type == "Einsum"]:
        equation = _spelled(node)
        operands, arrow, result = equation.partition("->")
        terms = [re.findall(r"\.\.\.|\w", operand) for operand in operands.split(",")]
        if not arrow or len(terms) != len(node.inputs):
            continue
        if len(terms) < 3 or node.graph is not model.graph:  # new nodes go into the main graph alone
            node.attributes.add(ir.AttrString("equation", equation))
            continue
        build.before, build.scope = node, node.name or "einsum"
        value, held = node.inputs[0], terms[0]
        named = [pair for operand, term in zip(node.inputs, terms, strict=True)
                 for pair in zip(term, dims_of(operand) or [None] * len(term), strict=False)]  # fmt: skip
        sizes = dict(sorted(named, key=lambda pair: pair[1] != 1))  # an axis of one may be broadcast
        for at, (other, term) in enumerate(zip(node.inputs[1:], terms[1:], strict=True), start=2):
            needed = {*itertools.chain(*terms[at:]), *re.findall(r"\.\.\.|\w", result)}
            kept = [index for index in dict.fromkeys((*held, *term)) if index in needed]
            written = result if at == len(terms) else "".join(kept)
            pair = f"{''.join(held)},{''.join(term)}->{written}"
            shape = None if "." in equation else [sizes[index] for index in kept]
            value, held = build.op("Einsum", value, other, name="pair", shape=shape, equation=pair), kept
        assert value is not None
        build.replace(node.outputs[0], value)
        model.graph.remove(node, safe=True)


def _spelled(node: ir.Node) -> str:
    """The equation of an `Einsum` with letters in place of an ellipsis that is the same sizes in all operands, or the
    last of them."""
    equation: str = attribute(node, "equation", "").replace(" ", "")
    operands, arrow, result = equation.partition("->")
    terms, hidden = operands.split(","), list[list[int | str | None]]()
    for term, value in zip(terms, [*node.inputs, *[None] * len(terms)], strict=False):
        if "..." in term and (value is None or value.shape is None):
            return equation
        before, dots, after = term.partition("...")
        sizes = [dim if isinstance(dim, int) else dim.value for dim in value.shape or ()] if dots and value else []
        hidden.append(sizes[len(before) : len(sizes) - len(after)])
    longest = max(hidden, key=len)
    if None in longest or any(sizes != longest[len(longest) - len(sizes) :] for sizes in hidden):
        return equation
    letters = [letter for letter in string.ascii_letters if letter not in equation][: len(longest)]
    written = [term.replace("...", "".join(letters[len(letters) - len(sizes) :]))
               for term, sizes in zip((*terms, result), (*hidden, longest), strict=True)]  # fmt: skip
    return f"{','.join(written[:-1])}{arrow}{written[-1]}"


def write_out_spectra(model: ir.Model) -> None:
    """Replaces every `STFT` of real samples with frames of a known length by a convolution, in place.

    Source: the definition of STFT in the ONNX standard, opset 17. OpenVINO reads it for samples of a known number
    alone, and TensorRT not at all.
    """
    build = Builder(model)
    for node in [node for node in all_nodes(model) if node.op_type == "STFT" and node.domain == ""]:
        samples, step, window, length = [*node.inputs, None, None][:4]
        known = [None if value is None else ir.convenience.get_const_tensor(value) for value in (step, window, length)]
        hop, weights, size = (None if value is None else value.numpy() for value in known)
        if samples is None or samples.shape is None or samples.shape[-1] != 1 or samples.dtype is None:
            continue
        if hop is None or (weights is None and (window is not None or size is None)) or node.graph is None:
            continue
        shown = np.ones(int(size or 0)) if weights is None else weights.astype(np.float64)
        count = len(shown)
        bins = count // 2 + 1 if attribute(node, "onesided", 1) else count
        angles = 2 * np.pi * (np.arange(bins)[:, None] * np.arange(count) % count) / count
        waves = (np.stack([np.cos(angles), -np.sin(angles)]) * shown).reshape(2 * bins, 1, count)
        build.before, build.scope = node, node.name or "spectrum"
        rows = build.op("Transpose", samples, name="samples", perm=[0, 2, 1])
        kernels = build.stored(f"{build.scope}/waves", waves.astype(samples.dtype.numpy()))
        parts = build.op("Conv", rows, kernels, name="frames", strides=[int(hop)], kernel_shape=[count])
        pairs = build.op("Reshape", parts, build.const([0, 2, bins, -1], np.int64), name="pairs")
        build.replace(node.outputs[0], build.op("Transpose", pairs, name="spectrum", perm=[0, 3, 2, 1]))
        node.graph.remove(node, safe=True)


def write_out_rotary(model: ir.Model) -> int:
    """Replaces every `RotaryEmbedding` on `[B,H,S,D]` whose caches may have another batch than x; returns how many.

    Source: the definition of RotaryEmbedding in the ONNX standard, opset 23: the halves (or, interleaved, the pairs) of
    x are rotated by the angle of each position.

    torch's exporter uses the operator with caches of `[1,S,D/2]`, but the standard requires `[B,S,D/2]`: ONNX Runtime
    refuses such a graph at run time, TensorRT when it parses it. Written out, the caches broadcast, every opset has the
    operators, and the attention after them still fuses.
    """
    build = Builder(model)
    replaced = 0
    for node in [node for node in model.graph if node.op_type == "RotaryEmbedding" and node.domain == ""]:
        if not _has_refused_caches(node):
            continue
        build.before, build.scope = node, node.name or "rotary"
        build.replace(node.outputs[0], _rotated(build, node))
        model.graph.remove(node, safe=True)
        replaced += 1
    return replaced


def _has_refused_caches(node: ir.Node) -> bool:
    x, cosines = node.inputs[0], node.inputs[1]
    if x is None or cosines is None or x.shape is None or len(x.shape) != 4:
        return False
    depth = x.shape[3]
    part = attribute(node, "rotary_embedding_dim", 0)
    with_positions = len(node.inputs) > 3 and node.inputs[3] is not None
    if not isinstance(depth, int) or depth % 2 or part not in (0, depth) or with_positions:
        return False
    return cosines.shape is None or len(cosines.shape) != 3 or cosines.shape[0] != x.shape[0]


def _rotated(build: Builder, node: ir.Node) -> ir.Value:
    x, cosines, sines = node.inputs[:3]
    assert x is not None
    assert x.shape is not None
    half = int(str(x.shape[3])) // 2
    interleaved = attribute(node, "interleaved", 0) == 1
    axis = build.const([1], np.int64)
    cos = build.op("Unsqueeze", cosines, axis, name="cos")
    sin = build.op("Unsqueeze", sines, axis, name="sin")
    first, second = _parts(build, x, half, interleaved)
    turned = [
        build.op("Sub", build.op("Mul", first, cos), build.op("Mul", second, sin), name="first"),
        build.op("Add", build.op("Mul", second, cos), build.op("Mul", first, sin), name="second"),
    ]
    if not interleaved:
        return build.op("Concat", *turned, name="rotated", axis=-1)
    pairs = [build.op("Unsqueeze", part, build.const([-1], np.int64), name="pair") for part in turned]
    stacked = build.op("Concat", *pairs, name="pairs", axis=-1)
    return build.op("Reshape", stacked, build.op("Shape", x, name="shape", dtype=ir.DataType.INT64), name="rotated")


def _parts(build: Builder, x: ir.Value, half: int, interleaved: bool) -> tuple[ir.Value, ir.Value]:
    """The two numbers of each rotated pair: the halves of the last axis, or its even and odd places."""
    axis = build.const([-1], np.int64)
    starts, ends, step = ((0, 1), (2 * half, 2 * half), 2) if interleaved else ((0, half), (half, 2 * half), 1)
    first, second = (
        build.op("Slice", x, *(build.const([n], np.int64) for n in (start, end)), axis, build.const([step], np.int64))
        for start, end in zip(starts, ends, strict=True)
    )
    return first, second
