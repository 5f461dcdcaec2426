"""A folder as on the Hugging Face hub, for sentence-transformers, transformers.js and text-embeddings-inference.

They read the transformer alone from it, as `onnx/model.onnx` or `openvino/openvino_model.xml`, and pool themselves as
the folder's other files say. These are the source's own.

Source: sentence-transformers, "Speeding up Inference"; optimum's `ORTModel`; text-embeddings-inference,
`backends/ort/src/lib.rs`; transformers.js, `models.js`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from attnport import optional
from attnport.bundling.layouts._opened import in_onnxruntime, in_openvino
from attnport.bundling.layouts.base import Layout, Packed
from attnport.errors import UsageError
from attnport_bundle.format.manifest import Manifest
from attnport_bundle.runtimes.openvino import PRECISIONS

if TYPE_CHECKING:
    import onnx

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
ONNX, OPENVINO = "onnx/model.onnx", "openvino/openvino_model.xml"
AS_BUNDLE = "Without --layout, the readers of a bundle take any inputs by their names: in Python, C++ and JavaScript."
LARGEST_FILE = (1 << 31) - (1 << 20)
"""Bytes of weights that fit into one ONNX file, whose limit is protobuf's: 2 GiB."""


class Hub(Layout):
    """The source's folder, with the model's forms in place of its weights.

    Attributes:
        runtimes: Those whose forms it has.
        casts: Whether a form's inputs and outputs are given the types of the contract.
    """

    name = "hub"
    runtimes: tuple[str, ...] = ("onnxruntime", "openvino")
    casts = False

    def write(self, packed: Packed, target: Path) -> None:
        """Fills `target`; see the base class."""
        forms = {self.file(packed, name): name for name in packed.manifest.order}
        if len(forms) < len(packed.manifest.order):
            raise UsageError(
                f"got the forms {', '.join(packed.manifest.order)}; of these, two would be {' or '.join(forms)}.",
                hint=f"A folder of layout {self.name} has one form for each file.",
            )
        self.names(packed)
        for file, source in packed.described().items():
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target / file)
        for file, name in forms.items():
            (target / file).parent.mkdir(exist_ok=True)
            if packed.manifest.forms[name].runtime == "openvino":
                _write_openvino(packed, name, target / file)
            else:
                self.write_onnx(packed, name, target / file)

    def next(self, manifest: Manifest, out: Path) -> str:
        """With sentence-transformers."""
        backend = '"onnx"'
        if "openvino" in {form.runtime for form in manifest.forms.values()} and len(manifest.forms) == 1:
            backend = '"openvino", model_kwargs={"ov_config": {"INFERENCE_PRECISION_HINT": "f32"}}'
        kind = "CrossEncoder" if manifest.io.outputs[0].name == "logits" else "SentenceTransformer"
        return f'{kind}("{out}", backend={backend})'

    def file(self, packed: Packed, name: str) -> str:
        """The file of a form. Raises UsageError for one that the readers do not open, or not as it was checked."""
        packed.require_runtime(name, self.name, *self.runtimes)
        form = packed.manifest.forms[name]
        if form.runtime == "openvino" and PRECISIONS[form.plan] != "f32":
            raise UsageError(
                f"form {name} computes in {PRECISIONS[form.plan]}, which is a setting of OpenVINO and not in its file.",
                hint='Use --form openvino, and load it with ov_config={"INFERENCE_PRECISION_HINT": "bf16"}.',
            )
        for spec in (*packed.io.inputs, *packed.io.outputs):
            if form.dtypes[spec.name] != spec.dtype and not self.casts:
                raise UsageError(
                    f"form {name}: {spec.name} is {form.dtypes[spec.name]}; what reads layout {self.name} takes "
                    f"{spec.dtype}.",
                    hint="Name a form in fp32 or int8 with --form.",
                )
        return OPENVINO if form.runtime == "openvino" else ONNX

    def names(self, packed: Packed) -> Mapping[str, str]:
        """What inputs and outputs are called, where it is not as in the contract. Raises UsageError for a model that
        the readers do not take."""
        _require_transformer(packed, self.name)
        return {}

    def change(self, packed: Packed, model: onnx.ModelProto) -> None:
        """Gives the graph the names of `names`."""

    def write_onnx(self, packed: Packed, name: str, path: Path) -> None:
        """The weights go into the file, or beside it under the name by which they are looked for."""
        import onnx

        form = packed.manifest.forms[name]
        model = onnx.load(packed.folder / form.file)
        self.change(packed, model)
        size = sum((packed.folder / file).stat().st_size for file in form.external)
        apart = size > LARGEST_FILE
        onnx.save_model(model, path, save_as_external_data=apart, location=f"{path.name}_data" if apart else None)
        packed.proved(name, "ONNX Runtime", lambda: in_onnxruntime(packed.manifest, name, path, self.names(packed)))


def _require_transformer(packed: Packed, layout: str) -> None:
    """Raises UsageError unless inputs and outputs are those of a transformer that reads text."""
    inputs = [spec.name for spec in packed.io.inputs]
    other = [name for name in inputs if name not in INPUTS]
    if other or "input_ids" not in inputs:
        raise UsageError(
            f"{packed.name} takes {', '.join(inputs)}; what reads layout {layout} gives {', '.join(INPUTS)}.",
            hint=f"The layout is for a whole hf: folder of text; other names would not make one of it. {AS_BUNDLE}",
        )
    first = packed.io.outputs[0]
    if (first.name, len(first.dims)) not in (("last_hidden_state", 3), ("logits", 2)):
        raise UsageError(
            f"the first output of {packed.name} is {first}; what reads layout {layout} takes last_hidden_state of "
            "every token, and pools it itself, or logits of every text.",
            hint="Export the hf: folder without --outputs and --part: last_hidden_state is then the first. Of a module "
            f"of your own, another name would not do. {AS_BUNDLE}",
        )


def _write_openvino(packed: Packed, name: str, path: Path) -> None:
    module = optional.require("openvino")
    graph = module.Core().read_model(str(packed.folder / packed.manifest.forms[name].file))
    module.save_model(graph, str(path), compress_to_fp16=False)
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    packed.proved(name, "OpenVINO", lambda: in_openvino(packed.manifest, name, path, settings))


LAYOUT = Hub()
