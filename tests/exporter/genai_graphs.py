"""A decoder as onnxruntime-genai's model builder writes it, tiny and with random weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
LAYERS, HEADS, GROUPS, DEPTH, VOCABULARY, PLACES = 2, 4, 2, 16, 40, 32
WIDTH = HEADS * DEPTH
MASK = "attention_mask"


def decoder(
    *, positions: bool = False, reads_mask: bool = False, bits: bool = False, window: int = 0, tied: bool = False
) -> onnx.ModelProto:
    """The graph.

    Args:
        positions: Whether positions are an input, as the builder has them where keys are turned by an operator of
            their own, and for some models.
        reads_mask: Whether something else than the sums of the mask is used.
        tied: Whether the table of tokens is the last layer's weight.
        window: Of the first layer; its cache then holds no more places than its caller gives. 0 = none.
        bits: Whether products are by weights of 4 bits.
    """
    made = _Graph(bits)
    total, last = made.lengths()
    table = made.op("Transpose", made.weight("head", WIDTH, VOCABULARY), perm=[1, 0]) if tied else "table"
    skip = made.op("Gather", table, "input_ids")
    x = made.op("SimplifiedLayerNormalization", skip, made.weight("norm", WIDTH), epsilon=1e-6, axis=-1)
    for layer in range(LAYERS):
        qkv = made.product(x, f"{layer}.qkv", WIDTH, (HEADS + 2 * GROUPS) * DEPTH)
        caches = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        y = f"attention.{layer}"
        sliding = {"local_window_size": window, "sliding_window_cache": 1} if window and layer == 0 else {}
        place = ["position_ids"] if positions else [""]
        made.nodes.append(
            helper.make_node(
                "GroupQueryAttention", [qkv, "", "", *caches, last, total, "cos", "sin", *place],
                [y, *(f"present.{layer}.{kind}" for kind in ("key", "value"))], domain="com.microsoft",
                name=f"/model/layers.{layer}/attn/GroupQueryAttention", num_heads=HEADS, kv_num_heads=GROUPS,
                scale=DEPTH**-0.5, do_rotary=1, **sliding,
            )
        )  # fmt: skip
        output = made.product(y, f"{layer}.out", WIDTH, WIDTH)
        x, skip = made.skipped(skip, output, f"{layer}.norm")
    logits = made.op("MatMul", x, "head") if tied else made.product(x, "head", WIDTH, VOCABULARY)
    if reads_mask:
        kept = made.op("Cast", made.op("ReduceMax", MASK, keepdims=0), to=TensorProto.FLOAT)
        logits = made.op("Mul", logits, kept)
    made.nodes.append(helper.make_node("Identity", [logits], ["logits"], name="logits"))
    return made.model(positions, sliding=window > 0)


class _Graph:
    """A graph as it grows."""

    def __init__(self, bits: bool) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.bits, self._held, self._random = bits, dict[str, Array](), np.random.default_rng(0)
        angles = np.arange(PLACES)[:, None] / 10 ** np.linspace(0, 2, DEPTH // 2)
        self._held |= {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
        self._held["table"] = self._random.standard_normal((VOCABULARY, WIDTH)).astype(np.float32)
        self._held["one"] = np.array([1], np.int64)

    def op(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        made = [name, *(f"{name}.{at}" for at in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, inputs, made, domain=domain, name=f"/model/{name}", **attributes))
        return name

    def weight(self, name: str, *shape: int) -> str:
        self._held[name] = (self._random.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32)
        return name

    def product(self, x: str, name: str, inner: int, outer: int) -> str:
        if not self.bits:
            return self.op("MatMul", x, self.weight(name, inner, outer))
        self._held[f"{name}.bits"] = self._random.integers(0, 256, (outer, inner // 32, 16)).astype(np.uint8)
        self._held[f"{name}.scales"] = np.full((outer, inner // 32), 0.03, np.float32)
        return self.op("MatMulNBits", x, f"{name}.bits", f"{name}.scales", domain="com.microsoft", K=inner, N=outer,
                       bits=4, block_size=32, accuracy_level=1)  # fmt: skip

    def lengths(self) -> tuple[str, str]:
        """The most keys of a text, and the last key of each, as the builder reads them of the mask."""
        counts = self.op("ReduceSum", MASK, "one", keepdims=0)
        last = self.op("Cast", self.op("Sub", counts, "one"), to=TensorProto.INT32)
        self._held["1"] = np.array(1, np.int64)
        size = self.op("Gather", self.op("Shape", MASK), "1", axis=0)
        return self.op("Cast", size, to=TensorProto.INT32), last

    def skipped(self, skip: str, x: str, name: str) -> tuple[str, str]:
        norm = self.op("SkipSimplifiedLayerNormalization", skip, x, self.weight(name, WIDTH), outputs=4,
                       domain="com.microsoft", epsilon=1e-6)  # fmt: skip
        return norm, f"{norm}.3"

    def model(self, positions: bool, *, sliding: bool) -> onnx.ModelProto:
        tokens, batch = ["batch_size", "sequence_length"], "batch_size"
        given = [("input_ids", tokens), (MASK, [batch, "total_sequence_length"])]
        given += [("position_ids", tokens)] * positions
        inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, dims) for name, dims in given]
        outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [*tokens, VOCABULARY])]
        for layer in range(LAYERS):
            for kind in ("key", "value"):
                for name, length, into in (("past_key_values", "past", inputs), ("present", "total", outputs)):
                    dims = [
                        batch,
                        GROUPS,
                        f"{length}_{'sliding' if sliding and layer == 0 else 'sequence'}_length",
                        "kv_cache_dim",
                    ]
                    into.append(helper.make_tensor_value_info(f"{name}.{layer}.{kind}", TensorProto.FLOAT, dims))
        held = [numpy_helper.from_array(array, name) for name, array in self._held.items()]
        graph = helper.make_graph(self.nodes, "main_graph", inputs, outputs, held)
        opsets = [helper.make_opsetid("", 22), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)
