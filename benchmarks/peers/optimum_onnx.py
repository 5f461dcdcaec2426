"""optimum-onnx: its export, optimised O1 to O4, and quantised to dynamic int8 for AVX-512 VNNI, in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ENVIRONMENT = "optimum"
VARIANTS = {"O1": "fp32", "O2": "fp32", "O3": "fp32", "O4": "half", "dynamic int8": "int8"}


def variants(model: Mapping[str, Any]) -> dict[str, str]:
    """O3 alone where a model is only compared with the quickest."""
    return VARIANTS if model["everything"] else {"O3": "fp32"}


def imports() -> None:
    """What is imported before memory counts."""
    import onnxruntime  # noqa: F401


def make(model: Mapping[str, Any], folder: Path, variant: str) -> None:
    """Exports, then optimises or quantises."""
    if variant == "O4":
        raise NotImplementedError("O4 is float16 for a GPU; ONNX Runtime computes it in float32 on a CPU")
    from optimum.exporters.onnx import main_export
    from optimum.onnxruntime import AutoOptimizationConfig, ORTOptimizer, ORTQuantizer
    from optimum.onnxruntime.configuration import AutoQuantizationConfig

    main_export(model["folder"], output=folder / "plain", task="feature-extraction", library_name="transformers")
    if variant == "dynamic int8":
        config = AutoQuantizationConfig.avx512_vnni(is_static=False, per_channel=True)
        ORTQuantizer(folder / "plain" / "model.onnx").quantize(save_dir=folder, quantization_config=config)
        return
    from transformers import AutoConfig

    config = getattr(AutoOptimizationConfig, variant)()
    known = AutoConfig.from_pretrained(folder / "plain", trust_remote_code=False)
    ORTOptimizer([folder / "plain" / "model.onnx"], known).optimize(save_dir=folder, optimization_config=config)


def opened(model: Mapping[str, Any], folder: Path, variant: str, threads: int) -> Callable[[Any], Any]:
    """Pooling, where there is one, is NumPy's."""
    from peer_ort import output_of, session_run

    run = session_run(next(folder.glob("*.onnx")), threads)
    return lambda feeds: output_of(model, run(feeds), feeds)
