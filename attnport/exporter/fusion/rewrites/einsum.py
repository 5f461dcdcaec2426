"""Rewrites an `Einsum` of two tensors as a matrix product."""

from __future__ import annotations

import string
from dataclasses import dataclass

import numpy as np

from attnport.exporter.builder import Builder
from attnport.exporter.portable import pair_einsums
from attnport.onnx_graph import dims_of, ir


@dataclass(frozen=True)
class Equation:
    """`left,right->output` as a product of matrices.

    Attributes:
        leads: The letters of the leading axes, in the order of the output.
        row: The letter of the rows; "" = one row.
        column: The letter of the columns; "" = one column.
        summed: The letter that is summed over.
    """

    left: str
    right: str
    output: str
    leads: str
    row: str
    column: str
    summed: str


def apply(model: ir.Model) -> int:
    """Replaces each `Einsum` that sums over one letter; returns how many were replaced."""
    pair_einsums(model)
    build, replaced = Builder(model), 0
    for node in [node for node in model.graph if node.op_type == "Einsum" and node.domain == ""]:
        ranks = [len(dims) if (dims := dims_of(value)) is not None else None for value in node.inputs]
        equation = parse(node.attributes["equation"].as_string(), ranks)
        if equation is None:
            continue
        build.before, build.scope = node, node.name or "einsum"
        build.replace(node.outputs[0], _product(build, node, equation))
        model.graph.remove(node, safe=True)
        replaced += 1
    return replaced


def parse(text: str, ranks: list[int | None]) -> Equation | None:
    """An equation of two operands as a product; None if it has diagonals, sums over one side, or sums over nothing."""
    text = text.replace(" ", "")
    inputs, arrow, output = text.partition("->")
    operands = inputs.split(",")
    if len(operands) != 2 or len(ranks) != 2 or None in ranks:
        return None
    spelt = _without_ellipsis(operands, output if arrow else None, [rank for rank in ranks if rank is not None])
    if spelt is None:
        return None
    left, right, output = spelt
    if any(len(set(letters)) != len(letters) for letters in (left, right, output)):
        return None
    summed = (set(left) & set(right)) - set(output)
    if len(summed) != 1 or (set(left) ^ set(right)) - set(output) or set(output) - set(left) - set(right):
        return None
    rows = [letter for letter in output if letter in left and letter not in right]
    columns = [letter for letter in output if letter in right and letter not in left]
    row, column = (rows or [""])[-1], (columns or [""])[-1]
    leads = "".join(letter for letter in output if letter not in (row, column))
    return Equation(left, right, output, leads, row, column, next(iter(summed)))


def _without_ellipsis(operands: list[str], output: str | None, ranks: list[int]) -> tuple[str, str, str] | None:
    """The letters of both operands and the output, with new letters for the axes of an ellipsis."""
    used = "".join(operands) + (output or "")
    spare = [letter for letter in string.ascii_letters if letter not in used]
    counts = [rank - len(text.replace("...", "")) for text, rank in zip(operands, ranks, strict=True)]
    if any(count < 0 or ("..." not in text and count) for text, count in zip(operands, counts, strict=True)):
        return None
    most = max(counts)
    named = "".join(spare[:most])
    left, right = (text.replace("...", named[most - count :]) for text, count in zip(operands, counts, strict=True))
    if output is None:
        joined = left + right
        alone = sorted(letter for letter in set(joined) if joined.count(letter) == 1 and letter not in named)
        return left, right, named + "".join(alone)
    return left, right, output.replace("...", named)


def _product(build: Builder, node: ir.Node, equation: Equation) -> ir.Value:
    first, second = node.inputs
    assert first is not None
    assert second is not None
    left = _operand(build, first, equation.left, equation.leads, equation.row, equation.summed)
    right = _operand(build, second, equation.right, equation.leads, equation.summed, equation.column)
    product = build.op("MatMul", left, right, name="product", shape=_shape(node, equation))
    gone = [len(equation.leads) + at for at, letter in enumerate((equation.row, equation.column)) if not letter]
    if gone:
        product = build.op("Squeeze", product, build.const(gone, np.int64), name="vector")
    order = equation.leads + equation.row + equation.column
    if order != equation.output:
        product = build.op(
            "Transpose", product, name="permuted", perm=[order.index(letter) for letter in equation.output]
        )
    return product


def _operand(build: Builder, value: ir.Value, letters: str, leads: str, row: str, column: str) -> ir.Value:
    """An operand as `[leads, row, column]`, with size 1 for each axis that it does not have."""
    dims = list(dims_of(value) or [])
    wanted = [letter for letter in (*leads, row, column) if letter and letter in letters]
    perm = [letters.index(letter) for letter in wanted]
    dims = [dims[at] for at in perm]
    if perm != [*range(len(perm))]:
        value = build.op("Transpose", value, name="operand", perm=perm, shape=dims)
    missing = [at for at, letter in enumerate((*leads, row, column)) if not letter or letter not in letters]
    if missing:
        for at in missing:
            dims.insert(at, 1)
        value = build.op("Unsqueeze", value, build.const(missing, np.int64), name="operand", shape=dims)
    return value


def _shape(node: ir.Node, equation: Equation) -> list[int | str | None] | None:
    dims = dims_of(node.outputs[0])
    if dims is None:
        return None
    size = dict(zip(equation.output, dims, strict=True))
    return [size[letter] if letter else 1 for letter in (*equation.leads, equation.row, equation.column)]
