"""Writes ONNX nodes by hand, in float16 and with random weights, for the forms that engines are measured against."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir


class GraphWriter:
    """Adds nodes to one graph; weights are random and seeded."""

    def __init__(self) -> None:
        self.tape = ir.tape.Tape()
        self.random = np.random.default_rng(0)
        self.count = 0

    def op(self, kind: str, *inputs: ir.Value, name: str = "", **attributes: Any) -> ir.Value:
        self.count += 1
        return self.tape.op(kind, inputs, attributes, name=name or f"{kind}_{self.count}")

    def const(self, array: Any, dtype: type = np.float16) -> ir.Value:
        self.count += 1
        return self.tape.initializer(ir.tensor(np.asarray(array, dtype)), name=f"constant_{self.count}")

    def ints(self, *values: int) -> ir.Value:
        return self.const(values, np.int64)

    def weight(self, *shape: int) -> ir.Value:
        return self.const(self.random.standard_normal(shape, dtype=np.float32) * 0.02)

    def dense(self, x: ir.Value, rows: int, columns: int) -> ir.Value:
        return self.op("Add", self.op("MatMul", x, self.weight(rows, columns)), self.weight(columns))

    def norm(self, x: ir.Value, size: int) -> ir.Value:
        # 1e-12 is 0 in float16; the operator keeps its epsilon as a float32 attribute and computes in float32.
        scale, bias = self.const(np.ones(size)), self.const(np.zeros(size))
        return self.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-12)
