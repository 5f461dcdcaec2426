"""Any bytes as `bundle.json`: refused with a BundleError, or a manifest that keeps what FORMAT.md promises."""

from __future__ import annotations

import dataclasses
import json

import mutate as mutations

from attnport_bundle.errors import BundleError
from attnport_bundle.format.manifest import from_bytes

mutate = mutations.json_value


def one(data: bytes) -> bool:
    """Whether `data` is accepted."""
    try:
        manifest = from_bytes(data, "bundle.json")
    except BundleError:
        return False
    again = json.dumps(dataclasses.asdict(manifest), ensure_ascii=False).encode()
    assert from_bytes(again, "bundle.json") == manifest, "what is accepted is not accepted as it was understood"
    for name in manifest.files:
        parts = name.split("/")
        assert not {"", ".", ".."} & set(parts), f"{name!r} leaves the folder"
    return True
