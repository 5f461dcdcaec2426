"""ONNX's operators in PyTorch, by subject: what a file of ONNX is computed with where it takes the place of a module.

An operator is a function of a `Call` and of its inputs, None for one that is left out; it returns a tensor or a tuple
of them. What is not here is computed by ONNX's reference evaluator (`onnx_module`). Source: the operators' schemas.
"""
