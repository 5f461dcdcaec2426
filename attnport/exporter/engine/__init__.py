"""TensorRT engines of either flavour (`tensorrt_rtx`, `tensorrt`): built in a child process, checked, proved fused."""

from attnport.exporter.engine.build import FLAVOURS, build_engine, check_profiles, external_files
from attnport.exporter.engine.evidence import PlanText, Unfused, engine_evidence, prove, read_plan
from attnport.exporter.engine.header import EngineHeader, read_header

__all__ = [
    "FLAVOURS",
    "EngineHeader",
    "PlanText",
    "Unfused",
    "build_engine",
    "check_profiles",
    "engine_evidence",
    "external_files",
    "prove",
    "read_header",
    "read_plan",
]
