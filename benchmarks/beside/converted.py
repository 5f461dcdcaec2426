"""What transformers.js' converter makes of optimum's export, by the same two packages with the same settings.

Its `scripts/convert.py` slims the file, and its `scripts/quantize.py` makes `q8` of that: of BERT, a scale for each
output and weights of 7 bits. Run by a Python that has onnxslim and onnxruntime:

    python benchmarks/beside/converted.py EXPORTED.onnx FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(exported: str, folder: str) -> None:
    """Writes `model.onnx` and `model_quantized.onnx`."""
    import onnx
    import onnxslim
    from onnxruntime.quantization import QuantizationMode, QuantType
    from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer
    from onnxruntime.quantization.registry import IntegerOpsRegistry

    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    onnx.save(onnxslim.slim(exported), out / "model.onnx")
    quantizer = ONNXQuantizer(
        onnx.load(out / "model.onnx"), True, True, mode=QuantizationMode.IntegerOps, static=False,
        weight_qType=QuantType.QInt8, activation_qType=QuantType.QUInt8, tensors_range=None, nodes_to_quantize=[],
        nodes_to_exclude=[], op_types_to_quantize=set(IntegerOpsRegistry),
        extra_options={"EnableSubgraph": True, "MatMulConstBOnly": True},
    )  # fmt: skip
    quantizer.quantize_model()
    onnx.save(quantizer.model.model, out / "model_quantized.onnx")


if __name__ == "__main__":
    main(*sys.argv[1:])
