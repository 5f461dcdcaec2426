"""TensorRT engines of either flavour (`tensorrt_rtx`, `tensorrt`): building them, and proving that they are fused."""

from attnport.exporter.engine.build import FLAVOURS, build_engine, check_profiles, external_files
from attnport.exporter.engine.evidence import EngineText, Unfused, engine_evidence, prove, read_engine_text
from attnport.exporter.engine.header import EngineHeader, read_header
from attnport.exporter.engine.layers import read_layers

__all__ = [
    "FLAVOURS",
    "EngineHeader",
    "EngineText",
    "Unfused",
    "build_engine",
    "check_profiles",
    "engine_evidence",
    "external_files",
    "prove",
    "read_engine_text",
    "read_header",
    "read_layers",
]
