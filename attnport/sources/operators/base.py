"""What an operator is told besides its inputs, and the table that operators enter themselves into."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

Operator = Callable[..., Any]
Made = TypeVar("Made", bound=Operator)
OPERATORS: dict[str, Operator] = {}
"""Those of ONNX, by name."""

_TYPES = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32, 7: torch.int64, 9: torch.bool,
    10: torch.float16, 11: torch.float64, 16: torch.bfloat16,
}  # fmt: skip
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Call:
    """A node, and where it is computed.

    Attributes:
        name: The operator.
        attributes: By name, as Python values; graphs are left out.
        opset: The version of the node's domain.
        outputs: How many outputs it has.
        dtype: What a floating type of 16 or 32 bits is computed in: the type that the module was cast to.
        device: Where new tensors are made.
    """

    name: str
    attributes: Mapping[str, Any]
    opset: int
    outputs: int
    dtype: torch.dtype
    device: torch.device

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attributes.get(name, default)

    def type(self, number: int) -> torch.dtype:
        """The type of a number of TensorProto.DataType; raises NotImplementedError for one that PyTorch lacks."""
        if number not in _TYPES:
            raise NotImplementedError(f"type {number} of TensorProto.DataType")
        found = _TYPES[number]
        return self.dtype if found in _FLOATS else found

    def whole(self, values: Iterable[int]) -> Tensor:
        """A vector of whole numbers, as shapes are."""
        return torch.tensor(list(values), dtype=torch.int64, device=self.device)


def operator(*names: str) -> Callable[[Made], Made]:
    """Enters a function into the table."""

    def entered(function: Made) -> Made:
        OPERATORS.update(dict.fromkeys(names, function))
        return function

    return entered


def numbers(tensor: Tensor | None) -> list[int]:
    """The whole numbers of a tensor, as of axes and shapes; none of one that is left out."""
    return [] if tensor is None else [int(value) for value in tensor.reshape(-1).tolist()]


def axes_of(call: Call, given: Tensor | None, rank: int) -> list[int]:
    """The axes of an attribute or, in newer opsets, of an input, from 0 up; all where neither is given."""
    axes = numbers(given) if given is not None else list(call.get("axes", ()))
    return sorted(axis % rank for axis in axes) if axes else list(range(rank))
