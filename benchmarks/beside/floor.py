"""The floor: the operations of the real tokens, divided by the rate at which this machine multiplies their matrices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RATE = """
import json, os, sys, time
import torch
os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[-1:]))
torch.set_num_threads(1)
rows, shapes, seconds = json.loads(sys.argv[1])
best = {}
for word, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
    for K, N in shapes:
        x_MK, w_NK = torch.rand(rows, K).to(dtype), torch.rand(N, K).to(dtype)
        for pack, multiply in (
            (lambda: w_NK.T, lambda packed: x_MK @ packed),
            (lambda: torch.ops.mkldnn._reorder_linear_weight(w_NK, rows),
             lambda packed: torch.ops.mkldnn._linear_pointwise(x_MK, packed, None, "none", [], "")),
        ):
            try:  # oneDNN packs no bfloat16 where the processor cannot multiply it
                packed = pack()
                multiply(packed)
                end = time.perf_counter() + seconds
                while time.perf_counter() < end:
                    began = time.perf_counter()
                    multiply(packed)
                    taken = time.perf_counter() - began
                    best[word] = max(best.get(word, 0.0), 2 * rows * K * N / taken)
            except RuntimeError:
                pass
print(json.dumps(best))
"""


@dataclass(frozen=True)
class Shape:
    """A transformer's products.

    Attributes:
        hidden: The width of queries, keys and values, all heads together.
        products: Rows and columns of the weight of each product of one layer.
        windows: By layer, how many tokens on each side a token attends to; 0 = all.
        embedding: The product that makes a token of an image's patch; none for text.
    """

    hidden: int
    products: tuple[tuple[int, int], ...]
    windows: tuple[int, ...]
    embedding: tuple[int, int] | None = None

    def operations(self, lengths: Sequence[int]) -> int:
        """Of rows of these lengths without padding: two for each multiplication, softmax and norms left out."""
        tokens = sum(lengths)
        weights = len(self.windows) * sum(K * N for K, N in self.products)
        if self.embedding is not None:
            weights += self.embedding[0] * self.embedding[1]
        pairs = sum(pairs_of(length, window) for length in lengths for window in self.windows)
        return 2 * (tokens * weights + 2 * pairs * self.hidden)


def pairs_of(length: int, window: int) -> int:
    """Queries and keys that meet: all, or those at most `window` apart."""
    if not window or window >= length:
        return length * length
    return length + 2 * sum(length - apart for apart in range(1, window + 1))


def encoder(hidden: int, inner: int, layers: int) -> Shape:
    """BERT and ViT: four square products and two of the feed-forward part."""
    square = (hidden, hidden)
    return Shape(hidden, (square, square, square, square, (hidden, inner), (inner, hidden)), (0,) * layers)


def multiples(operations: int, rates: Mapping[str, float], sides: Mapping[str, Any]) -> dict[str, Any]:
    """The floor in float32 and in bfloat16 on one thread, and attnport's best time as a multiple of it.

    Args:
        sides: By name, rows with `precision` and, where a side ran, `ms`.
    """
    found: dict[str, Any] = {"operations": operations}
    for precision, word in (("fp32", "fp32"), ("half", "bf16")):
        times = [
            row["ms"]
            for name, row in sides.items()
            if name.startswith("attnport") and row["precision"] == precision and "ms" in row
        ]
        if times and word in rates:
            floor_ms = operations / rates[word] * 1e3
            found[precision] = {"floor_ms": round(floor_ms, 3), "ours": round(min(times) / floor_ms, 3)}
    return found


def rates(shape: Shape, rows: int, seconds: float) -> dict[str, float]:
    """Operations a second of the best product of these shapes on one thread, by type, PyTorch's and oneDNN's."""
    wanted = json.dumps([rows, sorted(set(shape.products)), seconds])
    done = subprocess.run(
        [sys.executable, "-c", RATE, wanted], capture_output=True, text=True, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout)
    return found
