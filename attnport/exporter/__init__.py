"""From a module to ONNX: capture, recognition of attention, lowering to each target, engines."""
