"""Opens files as those who read a layout do, with a runtime's own defaults, to run the golden cases on them.

The reader of bundles has its own settings, with which the form was checked; who reads a layout has others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attnport import optional
from attnport.errors import RuntimeMissing, UsageError
from attnport_bundle.format.manifest import Manifest
from attnport_bundle.model import Model
from attnport_bundle.runtimes import Port, Session, cpu
from attnport_bundle.runtimes.openvino import PRECISIONS, infer

Run = Callable[..., Mapping[str, Any]]


def in_onnxruntime(manifest: Manifest, form: str, path: Path, renamed: Mapping[str, str] = {}) -> Run:
    """Opens an ONNX file of a form in ONNX Runtime.

    Args:
        renamed: As of `running`.

    Raises:
        UnavailableError: onnxruntime is not installed, or was built without the form's provider.
    """
    module, provider = optional.require("onnxruntime"), manifest.forms[form].provider
    if provider not in module.get_available_providers():
        raise RuntimeMissing(f"this onnxruntime was built without {provider}.")
    session = module.InferenceSession(str(path), providers=[provider])
    names = [output.name for output in session.get_outputs()]

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        return dict(zip(names, session.run(None, dict(feeds)), strict=True))

    return running(manifest, form, run, module, renamed)


def running(
    manifest: Manifest,
    form: str,
    run: Callable[[Mapping[str, Any]], dict[str, Any]],
    module: Any,
    renamed: Mapping[str, str] = {},
) -> Run:
    """`Model.run` of a form, whose feeds `run` takes.

    Args:
        module: What opened it, or its name.
        renamed: The names in the file by those of the contract, where they are others. An output may have a second
            axis of size 1 there that it has not in the contract.
    """

    def by_contract(feeds: Mapping[str, Any]) -> dict[str, Any]:
        types = {spec.name: spec.dtype for spec in manifest.io.inputs}
        given = {name: array.astype(types[name], copy=False) for name, array in feeds.items()}
        got = run({renamed.get(name, name): array for name, array in given.items()})
        outputs = {spec: got[renamed.get(spec.name, spec.name)] for spec in manifest.io.outputs}
        return {
            spec.name: array.squeeze(1) if array.ndim > len(spec.dims) else array for spec, array in outputs.items()
        }

    return Model(manifest, form, _Session(module, by_contract)).run


def in_openvino(manifest: Manifest, form: str, path: Path, settings: Mapping[str, str]) -> Run:
    """Opens a file of a form on OpenVINO's CPU plugin, with these settings of the plugin.

    Raises:
        UnavailableError: openvino is not installed.
        UsageError: with these settings, the plugin computes in another precision than the form's on this CPU.
    """
    module = optional.require("openvino")
    made = module.Core().compile_model(str(path), "CPU", dict(settings))
    got, wanted = made.get_property("INFERENCE_PRECISION_HINT").get_type_name(), PRECISIONS[manifest.forms[form].plan]
    if got != wanted:
        raise UsageError(
            f"form {form} computes in {wanted}; opened as its readers open it, OpenVINO computes in {got} on this CPU.",
            hint="Name a form in that precision with --form, or one for ONNX Runtime.",
        )
    request, names = made.create_infer_request(), tuple(spec.name for spec in manifest.io.outputs)
    return running(manifest, form, lambda feeds: infer(request, made, feeds, names), module)


class _Session(Session):
    """As much of a session as `Model.run` uses."""

    def __init__(self, module: Any, run: Callable[[Mapping[str, Any]], dict[str, Any]]) -> None:
        name, version = getattr(module, "__name__", str(module)), str(getattr(module, "__version__", ""))
        self.provider, self.version, self.machine = name, version, cpu()
        self.inputs: tuple[Port, ...] = ()
        self.outputs: tuple[Port, ...] = ()
        self._run = run

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        return self._run(feeds)

    def close(self) -> None:
        pass
