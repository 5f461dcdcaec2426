"""Every kind of mask and bias in one module, exported once: what NumPy, torch and the graph make of the same inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from attnport.artifacts import IOContract
from attnport.dims import Dim, TensorSpec
from attnport.exporter.capture import capture
from attnport.masks import MaskSpec, numpy_biases, numpy_builders, torch_biases, torch_builders
from attnport.masks.numpy_builders import encode_mask

Array = np.ndarray[Any, Any]

HEADS = 6
"""No power of two, which ALiBi treats apart."""
BUCKETS = 12
TABLE = np.arange(BUCKETS * HEADS, dtype=np.float32).reshape(BUCKETS, HEADS) / 8
INPUTS = {
    "keep_bool": TensorSpec("keep_bool", "bool", ("B", "T")),
    "hide_int32": TensorSpec("hide_int32", "int32", ("B", 1, 1, "T")),
    "keep_int64": TensorSpec("keep_int64", "int64", ("B", 1, "S", "T")),
    "hide_bool": TensorSpec("hide_bool", "bool", ("B", "S", "T")),
    "additive_f32": TensorSpec("additive_f32", "float32", ("B", 1, "S", "T")),
    "additive_f16": TensorSpec("additive_f16", "float16", ("B", "T")),
    "one_row": TensorSpec("one_row", "int64", ("T",)),
    "lengths": TensorSpec("lengths", "int64", ("B",)),
    "prefix": TensorSpec("prefix", "int32", ("B",)),
    "ids": TensorSpec("ids", "int64", ("B", "T")),
    "ids_int32": TensorSpec("ids_int32", "int32", ("B", "T")),
    "marks": TensorSpec("marks", "bool", ("B", "T")),
    "marks_int64": TensorSpec("marks_int64", "int64", ("B", "T")),
    "queries": TensorSpec("queries", "float32", ("S",)),
}
LR = "lower_right"
MASKS = (
    MaskSpec(),
    MaskSpec(("padding",), "keep_bool"),
    MaskSpec(("padding",), "hide_int32", "hide"),
    MaskSpec(("padding",), "additive_f16", "additive"),
    MaskSpec(("padding",), "one_row"),
    MaskSpec(("explicit",), "keep_int64"),
    MaskSpec(("explicit",), "hide_bool", "hide"),
    MaskSpec(("explicit",), "additive_f32", "additive"),
    MaskSpec(("padding",), "lengths", carries="lengths"),
    MaskSpec(("causal",)),
    MaskSpec(("causal",), alignment=LR),
    MaskSpec(("window",), window=2),
    MaskSpec(("causal", "window"), window=3, alignment=LR),
    MaskSpec(("window",), window=0, alignment=LR),
    MaskSpec(("prefix",), "prefix", carries="lengths"),
    MaskSpec(("causal", "prefix"), "prefix", carries="lengths"),
    MaskSpec(("prefix", "window"), "prefix", carries="lengths", window=4, alignment=LR),
    MaskSpec(("documents",), "ids", carries="ids"),
    MaskSpec(("documents", "padding", "causal"), "ids_int32", carries="ids", alignment=LR),
    MaskSpec(("window", "global"), "marks", window=1, carries="marks"),
    MaskSpec(("window", "global", "causal"), "marks_int64", window=2, carries="marks", alignment=LR),
    MaskSpec(("causal", "padding", "window"), "keep_bool", window=5),
    MaskSpec(("causal", "padding"), "lengths", carries="lengths", alignment=LR),
)
ENCODINGS = tuple(
    (polarity, dtype)
    for polarity, dtypes in (
        ("keep", ("bool", "int32", "int64", "float32")),
        ("hide", ("bool", "int32", "int64")),
        ("additive", ("float32", "float16", "float64")),
    )
    for dtype in dtypes
)
BIASES: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...] = (
    ("alibi", (HEADS,), {}),
    ("alibi", (HEADS,), {"alignment": LR, "symmetric": True}),
    ("t5_bias", (TABLE,), {"max_distance": 20}),
    ("t5_bias", (TABLE,), {"max_distance": 9, "bidirectional": False, "alignment": LR}),
)


class EveryMask(nn.Module):
    """One output a mask, its encodings taking turns, then the encodings of one mask, then the biases."""

    def forward(
        self, keep_bool: Any, hide_int32: Any, keep_int64: Any, hide_bool: Any, additive_f32: Any, additive_f16: Any,
        one_row: Any, lengths: Any, prefix: Any, ids: Any, ids_int32: Any, marks: Any, marks_int64: Any, queries: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        every = (keep_bool, hide_int32, keep_int64, hide_bool, additive_f32, additive_f16, one_row)
        every += (lengths, prefix, ids, ids_int32, marks, marks_int64, queries)
        inputs = dict(zip(INPUTS, every, strict=True))
        S, T = queries.shape[0], one_row.shape[0]
        keeps = [torch_builders.build(mask, inputs.get(str(mask.input)), S, T) for mask in MASKS]
        encoded = [
            torch_builders.encode(keep, polarity, getattr(torch, dtype))
            for keep, (polarity, dtype) in zip([*keeps, *[keeps[-1]] * len(ENCODINGS)], turns(), strict=True)
        ]
        biases = []
        for name, args, options in BIASES:
            given = [torch.from_numpy(each) if isinstance(each, np.ndarray) else each for each in args]
            biases.append(getattr(torch_biases, name)(*given, S, T, **options))
        return (*encoded, *biases)


def turns() -> list[tuple[str, str]]:
    """The polarity and dtype of each encoded output."""
    return [*(ENCODINGS[n % len(ENCODINGS)] for n in range(len(MASKS))), *ENCODINGS]


def in_numpy(inputs: dict[str, Array], S: int, T: int) -> list[Array]:
    """The outputs of `EveryMask` by the reference."""
    keeps = [numpy_builders.build(mask, inputs.get(str(mask.input)), S, T) for mask in MASKS]
    made = [
        encode_mask(MaskSpec(polarity=polarity), dtype, keep)
        for keep, (polarity, dtype) in zip([*keeps, *[keeps[-1]] * len(ENCODINGS)], turns(), strict=True)
    ]
    return made + [
        getattr(numpy_biases, name)(*args, S, T, **options).astype(np.float32) for name, args, options in BIASES
    ]


def in_torch(inputs: dict[str, Array]) -> list[Array]:
    """The outputs of `EveryMask`, run by torch."""
    with torch.no_grad():
        found = EveryMask()(**{name: torch.from_numpy(each) for name, each in inputs.items()})
    return [each.numpy() for each in found]


def exported() -> Any:
    """ONNX Runtime's session of `EveryMask`, exported."""
    import onnx_ir as ir
    import onnxruntime

    names = [f"y{n}" for n in range(len(turns()) + len(BIASES))]
    outputs = tuple(TensorSpec(name, "float32", ()) for name in names)
    dims = (Dim("B", 1, 3, 8), Dim("T", 1, 7, 64), Dim("S", 1, 5, 64))
    model = capture(EveryMask().eval(), IOContract(tuple(INPUTS.values()), outputs, dims)).model
    for output in model.graph.outputs:
        output.shape = None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options, ["CPUExecutionProvider"])


def random_inputs(random: np.random.Generator, B: int, S: int, T: int) -> dict[str, Array]:
    """Values for every input; some items without a key, prefixes and lengths from zero to all, ids that come again."""
    made: dict[str, Array] = {}
    for spec in INPUTS.values():
        shape = spec.shape({"B": B, "S": S, "T": T})
        if spec.name in ("lengths", "prefix"):
            made[spec.name] = random.integers(0, T + 1, shape).astype(spec.dtype)
        elif spec.name.startswith("ids"):
            made[spec.name] = random.integers(0, 3, shape).astype(spec.dtype)
        elif spec.name.startswith("additive"):
            low = random.choice([-np.inf, -1e4, -6e4], shape)
            made[spec.name] = np.where(random.random(shape) < 0.6, 0.0, low).astype(spec.dtype)
        else:
            made[spec.name] = (random.random(shape) < 0.6).astype(spec.dtype)
    return made


def allowed(mask: MaskSpec, value: Array | None, b: int, i: int, j: int, S: int, T: int) -> bool:
    """Whether query i of item b may see key j, word for word as `attnport_bundle.contract` says."""
    at = i + T - S if mask.alignment == LR else i
    kinds, near = set(mask.kinds), abs(at - j) <= mask.window
    said = value if value is not None else np.zeros(0)
    if mask.carries == "lengths" and "prefix" in kinds:
        causal = j <= at or j < said[b]
    else:
        causal = j <= at or "causal" not in kinds
    if mask.carries == "marks":
        near = near or bool(said[b, at]) or bool(said[b, j])
    own = True
    if mask.carries == "lengths" and "padding" in kinds:
        own = j < said[b]
    elif mask.carries == "ids":
        own = said[b, at] == said[b, j] and ("padding" not in kinds or said[b, j] != 0)
    elif value is not None and mask.carries == "mask":
        of_all = {1: (j,), 2: (b, j), 3: (b, i, j), 4: (b, 0, min(i, said.shape[-2] - 1 if said.ndim > 1 else 0), j)}
        one = float(said[of_all[said.ndim]])
        own = {"keep": one != 0, "hide": one == 0, "additive": one == 0}[mask.polarity]
    return bool(causal and (near or "window" not in kinds) and own)
