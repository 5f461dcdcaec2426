"""The tokenizer of a text model, in Triton's Python backend: texts in, the inputs of the model out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as triton  # type: ignore[import-not-found]  # Triton's own

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE))  # the reader stands beside this file, and is imported from there

from attnport_bundle.errors import BundleError  # noqa: E402 - found by the line above
from attnport_bundle.format import manifest  # noqa: E402 - found by the line above
from attnport_bundle.text import Tokenizer  # noqa: E402 - found by the line above


class TritonPythonModel:
    """What Triton makes of this file."""

    def initialize(self, args: dict[str, str]) -> None:
        """Reads the contract, in the manifest of the bundle that the model was in, and the tokenizer."""
        bundle = manifest.read(HERE)
        self.tokenizer = Tokenizer(HERE / "tokenizer.json", bundle.io, limit=bundle.text_limit)
        self.prompt = bundle.prompts.usual

    def execute(self, requests: list[Any]) -> list[Any]:
        """Pads the texts of all requests to the longest of them: Triton then joins them for the model, too."""
        found = [_texts(request) for request in requests]
        texts = [text for each in found if isinstance(each, list) for text in each]
        try:
            inputs = self.tokenizer.encode(texts, prompt=self.prompt) if texts else {}
        except BundleError as err:
            return [_refused(str(err)) for _ in requests]
        responses: list[Any] = []
        at = 0
        for each in found:
            if not isinstance(each, list):
                responses.append(_refused(each))
                continue
            tensors = [triton.Tensor(name, array[at : at + len(each)]) for name, array in inputs.items()]
            responses.append(triton.InferenceResponse(output_tensors=tensors))
            at += len(each)
        return responses


def _texts(request: Any) -> list[str] | str:
    """The texts of a request; of one that has none, or other bytes, why it is refused."""
    values = triton.get_input_tensor_by_name(request, "TEXT").as_numpy().reshape(-1)
    if not values.size:
        return "TEXT: got no text; expected one or more."
    try:
        return [value.decode("utf-8") for value in np.asarray(values, object)]
    except UnicodeDecodeError as err:
        return f"TEXT: got bytes that are no UTF-8: {err}."


def _refused(why: str) -> Any:
    return triton.InferenceResponse(error=triton.TritonError(why, triton.TritonError.INVALID_ARG))
