"""attnport ports PyTorch attention and transformer modules to ONNX Runtime, OpenVINO and TensorRT, with proof."""

__version__ = "0.1.0"
