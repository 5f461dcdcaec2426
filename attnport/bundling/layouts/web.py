"""A folder for transformers.js: that of layout `hub`, with a file of ONNX for each `dtype` that it asks for.

Each file has passed its golden cases in onnxruntime-web itself, where that is here, and `check` judged its form before.

Source: transformers.js, `utils/dtypes.js`: the file's name by dtype; `models/modeling_utils.js`: the names of a
decoder's inputs and outputs, and the cache that it begins with.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnport.bundling.layouts._opened import Run, running
from attnport.bundling.layouts.base import Packed
from attnport.bundling.layouts.hub import AS_BUNDLE, Hub
from attnport.errors import UsageError
from attnport_bundle.format.contract import IO
from attnport_bundle.format.decoder import Decoder
from attnport_bundle.format.manifest import Manifest

if TYPE_CHECKING:
    import onnx

PACKAGE = "onnxruntime-web"
FILES = {
    "fp32": "onnx/model.onnx",
    "fp16": "onnx/model_fp16.onnx",
    "int8": "onnx/model_quantized.onnx",
    "int4": "onnx/model_q4.onnx",
    "int4_fp16": "onnx/model_q4f16.onnx",
}
DTYPES = {"fp32": "fp32", "fp16": "fp16", "int8": "q8", "int4": "q4", "int4_fp16": "q4f16"}
"""By precision of the form, and what transformers.js calls it."""


class Web(Hub):
    """The source's folder, with a form in each precision."""

    name = "web"
    runtimes = ("onnxruntime",)
    casts = True
    also = ("ort_cpu.fp16", "ort_cpu.int8", "ort_cpu.int4", "ort_cpu.int4_fp16")

    def next(self, manifest: Manifest, out: Path) -> str:
        """With transformers.js, and every `dtype` that there is a file for."""
        task = "text-classification" if manifest.io.outputs[0].name == "logits" else "feature-extraction"
        task = "text-generation" if manifest.io.decoder else task
        dtypes = " or ".join(f"'{DTYPES[manifest.forms[name].plan]}'" for name in manifest.order)
        served = out.resolve()
        return f"pipeline('{task}', '{served.name}', {{ dtype: {dtypes} }}), with {served.parent} as env.localModelPath"

    def names(self, packed: Packed) -> Mapping[str, str]:
        """Of a decoder, those that transformers.js gives and takes; other models have them already."""
        return _names(packed.io, decoder) if (decoder := packed.manifest.io.decoder) else super().names(packed)

    def change(self, packed: Packed, model: onnx.ModelProto) -> None:
        """Gives the graph inputs and outputs of the contract's types, and names a decoder's values as transformers.js
        does, with scores for one place of the sequence."""
        _cast(model.graph, {spec.name: spec.dtype for spec in (*packed.io.inputs, *packed.io.outputs)})
        if decoder := packed.manifest.io.decoder:
            names = _names(packed.io, decoder)
            _score_one_place(model.graph, decoder.logits)
            _rename(model.graph, names)
            # transformers.js begins with a cache of these sizes; each that it does not know is 0.
            batch = next(str(spec.dims[0]) for spec in packed.io.inputs if spec.name == decoder.ids)
            for value in (*model.graph.input, *model.graph.output):
                for dim in value.type.tensor_type.shape.dim:
                    if dim.dim_param == batch:
                        dim.dim_param = "batch_size"

    def file(self, packed: Packed, name: str) -> str:
        """As of layout `hub`, by the form's precision."""
        super().file(packed, name)
        plan = packed.manifest.forms[name].plan
        if plan not in FILES:
            raise UsageError(
                f"form {name} is in {plan}; layout web has files in {', '.join(FILES)}.",
                hint="Name another one with --form.",
            )
        return FILES[plan]

    def write_onnx(self, packed: Packed, name: str, path: Path) -> None:
        """As of layout `hub`; then the file is run in the browser."""
        super().write_onnx(packed, name, path)
        beside = {file.name: file for file in path.parent.glob(f"{path.name}_data")}
        with contextlib.ExitStack() as stack:

            def opened() -> Run:
                run = stack.enter_context(packed.in_browser(path, beside))
                return running(packed.manifest, name, run, PACKAGE, self.names(packed))

            packed.proved(name, PACKAGE, opened)


def _names(io: IO, decoder: Decoder) -> dict[str, str]:
    """What transformers.js calls each input and output. Raises UsageError for a decoder that it cannot run."""
    names = {decoder.ids: "input_ids", decoder.logits: "logits"}
    if decoder.mask and decoder.mask_covers == "all":
        names[decoder.mask] = "attention_mask"
    for cache in decoder.caches:
        found = re.fullmatch(r"past_(key|value)_(\d+)", cache.input)
        if found and cache.holds == "all" and decoder.output_holds == "all":
            names[cache.input] = f"past_key_values.{found[2]}.{found[1]}"
            names[cache.output] = f"present.{found[2]}.{found[1]}"
    other = [spec.name for spec in (*io.inputs, *io.outputs) if spec.name not in names]
    if other:
        raise UsageError(
            f"{', '.join(other)}: a decoder of layout web takes token ids, a mask of past and new ones, and caches of "
            "keys and values that hold all tokens.",
            hint=AS_BUNDLE,
        )
    return names


def _cast(graph: onnx.GraphProto, dtypes: Mapping[str, str]) -> None:
    """Gives inputs and outputs these types, with a `Cast` at each that has another."""
    import onnx

    for values, of_graph in ((graph.input, True), (graph.output, False)):
        for value in values:
            own = value.type.tensor_type.elem_type
            wanted = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtypes[value.name]))
            if own == wanted:
                continue
            name, inner = value.name, f"{value.name}_of_form"
            _rename(graph, {name: inner})
            value.name, value.type.tensor_type.elem_type = name, wanted
            given, made, to = (name, inner, own) if of_graph else (inner, name, wanted)
            node = onnx.helper.make_node("Cast", [given], [made], name=f"{name}/Cast", to=to)
            graph.node.insert(0 if of_graph else len(graph.node), node)


def _score_one_place(graph: onnx.GraphProto, logits: str) -> None:
    """Makes `[batch, 1, vocabulary]` of scores of the next token."""
    import onnx

    output = next(value for value in graph.output if value.name == logits)
    dims = output.type.tensor_type.shape.dim
    if len(dims) == 2:
        _rename(graph, {logits: f"{logits}_of_text"})
        output.name = logits
        graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "attnport_second_axis"))
        graph.node.append(onnx.helper.make_node("Unsqueeze", [f"{logits}_of_text", "attnport_second_axis"], [logits]))
        dims.insert(1, onnx.TensorShapeProto.Dimension(dim_value=1))


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Gives values other names, also where a graph inside this one takes them."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        for values in (node.input, node.output):
            values[:] = [names.get(name, name) for name in values]
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                _rename(inner, names)


LAYOUT = Web()
