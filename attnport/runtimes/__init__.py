"""Ways to run a model. A file without `_` is a runtime, and defines `RUNTIME`; its name is the file's.

To be read in this order:

- `base`: what every runtime and every session is, and how a runtime is found by its name.
- `onnx_reference`, `ort_cpu`, `openvino`: files of ONNX on the CPU. `_ort` is what runtimes of ONNX Runtime share;
  `_reference_ops` has operators of the evaluator.
- `torch_eager`: the module itself, by which everything is judged. `_torch_modes` changes how PyTorch computes it: in
  float64, and in the precision plans that are no cast of a module.
- `torch_compile`; and `torch_eager_cuda`, `torch_compile_cuda`, `torch_compile_tuned_cuda` on `_torch_device`.
- `ort_cuda`, `tensorrt`, `tensorrt_rtx`, `ort_tensorrt`, `ort_tensorrt_rtx`: GPUs by `_cuda`.
- `bundle`: any of these, as the reader of bundles opens it.
"""
