"""TensorRT-RTX engines, which are built without a GPU and compiled on the device that runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnport.artifacts import Session
from attnport.errors import ArtifactError, BundleError, IntegrityError, UnavailableError
from attnport.jsonfile import digest_text
from attnport.runtimes import _cuda
from attnport.runtimes.base import Opening, ProbeFailed
from attnport.runtimes.tensorrt import TensorRT
from attnport.user_cache import cache
from attnport_bundle.runtimes.cuda import driver_release
from attnport_bundle.runtimes.tensorrt import logger, read_header

_SUPPORTED, _UNSUPPORTED = b"supported\n", b"not supported\n"
_BUILDS = "engines can be built here, and run on a machine with an NVIDIA GPU and driver"
_OTHERS = "Use ort_cuda or tensorrt on this GPU. Engines for other GPUs can be built here."


class TensorRTRTX(TensorRT):
    """TensorRT-RTX, whose engines run on several GPU generations."""

    name = "tensorrt_rtx"
    package = "tensorrt_rtx"
    form = "tensorrt_rtx"
    keeps = True
    distributions = ("tensorrt-rtx*", "nvidia-*")

    def able(self) -> dict[str, Any]:
        """As for TensorRT; and a GPU that TensorRT-RTX does not support is found by a tiny engine.

        If only the GPU is missing, or is not supported, the hint says that engines can still be built.
        """
        try:
            able = super().able()
        except UnavailableError as err:
            raise UnavailableError(err.message, hint=err.hint and _BUILDS) from err
        if reason := _refusal(self.module(), self.version(), _cuda.Device()):
            raise UnavailableError(reason, hint=_OTHERS)
        return able

    def session(self, opening: Opening) -> Session:
        """As for TensorRT. An engine for the builder's default list is also tried on GPUs that the list does not name.

        Raises:
            UnavailableError: as for TensorRT; or TensorRT-RTX refused the engine on such a GPU, such as an engine in
                bfloat16 on SM 75. A GPU that runs no engine at all is found by `probe`.
        """
        try:
            return super().session(opening)
        except (ArtifactError, BundleError) as err:
            if err.exit_code != ArtifactError.exit_code:  # the message already names a wrong device or header
                raise
            try:
                targets, device = read_header(opening.model or Path()).sm, _cuda.Device()
            except (OSError, ValueError):  # the file is at fault
                raise err from None
            if not targets or device.sm in targets:
                raise
            raise UnavailableError(
                f"{opening.model} is for SM {', '.join(map(str, targets))}; on {device.name}, which is SM {device.sm}, "
                f"{self.package} refuses it: {err.message}",
                hint="Use another runtime there: tensorrt, ort_cuda.",
            ) from err

    def check_header(self, path: Path) -> None:
        """Checks magic and size; raises IntegrityError."""
        try:
            read_header(path)
        except ValueError as err:
            raise IntegrityError(str(err), hint="Build the engine again.") from err


def _refusal(trt: Any, version: str, device: _cuda.Device) -> str:
    """Why this release runs no engine on the GPU; "" if it runs them, or does not tell.

    Whether it supports the GPU is kept in this user's cache, for each release, compute capability and driver.

    Raises:
        ProbeFailed: It refuses for another reason, such as too little memory, which may pass.
    """
    unsupported = (
        f"TensorRT-RTX {version} does not support compute capability {device.sm // 10}.{device.sm % 10} ({device.name})"
    )
    kept, driver = cache(), driver_release()
    name = f"tensorrt-rtx.{digest_text(version, str(device.sm), driver)[:12]}"
    said = kept.read(name) if kept is not None and driver else None
    if said in (_SUPPORTED, _UNSUPPORTED):
        return unsupported if said == _UNSUPPORTED else ""
    try:
        validity, bits = trt.Runtime(logger(trt, [])).get_engine_validity(_tiny_engine(trt))
        valid = validity != trt.EngineValidity.INVALID
        why = [flag for flag, bit in trt.EngineInvalidityDiagnostics.__members__.items() if int(bits) & int(bit)]
    except Exception:  # another release may have no such function, and its exceptions share no base
        return ""
    if not valid and "UNSUPPORTED_CC" not in why:  # such as too little memory: that may change
        told = ", ".join(why) or "it gives no reason"
        raise ProbeFailed(f"TensorRT-RTX {version} runs no engine on {device.name}: {told}", hint=_OTHERS)
    if kept is not None and driver:
        kept.write(name, _SUPPORTED if valid else _UNSUPPORTED)
    return "" if valid else unsupported


def _tiny_engine(trt: Any) -> Any:
    """An engine of one matrix product in half precision, for the builder's default list of GPUs."""
    builder = trt.Builder(logger(trt, []))
    network = builder.create_network(0)
    x = network.add_input("x", trt.float16, (16, 16))
    product = network.add_matrix_multiply(x, trt.MatrixOperation.NONE, x, trt.MatrixOperation.NONE)
    network.mark_output(product.get_output(0))
    return builder.build_serialized_network(network, builder.create_builder_config())


RUNTIME = TensorRTRTX()
