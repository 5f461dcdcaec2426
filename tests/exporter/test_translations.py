"""What torch's exporter cannot translate is translated here, and computes what torch computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from attnport.exporter.tracing import quiet
from attnport.exporter.translations import tables


class Grouped(nn.Module):
    """Rows sorted by group, each times its group's matrix."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weights = nn.Parameter(torch.randn(4, 8, 16, generator=generator))

    def forward(self, rows: torch.Tensor, ends: torch.Tensor) -> Any:
        return torch.ops.transformers.grouped_mm_fallback(rows, self.weights, ends)


@pytest.mark.parametrize("ends", [[3, 5, 9, 12], [0, 0, 12, 12], [12, 12, 12, 12], [0, 0, 0, 12]])
def test_each_row_is_multiplied_with_its_groups_matrix(tmp_path: Path, ends: list[int]) -> None:
    import onnxruntime as ort

    pytest.importorskip("transformers.integrations.moe")  # registers the operator
    module, path = Grouped().eval(), tmp_path / "model.onnx"
    rows = torch.randn(12, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), quiet():
        torch.onnx.export(
            module, (rows, torch.tensor([1, 2, 3, 12], dtype=torch.int32)), str(path), dynamo=True, opset_version=23,
            dynamic_shapes=({0: torch.export.Dim.AUTO}, None), custom_translation_table=tables(), verbose=False,
        )  # fmt: skip
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    got = np.asarray(session.run(None, dict(zip(names, (rows.numpy(), np.array(ends, np.int32)), strict=True)))[0])
    begins = [0, *ends[:-1]]
    weights = module.weights.detach().numpy()
    expected = np.concatenate(
        [rows.numpy()[begin:end] @ one for begin, end, one in zip(begins, ends, weights, strict=True)]
    )
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
