"""The module that all peers of the project's own environment run or export: it returns the one output compared."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np


def imports() -> None:
    """PyTorch and transformers, before memory counts."""
    import torch  # noqa: F401
    import transformers  # noqa: F401


def module(model: Mapping[str, Any]) -> Any:
    """The module of a model in evaluation mode."""
    from attnport.artifacts import Source
    from attnport.folder.loading import load, with_outputs

    spec = with_outputs(load(Source(model["spec"])), [model["output"]])
    return spec.make().eval()


def dtype_of(variant: str) -> Any:
    """The type of a variant, `fp32` or `bf16`; raises RuntimeError where the processor does not compute in it."""
    import torch

    if variant == "bf16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        raise RuntimeError("this processor does not compute in bf16; PyTorch would take eight times as long")
    return torch.bfloat16 if variant == "bf16" else torch.float32


def tensors(feeds: Mapping[str, np.ndarray[Any, Any]], dtype: Any = None) -> dict[str, Any]:
    """Inputs as PyTorch takes them; floating ones in `dtype`."""
    import torch

    found = {name: torch.from_numpy(array) for name, array in feeds.items()}
    return {name: one.to(dtype) if dtype and one.is_floating_point() else one for name, one in found.items()}


def first(outputs: Any, name: str) -> Any:
    """The output of a name, or the only one, as a float32 array."""
    found = outputs if hasattr(outputs, "numpy") else outputs[name] if hasattr(outputs, "keys") else outputs[0]
    return found.float().numpy()


def exported(model: Mapping[str, Any], file: Any, opset: int | None) -> None:
    """What `torch.onnx.export` gives, with a free batch and, for text, a free length."""
    import numpy as np
    import torch

    example = dict(np.load(model["example"]))
    dims = {name: {0: "batch", 1: "seq"} if array.ndim == 2 else {0: "batch"} for name, array in example.items()}
    torch.onnx.export(
        module(model), (), os.fspath(file), kwargs=tensors(example), dynamo=True, opset_version=opset,
        verbose=False, dynamic_shapes=dims, external_data=True, output_names=[model["output"]],
    )  # fmt: skip
