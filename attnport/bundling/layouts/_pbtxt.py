"""Writes protobuf's text format, as `config.pbtxt` has it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence


class Constant(str):
    """A constant of an enum, which is written without quotes."""

    __slots__ = ()


Value = str | int | bool | Sequence[int] | Sequence[str] | Mapping[str, "Value"] | Sequence[Mapping[str, "Value"]]


def pbtxt(message: Mapping[str, Value], indent: str = "") -> str:
    """The fields of a message, a line each; a list of messages is a repeated field."""
    lines = []
    for name, value in message.items():
        messages = [value] if isinstance(value, Mapping) else value
        if isinstance(messages, list) and messages and isinstance(messages[0], Mapping):
            inner = [pbtxt(each, f"{indent}  ") for each in messages]
            lines += [
                f"{indent}{name} {{\n{fields}{indent}}}" if fields else f"{indent}{name} {{}}" for fields in inner
            ]
        else:
            lines.append(f"{indent}{name}: {_scalar(value)}")
    return "".join(f"{line}\n" for line in lines)


def _scalar(value: object) -> str:
    if isinstance(value, Constant):
        return value
    if isinstance(value, (list, tuple)):
        return f"[ {', '.join(map(_scalar, value))} ]" if value else "[ ]"
    return json.dumps(value)
