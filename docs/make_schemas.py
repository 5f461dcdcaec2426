"""Makes `schemas/NAME.json`, the JSON Schemas of what verbs print with `--json`, from the values themselves.

python docs/make_schemas.py
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from attnport.artifacts import EngineRecord, FusionReport, LatencyReport, Manifest, ParityReport, TuneReport
from attnport.console.run import Written
from attnport.latency.regression import RegressionReport
from attnport.machines import MachinesReport
from attnport.parity.bisect import Bisected
from attnport.verbs.audit import AuditReport
from attnport.verbs.doctor import DoctorReport
from attnport.verbs.generate import Generated
from attnport.verbs.gpu.report import GpuReport
from attnport.verbs.inspect import Inspection
from attnport.verbs.listing import Listing
from attnport.verbs.ship import ShipResult
from attnport.verbs.verify import VerifyResult

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
    import pydantic

    return {"$schema": DIALECT, "$id": name_of(kind), **_plain(pydantic.TypeAdapter(kind).json_schema())}


def _plain(node: Any) -> Any:
    """A schema without `"additionalProperties": false`, and without the titles that pydantic makes of names."""
    if isinstance(node, dict):
        return {key: _plain(value) for key, value in node.items() if not _left_out(key, value)}
    return [_plain(item) for item in node] if isinstance(node, list) else node


def _left_out(key: str, value: Any) -> bool:
    return (key == "additionalProperties" and value is False) or (key == "title" and isinstance(value, str))


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
