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

    if "vocabulary" in model:
        task = "text-generation-with-past"
        main_export(model["folder"], output=folder, task=task, library_name="transformers")
        return
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


def decoder(model: Mapping[str, Any], folder: Path, variant: str, threads: int) -> Callable[[int], Any]:
    """`ORTModelForCausalLM`, with I/O binding for the variant of that name."""
    import numpy as np
    import onnxruntime
    import torch
    from optimum.onnxruntime import ORTModelForCausalLM

    torch.set_num_threads(threads)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    read = ORTModelForCausalLM.from_pretrained
    made = read(folder, session_options=options, use_io_binding="binding" in variant, trust_remote_code=False)

    def begin(batch: int) -> Callable[[Any], Any]:
        state: dict[str, Any] = {"past": None, "length": 0}

        def step(ids: Any) -> Any:
            start, end = state["length"], state["length"] + ids.shape[1]
            places = torch.from_numpy(np.broadcast_to(np.arange(start, end), ids.shape).copy())
            mask = torch.ones(len(ids), end, dtype=torch.int64)
            out = made(input_ids=torch.from_numpy(ids), attention_mask=mask, position_ids=places,
                       past_key_values=state["past"], use_cache=True)  # fmt: skip
            state.update(past=out.past_key_values, length=end)
            return out.logits[:, -1].numpy()

        return step

    return begin
