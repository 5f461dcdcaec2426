"""The open inference protocol v2: requests as HTTP and gRPC bring them, and answers as HTTP takes them.

What is asked is limited before it is made, as a byte of a request may take a hundred in memory: names and dims are
counted before they are read, texts before they are decoded. All of this runs beside the event loop, in threads.
"""

from __future__ import annotations

import math
import struct
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson
from fastapi.responses import Response
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from ..arguments import shown
from ..errors import FeedError
from . import MOST_DIMS, MOST_NAMES, MOST_PARTS, Options, within

Array = np.ndarray[Any, Any]


class _Kind(NamedTuple):
    """A datatype of the protocol.

    Attributes:
        dtype: Of its arrays.
        contents: Where gRPC has values that are not raw; "" of a datatype that JSON does not have either.
        letters: The most letters of a value of an answer in JSON, with the comma behind it.
    """

    dtype: str
    contents: str = ""
    letters: int = 0


_KINDS = {
    "BOOL": _Kind("bool", "bool_contents", 6),
    "INT32": _Kind("int32", "int_contents", 12),
    "INT64": _Kind("int64", "int64_contents", 21),
    "FP16": _Kind("float16"),
    "FP32": _Kind("float32", "fp32_contents", 16),
    "FP64": _Kind("float64", "fp64_contents", 25),
    "BYTES": _Kind("object", "bytes_contents"),
}
DATATYPES = {kind.dtype: datatype for datatype, kind in _KINDS.items()}
"""The datatype of each dtype; texts are arrays of objects."""
_TAKES: Mapping[str, tuple[type, ...]] = {"b": (bool,), "i": (int,), "f": (int, float), "O": (str,)}
"""The types of JSON that a kind of tensor takes: 1.5 is no integer, true is no number, null is no text."""
_SAID = {type(None): "null", bool: "a boolean", int: "an integer", float: "a number", str: "text", dict: "an object"}
HEADER = "Inference-Header-Content-Length"
"""The header that says how long the JSON before binary data is."""
ASK_BINARY = '{"parameters": {"binary_data_output": true}}'
"""What a request has for an answer in binary data."""
_NAMED = 200
"""Letters of where in a request an error is."""
_AT_ONCE = 1 << 14
"""Values that are read or written in one go, which holds all other threads for a millisecond."""


class Part(BaseModel):
    """A part of a request, whose values are of the types that it says."""

    model_config = ConfigDict(strict=True)


class _Tensor(Part):
    name: str
    datatype: str
    shape: list[NonNegativeInt] = Field(max_length=MOST_DIMS, fail_fast=True)
    parameters: Any = None
    data: list[Any] | None = None


class _Output(Part):
    name: str
    parameters: Any = None


class _Request(Part):
    id: str | None = None
    parameters: Any = None
    inputs: list[_Tensor] = Field(max_length=MOST_NAMES, fail_fast=True)
    outputs: list[_Output] | None = Field(None, max_length=MOST_NAMES, fail_fast=True)


@dataclass(frozen=True)
class Asked:
    """A request.

    Attributes:
        arrays: The inputs; texts are an array of objects.
        outputs: The outputs that are named, each with whether it is wanted as binary data; empty = the model's choice.
        binary: Whether other outputs are.
        prompt: What the parameter of this name holds.
        version: Of the model.
    """

    arrays: Mapping[str, Array]
    outputs: Mapping[str, bool]
    binary: bool
    prompt: Any = None
    id: str = ""
    version: str = ""


def from_http(body: bytes, header: str | None, known: Sequence[str], options: Options) -> Asked:
    """Reads a request of HTTP.

    Args:
        header: What the header `HEADER` says; None = the body is JSON alone.
        known: The names of the model's inputs.

    Raises:
        FeedError: it is not of the protocol, or has more of something than the options allow.
    """
    if header is not None and not (header.isascii() and header.isdigit() and int(header[:20]) <= len(body)):
        raise not_of_it(f"{HEADER} is {shown(header)}, of {len(body)} bytes")
    text = body if header is None else body[: int(header)]
    found = of_json(text, _Request)
    _require_names(found.inputs, found.outputs or (), known)
    begin, arrays = len(text), {}
    for each in found.inputs:
        size = _parameters(each).get("binary_data_size")
        if each.data is not None:
            arrays[each.name] = _array(each, _of_json, each.data, options)
        elif type(size) is not int or size < 0:
            raise not_of_it(f"input {shown(each.name)} has no data")
        else:
            arrays[each.name] = _array(each, _of_bytes, body[begin : begin + size], options)
            begin += size
    given = _parameters(found)
    binary = given.get("binary_data_output") is True
    outputs = {each.name: _parameters(each).get("binary_data", binary) is True for each in found.outputs or ()}
    return Asked(arrays, outputs, binary, given.get("prompt"), found.id or "")


def of_json(text: bytes, kind: type[Part], also: Callable[[Any], Any] = lambda value: value) -> Any:
    """A request of a kind, which JSON has.

    Args:
        also: Makes of the values what is then taken as a request.

    Raises:
        FeedError: it is no such request, or has too many parts, which are counted before it is read.
    """
    parts = sum(text.count(mark) for mark in (b"[", b"{", b":"))
    within(parts, MOST_PARTS, "'[', '{' and ':' in JSON", "Send flat lists, or binary data.")
    try:
        return kind.model_validate(also(orjson.loads(text)))
    except orjson.JSONDecodeError as err:
        raise not_of_it(str(err)) from err
    except ValidationError as err:
        first = err.errors(include_url=False, include_context=False, include_input=False)[0]
        raise not_of_it(f"{'.'.join(map(str, first['loc']))[:_NAMED] or 'it'}: {first['msg']}") from err


def parsed(data: bytes, kind: Any) -> Any:
    """A message of gRPC, which a kind of message reads.

    Raises:
        FeedError: it has too many parts, which are counted before it is read, or is no message of this kind.
    """
    parts, todo = 0, [(0, len(data), kind.DESCRIPTOR)]
    try:
        while todo:
            at, end, fields = todo.pop()
            while at < end:
                parts += 1
                within(parts, MOST_PARTS, "parts of a message", "Send raw contents.")
                tag, at = _varint(data, at)
                wire = tag & 7
                if wire == 2:
                    size, at = _varint(data, at)
                    field = fields.fields_by_number.get(tag >> 3)
                    if field is not None and field.message_type is not None:
                        todo.append((at, min(at + size, end), field.message_type))
                    at += size
                elif wire == 0:
                    _, at = _varint(data, at)
                else:
                    at += {1: 8, 5: 4}[wire]
        return kind.FromString(data)
    except (IndexError, KeyError, DecodeError) as err:
        raise not_of_it("it is no message of gRPC") from err


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of a message, and where it ends."""
    value = 0
    for place in range(10):
        value |= (data[at + place] & 127) << 7 * place
        if data[at + place] < 128:
            return value, at + place + 1
    raise IndexError("a number has more than ten bytes")


def from_grpc(request: Any, known: Sequence[str], options: Options) -> Asked:
    """Reads a request of gRPC, a ModelInferRequest; see `from_http`."""
    for what, several in (("inputs", request.inputs), ("outputs", request.outputs)):
        within(len(several), MOST_NAMES, what, "Send what the model has.")
    _require_names(request.inputs, request.outputs, known)
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise not_of_it(f"it has {len(request.inputs)} inputs and {len(raw)} raw contents")
    arrays = {}
    for at, each in enumerate(request.inputs):
        within(len(each.shape), MOST_DIMS, "dims", "Send the model's.")
        if any(size < 0 for size in each.shape):
            raise not_of_it(f"input {shown(each.name)} has the shape {list(each.shape)}")
        if raw and each.HasField("contents"):
            raise not_of_it(f"input {shown(each.name)} has contents and raw contents")
        read, values = (_of_bytes, raw[at]) if raw else (_of_contents, each.contents)
        arrays[each.name] = _array(each, read, values, options)
    prompt = None
    if "prompt" in request.parameters:
        given = request.parameters["prompt"]
        prompt = getattr(given, given.WhichOneof("parameter_choice") or "", given)
    outputs = {each.name: True for each in request.outputs}
    return Asked(arrays, outputs, True, prompt, request.id, request.model_version)


def _parameters(part: Any) -> Mapping[str, Any]:
    """The parameters of a part, as they are: a model of pydantic would copy them."""
    if not isinstance(part.parameters, dict | None):
        raise not_of_it(f"parameters: got {shown(part.parameters)}; expected an object")
    return part.parameters or {}


def not_of_it(problem: str) -> FeedError:
    """The error about a request that is not of the protocol."""
    return FeedError(f"the request is not of the protocol: {problem}.")


def _require_names(inputs: Iterable[Any], outputs: Iterable[Any], known: Sequence[str]) -> None:
    """Raises FeedError for a name that is there twice, and for inputs that the model does not have."""
    for what, parts in (("input", inputs), ("output", outputs)):
        seen: set[str] = set()
        for name in (part.name for part in parts):
            if name in seen:
                raise FeedError(f"{what} {shown(name)} is there twice; name each once.")
            if what == "input" and name not in known:
                raise FeedError(f"input {shown(name)}: the model has no such input; expected {', '.join(known)}.")
            seen.add(name)


def _array(tensor: Any, read: Callable[[Any, str, int], Any], values: Any, options: Options) -> Array:
    """A tensor of a request. Raises FeedError if its values do not fit its shape or datatype."""
    count = math.prod(tensor.shape)
    try:
        if tensor.datatype not in _KINDS:
            raise ValueError(f"got datatype {tensor.datatype:.20}; expected {', '.join(_KINDS)}")
        if tensor.datatype == "BYTES":
            within(count, options.max_request_tokens, "texts", "Send them in several requests.")
        array: Array = np.asarray(read(values, tensor.datatype, count), _KINDS[tensor.datatype].dtype)
        if array.size != count:
            raise ValueError(f"got {array.size} values; its shape {list(tensor.shape)} has {count}")
        return array.reshape(tuple(tensor.shape))
    except (FeedError, ValueError, TypeError, OverflowError, struct.error) as err:
        problem = f"a text is not UTF-8: {err.reason}" if isinstance(err, UnicodeDecodeError) else str(err)
        raise FeedError(f"input {shown(tensor.name)}: {problem.rstrip('.')}.") from err


def _of_json(values: list[Any], datatype: str, count: int) -> Array:
    """The values of a list, or of lists in it. Raises ValueError for those that the datatype does not take."""
    dtype, flat = np.dtype(_KINDS[datatype].dtype), values
    if not _KINDS[datatype].contents:
        raise ValueError(f"JSON has no {datatype}; send binary data")
    for _ in range(MOST_DIMS):
        if list not in set(map(type, flat)):
            break
        if not all(type(each) is list for each in flat) or len(set(map(len, flat))) > 1:
            raise ValueError("its lists differ in length")
        flat = [value for each in flat for value in each]
    wrong = set(map(type, flat)).difference(_TAKES[dtype.kind])
    if wrong:
        raise ValueError(f"got {_SAID.get(wrong.pop(), 'a list')}; expected {datatype}")
    with np.errstate(over="ignore"):
        array = np.asarray(flat, dtype)
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"got a number that {datatype} does not hold")
    return array


def _of_bytes(data: bytes, datatype: str, count: int) -> Any:
    """The values of binary data. Raises ValueError or struct.error if it is cut short."""
    if datatype == "BOOL" and data.strip(b"\0\1"):
        raise ValueError("got bytes beside 0 and 1")
    if datatype != "BYTES":
        return np.frombuffer(data, _KINDS[datatype].dtype)
    texts, at = [], 0
    for _ in range(count):
        (length,) = struct.unpack_from("<I", data, at)
        at += 4 + length
        texts.append(data[at - length : at])
    if at != len(data):
        raise ValueError(f"got {len(data)} bytes; its {count} texts have {at}")
    return [text.decode() for text in texts]


def _of_contents(contents: Any, datatype: str, count: int) -> Any:
    """The values of a message InferTensorContents. Raises ValueError if it cannot have the datatype."""
    kind = _KINDS[datatype]
    if not kind.contents:
        raise ValueError(f"{datatype} is taken as raw contents alone")
    values = getattr(contents, kind.contents)
    if len(values) != count:
        raise ValueError(f"got {len(values)} values; its shape has {count}")
    if datatype == "BYTES":
        return [text.decode() for text in values]
    array = np.empty(count, kind.dtype)
    for begin in range(0, count, _AT_ONCE):
        array[begin : begin + _AT_ONCE] = values[begin : begin + _AT_ONCE]
    return array


def answer_bytes(datatype: str, count: int, *, binary: bool) -> int:
    """The bytes of so many values, as JSON at most.

    Raises:
        FeedError: JSON has no values of this kind.
    """
    kind = _KINDS[datatype]
    if not binary and not kind.letters:
        raise FeedError(f"JSON has no {datatype}; ask for binary data: {ASK_BINARY}.")
    return count * (np.dtype(kind.dtype).itemsize if binary else kind.letters)


def written(model: Any, asked: Asked, outputs: Mapping[str, Array]) -> Response:
    """The answer to a request of HTTP: JSON, and behind it the outputs that are wanted as binary data."""
    head = orjson.dumps({"model_name": model.name, "id": asked.id or str(uuid.uuid4())})
    body, raw = bytearray(head[:-1] + b',"outputs":['), []
    for at, (name, array) in enumerate(outputs.items()):
        told = {"name": name, "shape": array.shape, "datatype": DATATYPES[str(array.dtype)]}
        flat, parameters = np.ascontiguousarray(array).reshape(-1), model.told(name)
        body += b"," * bool(at)
        if asked.outputs.get(name, asked.binary):
            raw.append(flat.tobytes())
            body += orjson.dumps({**told, "parameters": parameters | {"binary_data_size": flat.nbytes}})
        else:
            body += orjson.dumps(told | ({"parameters": parameters} if parameters else {}))[:-1] + b',"data":['
            for begin in range(0, flat.size, _AT_ONCE):
                part = orjson.dumps(flat[begin : begin + _AT_ONCE], option=orjson.OPT_SERIALIZE_NUMPY)
                body += b"," * bool(begin) + part[1:-1]
            body += b"]}"
    body += b"]}"
    if not raw:
        return Response(bytes(body), media_type="application/json")
    whole = b"".join((body, *raw))
    return Response(whole, headers={HEADER: str(len(body))}, media_type="application/octet-stream")
