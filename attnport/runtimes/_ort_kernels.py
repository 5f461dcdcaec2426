"""Which kernel computes each attention on CUDA, as ONNX Runtime itself prints it.

One operator is no proof of one kernel there: an attention operator chooses among kernels when it runs, and the last
choice, MATH, is several of them. With an environment variable, ONNX Runtime prints the choice on its standard output,
a line for each node that runs (measured with 1.31.1):

    Operator=Attention Node=att DataType=fp16 SdpaKernel=FLASH_ATTENTION
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

    from attnport.artifacts import IOContract

VARIABLE = "ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO"
UNFUSED = "MATH"
_STDOUT = 1
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LINE = re.compile(r"Operator=\S+ Node=(.+) DataType=\S+ SdpaKernel=(\S+)\s*")
_ALIGNED = 8
"""Some kernels want lengths that are multiples of 4, or of 8."""

Kernels = dict[str, tuple[str, ...]]
"""By node, the kernels that it ran as, each once."""


@contextlib.contextmanager
def printed_kernels() -> Iterator[Kernels]:
    """Has ONNX Runtime print the kernels of sessions that are made and run in the block.

    Whatever is written to the standard output of the process meanwhile is read here, and appears nowhere else.

    Yields:
        A dict that is filled when the block ends.
    """
    kernels: Kernels = {}
    before = os.environ.get(VARIABLE)
    with tempfile.TemporaryFile() as printed:
        sys.stdout.flush()
        kept = os.dup(_STDOUT)
        try:
            os.dup2(printed.fileno(), _STDOUT)
            os.environ[VARIABLE] = "1"
            yield kernels
        finally:
            sys.stdout.flush()
            os.dup2(kept, _STDOUT)
            os.close(kept)
            os.environ.pop(VARIABLE, None)
            if before is not None:
                os.environ[VARIABLE] = before
        printed.seek(0)
        kernels.update(kernels_in(printed.read().decode("utf-8", "replace")))


def kernels_in(printed: str) -> Kernels:
    """The kernels in what ONNX Runtime printed; a node without a line is missing."""
    found: Kernels = {}
    for line in _COLOUR.sub("", printed).splitlines():
        if match := _LINE.fullmatch(line):
            node, kernel = match.groups()
            found[node] = tuple(dict.fromkeys((*found.get(node, ()), kernel)))
    return found


def aligned_sizes(graph: onnx.ModelProto, io: IOContract | None) -> dict[str, int]:
    """Small sizes of a model's named dims that are multiples of 8, where the contract allows them."""
    if io is not None:
        return {dim.name: dim.at_least(-(-max(dim.min, 1) // _ALIGNED) * _ALIGNED) for dim in io.dims}
    dims = {dim.dim_param for value in graph.graph.input for dim in value.type.tensor_type.shape.dim if dim.dim_param}
    return dict.fromkeys(dims, _ALIGNED)
