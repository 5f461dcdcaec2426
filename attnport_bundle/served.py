"""A bundle as a model of KServe: the contract as metadata, requests checked and joined, errors with their status."""

from __future__ import annotations

import asyncio
import logging
import struct
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from grpc_interceptor.exceptions import ResourceExhausted
from starlette.exceptions import HTTPException

from . import batches
from .contract import TensorSpec
from .errors import AttnportError, FeedError
from .joining import Joining
from .kserve_package import (
    InferenceError,
    InferOutput,
    InferRequest,
    InferResponse,
    InvalidInput,
    Model,
    ModelNotFound,
    ModelRepositoryExtension,
    to_np_dtype,
)
from .selftest import load_tested
from .serve_options import Options
from .text import Tokenizer

Arrays = Mapping[str, np.ndarray[Any, Any]]
Answer = Arrays | AttnportError
Join = Callable[[Callable[[list[Any]], Awaitable[list[Any]]]], Callable[[Any], Awaitable[Any]]]
"""What an engine makes of a function for several requests: one for a single request, which others join."""

DATATYPES = {
    "bool": "BOOL",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}
TEXT = "text"
"""The input that takes texts in place of tensors, where a bundle has a tokenizer and gives one vector for a text."""
MALFORMED = (ValueError, TypeError, KeyError, struct.error)
"""What KServe's readers of requests raise for one that is not of the protocol."""
_FROM = {"b": "b", "i": "iu", "f": "iuf"}
"""The kinds of numbers in JSON that a kind of tensor takes: 1.5 is no integer."""


class Busy(ResourceExhausted):  # type: ignore[misc]  # the package has no types
    """More requests than the server takes at a time: 503, or RESOURCE_EXHAUSTED."""


class Failed(RuntimeError):
    """The runtime failed on inputs that fit the contract: 500, or INTERNAL."""


class Loaded(ModelRepositoryExtension):  # type: ignore[misc]  # the package has no types
    """Models as they are: the protocol would let any client unload one."""

    async def load(self, model_name: str) -> None:
        """Refuses."""
        raise InvalidInput(f"model {model_name!r}: models are loaded when the server starts, and stay.")

    unload = load


class Checked:
    """The inputs of a request, which fit the contract. Its length is the number of its tokens."""

    def __init__(self, feeds: Arrays, tokens: int) -> None:
        self.feeds, self._tokens = feeds, tokens

    def __len__(self) -> int:
        return self._tokens


class Served(Model):  # type: ignore[misc]  # as above
    """One bundle, open."""

    def __init__(self, name: str, folder: Path, options: Options, key: Path | None, join: Join, counts: bool) -> None:
        """Opens a bundle after its self-test.

        Args:
            name: What clients ask for.
            key: The public key that it must be signed with, or None.
            join: Joins requests, if the contract allows it.
            counts: Whether requests are counted here, and not by the engine.

        Raises:
            BundleError: as `selftest.load_tested`.
        """
        super().__init__(name)
        self._options, self._counts, self._waiting = options, counts, 0
        self._model = load_tested(folder, options.threads or None, key)
        self._tokenizer, self._vector = _text_model(folder, self._model)
        self._tokens = options.max_batch_tokens or batches.TOKENS
        self._joining = _joining(self._model)
        self._answer = join(self._together) if self._joining and options.max_batch_tokens else self._alone
        self.ready = True

    def get_input_types(self) -> list[dict[str, Any]]:
        """The inputs, with -1 for a dim that is dynamic; a request has `text`, or all others."""
        text = [{"name": TEXT, "datatype": "BYTES", "shape": [-1]}] if self._tokenizer else []
        return [*map(_described, self._model.io.inputs), *text]

    def get_output_types(self) -> list[dict[str, Any]]:
        """The outputs, with -1 for a dim that is dynamic."""
        return [*map(_described, self._model.io.outputs)]

    async def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> InferResponse:
        """Answers a request.

        Raises:
            InvalidInput: it does not fit the contract or the limits.
            Busy: there are too many requests.
            Failed: the runtime failed.
        """
        if self._counts and self._waiting >= self._options.max_waiting:
            raise Busy(f"got more than {self._waiting} requests at a time; try again.")
        self._waiting += 1
        try:
            wanted = self._wanted(payload)
            answer = await self._answer(await asyncio.to_thread(self._checked, payload))
            if isinstance(answer, AttnportError):
                raise answer
        except FeedError as err:
            raise InvalidInput(str(err)) from err
        except AttnportError as err:
            raise Failed(str(err)) from err
        finally:
            self._waiting -= 1
        outputs = [InferOutput(name, list(answer[name].shape), DATATYPES[str(answer[name].dtype)]) for name in wanted]
        for output in outputs:
            if payload.from_grpc:
                output.set_data_from_numpy(answer[output.name])
            else:
                output.data = answer[output.name]
        return InferResponse(
            payload.id or str(uuid.uuid4()),
            self.name,
            outputs,
            use_binary_outputs=payload.use_binary_outputs,
            requested_outputs=payload.request_outputs,
        )

    def _wanted(self, payload: Any) -> list[str]:
        """The outputs that a request asks for. Raises FeedError if it is not of the protocol, or asks for others."""
        if not isinstance(payload, InferRequest):
            raise FeedError("the request is not of the open inference protocol v2, the only one here.")
        if payload.model_version:
            raise FeedError(f"got version {payload.model_version!r}; here, a version is a model with its own name.")
        known = [spec.name for spec in self._model.io.outputs]
        asked = [output.name for output in payload.request_outputs or ()]
        for name in asked:
            if name not in known:
                raise FeedError(f"output {name!r}: the model has no such output; expected {', '.join(known)}.")
        of_text = self._tokenizer is not None and any(each.name == TEXT for each in payload.inputs)
        return asked or ([self._vector] if of_text else known)

    def _checked(self, payload: Any) -> Checked:
        """The inputs of a request. Raises FeedError."""
        feeds = {each.name: _array(each) for each in payload.inputs}
        if TEXT in feeds and self._tokenizer:
            if len(feeds) > 1:
                raise FeedError(f"got {', '.join(feeds)}; expected {TEXT} alone, or the tensors without it.")
            prompt = self._model.manifest.prompts.chosen(_prompt(payload))
            feeds = self._tokenizer.encode(_texts(feeds[TEXT]), prompt=prompt)
        if self._joining is None:
            return Checked(feeds, 1)  # the model checks them when it runs
        self._joining.check(feeds)
        tokens, most = self._joining.tokens(feeds), self._options.max_request_tokens
        if tokens > most:
            raise FeedError(f"got a request of {tokens} tokens; expected at most {most}.")
        return Checked(feeds, tokens)

    async def _alone(self, request: Checked) -> Answer:
        if self._joining is None:
            return await asyncio.to_thread(self._model.run, **request.feeds)
        return await asyncio.to_thread(self._model.map, request.feeds, tokens=self._tokens)

    async def _together(self, requests: list[Checked]) -> list[Answer]:
        """The outputs of each request, or the error of those that it was joined with."""
        assert self._joining is not None
        groups: dict[Any, list[int]] = {}
        for at, request in enumerate(requests):
            groups.setdefault(self._joining.alike(request.feeds), []).append(at)
        answers: dict[int, Answer] = {}
        for members in groups.values():
            found = await asyncio.to_thread(self._joined, self._joining, [requests[at].feeds for at in members])
            answers |= zip(members, found, strict=True)
        return [answers[at] for at in range(len(requests))]

    def _joined(self, joining: Joining, requests: Sequence[Arrays]) -> Sequence[Answer]:
        try:
            outputs = self._model.map(joining.join(requests), tokens=self._tokens)
        except AttnportError as err:
            return [err] * len(requests)
        return joining.split(outputs, requests)


def _joining(model: Any) -> Joining | None:
    try:
        return Joining(model.io)
    except FeedError:
        return None


def _text_model(folder: Path, model: Any) -> tuple[Tokenizer | None, str]:
    """The tokenizer of a bundle that gives one vector for a text, and that output; None and "" of others."""
    if model.manifest.tokenizer is None:
        return None, ""
    try:
        limit = model.manifest.text_limit
        return Tokenizer(folder / model.manifest.tokenizer, model.io, limit=limit), batches.embedding(model.io)
    except AttnportError:
        return None, ""


def _prompt(payload: Any) -> str | None:
    """The name of a prompt: the request's parameter `prompt`, which gRPC has in a message. Raises FeedError."""
    found = dict(payload.parameters or {}).get("prompt")
    found = getattr(found, "string_param", found)
    if not isinstance(found, str | None):
        raise FeedError(f"parameter prompt: got {found!r:.60}; expected the name of a prompt.")
    return found


def _described(spec: TensorSpec) -> dict[str, Any]:
    shape = [dim if isinstance(dim, int) else -1 for dim in spec.dims]
    return {"name": spec.name, "datatype": DATATYPES[spec.dtype], "shape": shape}


def _array(tensor: Any) -> np.ndarray[Any, Any]:
    """A tensor of a request. Raises FeedError if its values do not fit its shape or datatype."""
    try:
        wanted = to_np_dtype(tensor.datatype)
        if wanted is None:
            raise ValueError(f"got datatype {tensor.datatype}; expected {', '.join(DATATYPES.values())} or BYTES")
        kinds = _FROM.get(np.dtype(wanted).kind.replace("u", "i"))
        if kinds and tensor.data and (given := np.asarray(tensor.data)).dtype.kind not in kinds:
            raise ValueError(f"got values of {given.dtype}; expected {tensor.datatype}")
        array: np.ndarray[Any, Any] = tensor.as_numpy()
    except (*MALFORMED, OverflowError) as err:
        raise FeedError(f"input {tensor.name!r}: {err}.") from err
    return array


def _texts(values: np.ndarray[Any, Any]) -> list[str]:
    """Texts of a tensor of BYTES. Raises FeedError."""
    if values.dtype != object or values.ndim != 1:
        raise FeedError(f"input {TEXT!r}: got {values.dtype}, shape {list(values.shape)}; expected BYTES [number].")
    try:
        return [value.decode() if isinstance(value, bytes) else str(value) for value in values]
    except UnicodeDecodeError as err:
        raise FeedError(f"input {TEXT!r}: a text is not UTF-8: {err}.") from err


def answer_errors(app: FastAPI, max_bytes: int) -> None:
    """Makes KServe's endpoints answer errors as the protocol does, and refuse bodies that are too large."""

    def answer(status: int) -> Any:
        return lambda _, err: JSONResponse(
            {"error": _told(err)}, err.status_code if isinstance(err, HTTPException) else status
        )

    app.max_body_size = max_bytes
    statuses = {
        ModelNotFound: 404,
        Exception: 500,
        HTTPException: 500,
        Failed: 500,
        NotImplementedError: 501,
        Busy: 503,
    }
    statuses |= dict.fromkeys((*MALFORMED, RequestValidationError, InferenceError), 400)
    for kind, status in statuses.items():
        app.add_exception_handler(kind, answer(status))
    # KServe prints a traceback for each request that is refused.
    logging.getLogger("kserve").addFilter(lambda record: not (record.exc_info and _refused(record.exc_info[1])))


def _refused(err: BaseException | None) -> bool:
    return isinstance(err, InvalidInput | ModelNotFound | NotImplementedError)


def _told(err: Exception) -> str:
    if isinstance(err, HTTPException):
        return str(err.detail)
    if isinstance(err, RequestValidationError):
        return "the request is not of the protocol: " + "; ".join(
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in err.errors()
        )
    return f"the request is not of the protocol: {err!r}" if type(err) in MALFORMED else str(err)
