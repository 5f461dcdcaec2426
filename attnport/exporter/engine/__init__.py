"""TensorRT engines of either flavour (`tensorrt_rtx`, `tensorrt`): `build` has the process of `child` build them, and
`evidence` reads them and proves that they are fused."""
