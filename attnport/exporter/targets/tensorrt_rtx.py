"""TensorRT-RTX takes the same graphs as the data centre flavour (measured: the same forms fuse)."""

from __future__ import annotations

from attnport.exporter.targets.tensorrt import TensorRt


class TensorRtRtx(TensorRt):
    """Its engines can be built, and their fusion proved, without a GPU."""

    name = "tensorrt_rtx"


LOWERING = TensorRtRtx()
