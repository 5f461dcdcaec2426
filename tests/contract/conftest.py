"""The exports that every runtime is tried on."""

from __future__ import annotations

import warnings

import pytest
import torch
from one_attention import Model, make, pack, spec

from attnport.runtimes import base


@pytest.hookimpl(tryfirst=True)  # before the marks are looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what opens a model on a GPU, so that `make gpu-test` runs it and `make test` does not skip it each time."""
    for item in items:
        given = getattr(item, "callspec", None)
        names = [given.params.get(fixture) for fixture in ("usable", "reader")] if given is not None else []
        if any(name in base.names() and base.get(name).gpu for name in names if isinstance(name, str)):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Exported once, in three precisions."""
    folder = tmp_path_factory.mktemp("one-attention")
    sample = (torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 5, dtype=torch.bool))
    dims = {0: torch.export.Dim("batch", min=1, max=8), 1: torch.export.Dim("seq", min=1, max=32)}
    files = {}
    for plan, dtype in (("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)):
        files[plan] = folder / f"model.{plan}.onnx"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's exporter warns about itself
            torch.onnx.export(
                make().to(dtype),
                sample,
                str(files[plan]),
                dynamo=True,
                opset_version=23,
                input_names=["ids", "keep"],
                output_names=["attended", "lengths"],
                dynamic_shapes=(dims, dims),
                external_data=False,
                verbose=False,
            )
    return Model(spec(), files, pack(folder, files["fp32"]), folder / "engines")
