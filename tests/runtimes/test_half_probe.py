"""The probe of what computes in half precision: the typed evaluator passes, what hides overflow does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import onnx
import onnxruntime
import pytest

from attnport.artifacts import Capabilities, Ran, Session
from attnport.errors import ArtifactError
from attnport.runtimes import base
from attnport.runtimes._half_probe import why_not_in_half
from attnport.runtimes._session import CheckedSession
from attnport.runtimes.base import Kind, Opening, Runtime


class Lying(Runtime):
    """Computes the graph as `how` says, and returns the declared types."""

    name: ClassVar[str] = "lying"
    opens: ClassVar[Kind] = "onnx"

    def __init__(self, how: str) -> None:
        self.how = how

    def probe(self) -> Capabilities:
        return Capabilities(self.name, True)

    def open(self, opening: Opening) -> Session:
        assert opening.model is not None
        if self.how == "raises":
            raise ArtifactError("it reads no graph.")
        return _Session(opening, onnx.load_model(opening.model), self.how)


class _Session(CheckedSession):
    def __init__(self, opening: Opening, model: onnx.ModelProto, how: str) -> None:
        super().__init__(opening.io, Ran("CPU", "lying", "fp16"))
        self.model, self.how = model, how

    def _run(self, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        names = [value.name for value in self.model.graph.output]
        if self.how == "onnxruntime":
            session = onnxruntime.InferenceSession(
                self.model.SerializeToString(), providers=["CPUExecutionProvider"]
            )  # fmt: skip
            return dict(zip(names, session.run(None, dict(feeds)), strict=True))
        kind = np.dtype(self.how)
        x = feeds["x"].astype(kind)
        two, half, one, small = (kind.type(number) for number in (2.0, 0.5, 1.0, 1e-4))
        with np.errstate(all="ignore"):
            return {
                "doubled": (x * two * half).astype(np.float16),
                "added": (x + one - x).astype(np.float16),
                "product": np.asarray(x @ x * small).astype(np.float16),
                "wide": (x * two * half).astype(np.float32),
            }

    def _free(self) -> None:
        pass


def test_the_reference_evaluator_computes_in_declared_types() -> None:
    assert why_not_in_half(base.get("onnx_reference")) == ""


@pytest.mark.parametrize("how", ["float32", "onnxruntime"])
def test_what_computes_in_float32_inside_is_found_out(how: str) -> None:
    assert why_not_in_half(Lying(how)) == "60000 * 2 / 2 is 60000 there; in fp16 it is inf"


def test_what_computes_in_half_precision_where_float32_is_declared_is_found_out() -> None:
    assert why_not_in_half(Lying("float16")) == "60000 * 2 / 2 is inf there; in fp32 it is 60000"


def test_what_cannot_open_such_a_graph_says_why() -> None:
    assert why_not_in_half(Lying("raises")) == "it reads no graph."
    assert "fp32" in why_not_in_half(base.get("ort_cpu"))
