"""Recognition: attentions and masks found in an ONNX graph by what they compute."""
