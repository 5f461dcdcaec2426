"""A bundle as a runtime, opened with the reader of this release, of which every bundle carries a copy.

So parity and latency are those of an application that embeds the bundle, with the reader's checks and copies.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from attnport.artifacts import IOContract, Ran, Session
from attnport.errors import ArtifactError, UnavailableError
from attnport.runtimes._ort import ONNX_RUNTIMES
from attnport.runtimes.base import Array, CheckedSession, Opening, Runtime, check_names, physical_cores, refused
from attnport.runtimes.tensorrt import TensorRT
from attnport.runtimes.tensorrt_rtx import TensorRTRTX
from attnport_bundle.format.contract import IO
from attnport_bundle.format.manifest import VERSION
from attnport_bundle.runtimes import Machine


class Bundle(Runtime):
    """The Python reader, on the runtime of the bundle's form."""

    name = "bundle"
    opens = "bundle"
    distributions = (*ONNX_RUNTIMES, "openvino*", *TensorRT.distributions, *TensorRTRTX.distributions)

    def version(self) -> str:
        """That of the format, as attnport has the reader; what a form needs is checked when it is opened."""
        return f"format {VERSION}"

    def able(self) -> dict[str, Any]:
        """What the forms of a bundle are able to do."""
        return {"devices": ("as its forms ask",)}

    def session(self, opening: Opening) -> Session:
        """Checks every file of the bundle and opens the form `opening.form`, and no other.

        Raises:
            BundleError: the folder is not a bundle.
            ArtifactError: its contract is not the opening's.
            IntegrityError: a file is not the one that was bundled.
            NumbersOff: the form was never run on its device before, and computes other numbers here.
            UnavailableError: the form's runtime or device is not available here, or it has another plan.
        """
        from attnport_bundle.model import load

        assert opening.model is not None
        with warnings.catch_warnings():
            # The reader's warnings about the forms that it passes over do not matter here.
            warnings.simplefilter("ignore")
            model = load(opening.model, form=opening.form or None, threads=opening.threads or physical_cores())
        try:
            return _BundleSession(opening, model)
        except BaseException:
            model.close()
            raise


class _BundleSession(CheckedSession):
    def __init__(self, opening: Opening, model: Any) -> None:
        plan = model.manifest.forms[model.form].plan
        super().__init__(opening.io, Ran(_device(model.machine), f"{model.provider} {model.version}", plan))
        if plan != opening.plan:
            raise UnavailableError(
                f"{opening.model}: form {model.form} computes in {plan}; {opening.plan} was asked for."
            )
        self._model = model
        check_contract(opening.io, model.io, str(opening.model))

    def _run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        with refused("the bundle's reader", feeds):
            outputs: Mapping[str, Array] = self._model.run(**feeds)
        return outputs

    def _free(self) -> None:
        self._model.close()


def check_contract(io: IOContract, packed: IO, where: str) -> None:
    """Compares a bundle's contract with an artifact's.

    Args:
        packed: The contract in the manifest.

    Raises:
        ArtifactError: names, dtypes or dims differ: the bundle was made from another model.
    """
    check_names(io, [spec.name for spec in packed.inputs], [spec.name for spec in packed.outputs], where)
    for ours, theirs in ((io.inputs, packed.inputs), (io.outputs, packed.outputs)):
        known = {spec.name: spec for spec in theirs}
        for spec in ours:
            got = known[spec.name]
            if (got.dtype, got.dims) != (spec.dtype, spec.dims):
                raise ArtifactError(
                    f"{where}: tensor {spec.name!r} is {got.dtype}{list(got.dims)}; the contract says {spec}.",
                    hint="The bundle was made from another model; make it again.",
                )


def _device(machine: Machine) -> str:
    return f"{machine.device} (SM {machine.sm})" if machine.sm else "CPU"


RUNTIME = Bundle()
