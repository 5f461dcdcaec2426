"""Makes `schemas/NAME.json`, the JSON Schemas of what verbs print with `--json`, from the values themselves.

python docs/make_schemas.py
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnport.artifacts import EngineRecord, FusionReport, LatencyReport, Manifest, ParityReport, TuneReport
from attnport.console.run import Written
from attnport.latency.regression import RegressionReport
from attnport.parities import Bisected
from attnport.verbs.audit import AuditReport
from attnport.verbs.doctor import DoctorReport
from attnport.verbs.generate import Generated
from attnport.verbs.gpu_check import GpuReport
from attnport.verbs.inspect import Inspection
from attnport.verbs.listing import Listing
from attnport.verbs.machines import MachinesReport
from attnport.verbs.ship import ShipResult
from attnport.verbs.verify import VerifyResult

NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
FOLDER = Path(__file__).resolve().parent / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
PRINTED = (
    *(
        AuditReport,
        Bisected,
        DoctorReport,
        EngineRecord,
        FusionReport,
        Generated,
        GpuReport,
        Inspection,
        LatencyReport,
        Listing,
    ),
    *(MachinesReport, Manifest, ParityReport, RegressionReport, ShipResult, TuneReport, VerifyResult, Written),
)


def names() -> dict[str, type[Any]]:
    """The values by the NAME of `attnport/NAME/VERSION`."""
    return {name_of(kind).split("/")[1]: kind for kind in PRINTED}


def name_of(kind: type[Any]) -> str:
    """What a value has as its `schema`."""
    name: str = next(field.default for field in dataclasses.fields(kind) if field.name == "schema")
    return name


def schema(kind: type[Any]) -> dict[str, Any]:
    """The JSON Schema of a value.

    Keys with a default are not required, as files of earlier versions lack the newer ones. Further keys are allowed,
    though attnport itself refuses them when it reads a file: a later version may add some.
    """
    definitions: dict[str, Any] = {}
    top = _of_dataclass(kind, definitions)
    within = {"$defs": dict(sorted(definitions.items()))} if definitions else {}
    return {"$schema": DIALECT, "$id": name_of(kind), **within, **top}


def _of_dataclass(kind: type[Any], definitions: dict[str, Any]) -> dict[str, Any]:
    hints, properties, required = typing.get_type_hints(kind), {}, []
    for field in sorted(dataclasses.fields(kind), key=lambda field: field.kw_only):
        properties[field.name] = _of_type(hints[field.name], definitions)
        if field.default is not dataclasses.MISSING:
            default = dataclasses.asdict(field.default) if dataclasses.is_dataclass(field.default) else field.default
            properties[field.name] = dict(sorted({**properties[field.name], "default": default}.items()))
        elif field.default_factory is dataclasses.MISSING:
            required.append(field.name)
    described = {"description": inspect.cleandoc(kind.__doc__ or ""), "properties": properties}
    return {**described, **({"required": required} if required else {}), "type": "object"}


def _of_type(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        name: str = kind.__name__
        if name not in definitions:
            definitions[name] = {}  # before its own fields, of which one may be of its kind
            definitions[name] = _of_dataclass(kind, definitions)
        return {"$ref": f"#/$defs/{name}"}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_of_type(arg, definitions) for arg in args]}
    if origin is typing.Literal:
        return {**({"const": args[0]} if len(args) == 1 else {"enum": list(args)}), "type": "string"}
    if origin is Mapping:
        return {"additionalProperties": _of_type(args[1], definitions), "type": "object"}
    if origin is tuple and args[-1] is ...:
        return {"items": _of_type(args[0], definitions), "type": "array"}
    if origin is tuple:
        each = [_of_type(arg, definitions) for arg in args]
        return {"maxItems": len(args), "minItems": len(args), "prefixItems": each, "type": "array"}
    return {"type": NAMES[getattr(kind, "__supertype__", kind)]}


def text(kind: type[Any]) -> str:
    """The file of a value."""
    return json.dumps(schema(kind), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Writes all files, and deletes those of values that are no longer there."""
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.json"):
        if path.stem not in names():
            path.unlink()
    for name, kind in names().items():
        (FOLDER / f"{name}.json").write_text(text(kind), "utf-8")


if __name__ == "__main__":
    main()
