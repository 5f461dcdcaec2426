"""A model repository of NVIDIA's Triton Inference Server; for a text model with its tokenizer, and both as an ensemble.

Source: github.com/triton-inference-server, `model_config.proto` in common, "Model Configuration" in server, and the
READMEs of the backends.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from attnport.bundling.layouts._opened import in_onnxruntime, in_openvino
from attnport.bundling.layouts.base import Layout, Packed, Run
from attnport_bundle.errors import BundleError
from attnport_bundle.format.contract import Dim, TensorSpec
from attnport_bundle.format.manifest import MANIFEST, Form, Manifest, TokenizerFiles
from attnport_bundle.model import open_form
from attnport_bundle.runtimes.openvino import PRECISIONS
from attnport_bundle.text import Tokenizer

TEXT = "TEXT"
FILES = {"onnxruntime": "model.onnx", "openvino": "model.onnx", "tensorrt": "model.plan"}
"""By backend, which has the name of a form's runtime, what the model's file is called."""
_DTYPES = {
    "float32": "TYPE_FP32",
    "float16": "TYPE_FP16",
    "bfloat16": "TYPE_BF16",
    "float64": "TYPE_FP64",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "bool": "TYPE_BOOL",
}
_TOKENIZER = Path(__file__).parent / "_triton_tokenizer.py"
_READER = "python/attnport_bundle"


class Constant(str):
    """A constant of an enum, which is written without quotes."""

    __slots__ = ()


Value = str | int | bool | Sequence[int] | Sequence[str] | Mapping[str, "Value"] | Sequence[Mapping[str, "Value"]]


class Triton(Layout):
    """`NAME`, and for a text model `NAME_tokenizer` and `NAME_text`, which runs both."""

    def write(self, packed: Packed, target: Path) -> None:
        """Fills `target`; see the base class."""
        name = packed.only_form("triton", *FILES)
        form = packed.manifest.forms[name]
        run = _moved(packed, name, target / packed.name / "1" / FILES[form.runtime])
        repository = _Repository(packed, form, target, _joined(packed, name, run))
        repository.model()
        if packed.manifest.tokenizer is not None:
            repository.text(packed.manifest.tokenizer)

    def next(self, manifest: Manifest, out: Path) -> str:
        """The command of the server."""
        return f"tritonserver --model-repository {out}"


@dataclasses.dataclass(frozen=True)
class _Repository:
    """Writes the configurations.

    Attributes:
        items: The dim of the items of a batch, which Triton may join; None = each request is run alone.
    """

    packed: Packed
    form: Form
    target: Path
    items: Dim | None

    def model(self) -> None:
        """The configuration of the model itself."""
        gpu = self.form.runtime == "tensorrt" or self.form.provider == "CUDAExecutionProvider"
        group: dict[str, Value] = {"count": 1, "kind": Constant("KIND_GPU" if gpu else "KIND_CPU")}
        if self.form.profiles:
            group["profile"] = [str(at) for at in range(len(self.form.profiles))]
        fields: dict[str, Value] = {
            "backend": self.form.runtime,
            "default_model_filename": FILES[self.form.runtime],
            "input": self._ports(self.packed.io.inputs),
            "output": self._ports(self.packed.io.outputs),
            "instance_group": group,
        }
        if _in_bf16(self.form):
            fields["parameters"] = {"key": "HINT_BF16", "value": {"string_value": "YES"}}
        self._write(self.packed.name, fields, joins=True)

    def text(self, tokenizer: TokenizerFiles) -> None:
        """The tokenizer and the ensemble, if the reader knows this tokenizer; else why not is told."""
        io, name = self.packed.io, f"{self.packed.name}_tokenizer"
        try:
            Tokenizer(self.packed.folder / tokenizer.file, io)
            if other := [spec for spec in io.inputs if self.form.dtypes[spec.name] != spec.dtype]:
                raise BundleError(f"{other[0].name} is {self.form.dtypes[other[0].name]} in {self.form.file}.")
        except BundleError as err:
            self.packed.tell(f"without a tokenizer, clients send token ids: {err}")
            return
        code = self.target / name / "1"
        self.packed.move(tokenizer.file, code / "tokenizer.json")
        if tokenizer.chars is not None:
            self.packed.move(tokenizer.chars, code / "tokenizer.chars")
        self.packed.move(_READER, code / "attnport_bundle")
        shutil.copyfile(_TOKENIZER, code / "model.py")
        self.packed.move(MANIFEST, code / MANIFEST)
        text: dict[str, Value] = {"name": TEXT, "data_type": Constant("TYPE_STRING"), "dims": [1 if self.items else -1]}
        group: dict[str, Value] = {"count": 1, "kind": Constant("KIND_CPU")}
        inputs = self._ports(io.inputs)
        fields: dict[str, Value] = {"backend": "python", "input": text, "output": inputs, "instance_group": group}
        self._write(name, fields, joins=True)
        between = {spec.name: f"tokenizer.{spec.name}" for spec in io.inputs}
        outputs = {spec.name: spec.name for spec in io.outputs}
        steps = [_step(name, {TEXT: TEXT}, between), _step(self.packed.name, between, outputs)]
        fields = {"platform": "ensemble", "input": text, "output": self._ports(io.outputs)}
        self._write(f"{self.packed.name}_text", {**fields, "ensemble_scheduling": {"step": steps}}, joins=False)
        (self.target / f"{self.packed.name}_text" / "1" / ".keep").touch()  # many a copy leaves out an empty folder

    def _write(self, name: str, fields: Mapping[str, Value], *, joins: bool) -> None:
        """Writes a configuration, with dynamic batching where Triton may join requests."""
        whole: dict[str, Value] = {"name": name, "max_batch_size": self.items.max if self.items else 0, **fields}
        if joins and self.items:
            whole["dynamic_batching"] = {}
        (form,) = self.packed.manifest.order
        said = f"# {self.packed.manifest.provenance.source}, form {form}: {self.packed.requirement(form)}\n"
        folder = self.target / name
        (folder / "1").mkdir(parents=True, exist_ok=True)
        (folder / "config.pbtxt").write_text(said + pbtxt(whole), encoding="utf-8")

    def _ports(self, specs: Sequence[TensorSpec]) -> list[dict[str, Value]]:
        """Tensors, without the dim that Triton joins; one without dims has a single element for Triton."""
        ports = []
        for spec in specs:
            dims = [dim if isinstance(dim, int) else -1 for dim in (spec.dims[1:] if self.items else spec.dims)]
            dtype = Constant(_DTYPES[self.form.dtypes[spec.name]])
            port: dict[str, Value] = {"name": spec.name, "data_type": dtype, "dims": dims or [1]}
            ports.append(port if dims else {**port, "reshape": {"shape": []}})
        return ports


def _in_bf16(form: Form) -> bool:
    """Whether OpenVINO is to compute the form in bfloat16."""
    return form.runtime == "openvino" and PRECISIONS[form.plan] == "bf16"


def _step(model: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> dict[str, Value]:
    """A step of an ensemble: by names of the model's tensors, the ensemble's."""
    return {
        "model_name": model,
        "model_version": -1,
        "input_map": [{"key": key, "value": value} for key, value in inputs.items()],
        "output_map": [{"key": key, "value": value} for key, value in outputs.items()],
    }


def _moved(packed: Packed, name: str, path: Path) -> Run | None:
    """Moves the form to its place and proves it as Triton opens it; gives what runs it, None if nothing here does."""
    form = packed.manifest.forms[name]
    if form.runtime == "tensorrt":
        run = packed.proved(name, "TensorRT", lambda: open_form(packed.folder, packed.manifest, name).run)
        packed.move(form.file, path)
        return run
    packed.move(form.file, path)
    for file in form.external:
        packed.move(file, path.parent / file)
    if form.runtime == "openvino":
        # The backend has a parameter for bfloat16 and none for float32: without one, the CPU decides.
        settings = {"INFERENCE_PRECISION_HINT": "bf16"} if _in_bf16(form) else {}
        if not settings:
            packed.tell(
                "Triton's OpenVINO backend computes in bfloat16 on a CPU that can, and has no setting against it"
            )
        return packed.proved(name, "OpenVINO", lambda: in_openvino(packed.manifest, name, path, settings))
    return packed.proved(name, "ONNX Runtime", lambda: in_onnxruntime(packed.manifest, name, path))


def _joined(packed: Packed, name: str, run: Run | None) -> Dim | None:
    """The dim of the items that Triton may join, and how many; None if it has to run each request alone."""
    form = packed.manifest.forms[name]
    # The OpenVINO backend fixes the batch to `max_batch_size`, and refuses any other.
    items = packed.items(name, run) if run is not None and form.runtime != "openvino" else None
    if items is None or not form.profiles:
        return items
    most = max(dim.max for profile in form.profiles for dim in profile.dims if dim.name == items.name)
    return dataclasses.replace(items, opt=min(items.opt, most), max=most)


def pbtxt(message: Mapping[str, Value], indent: str = "") -> str:
    """The fields of a message in protobuf's text format, a line each; a list of messages is a repeated field."""
    lines = []
    for name, value in message.items():
        messages = [value] if isinstance(value, Mapping) else value
        if isinstance(messages, list) and messages and isinstance(messages[0], Mapping):
            inner = [pbtxt(each, f"{indent}  ") for each in messages]
            lines += [
                f"{indent}{name} {{\n{fields}{indent}}}" if fields else f"{indent}{name} {{}}" for fields in inner
            ]
        else:
            lines.append(f"{indent}{name}: {_scalar(value)}")
    return "".join(f"{line}\n" for line in lines)


def _scalar(value: object) -> str:
    if isinstance(value, Constant):
        return value
    if isinstance(value, (list, tuple)):
        return f"[ {', '.join(map(_scalar, value))} ]" if value else "[ ]"
    return json.dumps(value)


LAYOUT = Triton()
