"""A bundle as a model of KServe: the contract as metadata, requests checked and joined, errors with their status."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import struct
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from grpc import StatusCode
from grpc.aio import ServerInterceptor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from .. import batches
from ..arguments import shown
from ..errors import AttnportError, BundleError, FeedError
from ..format.contract import TensorSpec
from ..model import load_tested
from ..text import Tokenizer
from . import LETTERS, PLACES, Options, within
from .joining import Joining
from .protocol import ASK_BINARY, DATATYPES, HEADER, Asked, answer_bytes, from_grpc, from_http, parsed, written

_ARGUMENTS, sys.argv = sys.argv, sys.argv[:1]  # KServe reads the command line of whoever imports it
try:
    from kserve import Model
    from kserve import ModelRepository as ModelRepository
    from kserve.errors import InferenceError, InvalidInput, ModelNotFound
    from kserve.protocol.dataplane import DataPlane as DataPlane
    from kserve.protocol.grpc import grpc_predict_v2_pb2
    from kserve.protocol.grpc.grpc_predict_v2_pb2 import ModelInferRequest, ModelInferResponse
    from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import (
        add_GRPCInferenceServiceServicer_to_server as add_GRPCInferenceServiceServicer_to_server,
    )
    from kserve.protocol.grpc.interceptors import ExceptionToStatusInterceptor as ExceptionToStatusInterceptor
    from kserve.protocol.grpc.servicer import InferenceServicer
    from kserve.protocol.model_repository_extension import ModelRepositoryExtension
    from kserve.protocol.rest.server import metrics_handler as metrics_handler
    from kserve.protocol.rest.v2_endpoints import register_v2_endpoints
finally:
    sys.argv = _ARGUMENTS
sys.modules.setdefault("grpc_predict_v2_pb2", grpc_predict_v2_pb2)
"""Ray pickles gRPC's messages by this name, which they give as that of their module."""

Arrays = Mapping[str, np.ndarray[Any, Any]]
Answer = Arrays | AttnportError
Join = Callable[[Callable[[list[Any]], Awaitable[list[Any]]]], Callable[[Any], Awaitable[Any]]]
"""What an engine makes of a function for several requests: one for a single request, which others join."""

TEXT = "text"
"""The input that takes texts, or pairs of them, where a bundle has a tokenizer and gives a vector or scores of each."""
MALFORMED = (ValueError, TypeError, KeyError, struct.error)
"""What KServe's readers of requests raise for one that is not of the protocol."""
_LABELS = 100
"""Of more classes, the labels would be most of an answer; they are in `bundle.json`."""
ROUTES = "/v1/"
"""Where the routes of OpenAI's protocol begin."""
_LONGEST = 1000
"""Letters of an error that a client is told, who may have sent the rest."""


class Busy(Exception):
    """More requests than the server takes at a time."""


class TooLarge(Exception):
    """The answer would be larger than the server gives."""


class Failed(RuntimeError):
    """The runtime failed on inputs that fit the contract."""


STATUSES = {
    ModelNotFound: (404, StatusCode.NOT_FOUND),
    TooLarge: (413, StatusCode.RESOURCE_EXHAUSTED),
    Busy: (503, StatusCode.RESOURCE_EXHAUSTED),
    Failed: (500, StatusCode.INTERNAL),
    **dict.fromkeys((FeedError, *MALFORMED, InferenceError), (400, StatusCode.INVALID_ARGUMENT)),
}
"""What HTTP and gRPC answer to each kind of error."""


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

    def __init__(self, name: str, folder: Path, options: Options, key: Path | None, join: Join) -> None:
        """Opens a bundle, which clients ask for by `name`, after its self-test. Raises as `model.load_tested`.

        Args:
            join: Joins requests, if the contract allows it.
        """
        super().__init__(name)
        self.options, self.folder = options, folder
        self._waiting = 0
        self.model = load_tested(folder, options.threads or None, key)
        # Requests that name no output get vectors or scores of texts alone, as the others may be much larger.
        self._usual = [spec.name for spec in self.model.io.outputs]
        self.tokenizer: Tokenizer | None = None
        self._unread = ""
        with suppress(FeedError):
            self._usual = [batches.scoring(self.model.io) or batches.embedding(self.model.io)]
            try:
                self.tokenizer = self.model._text()
            except BundleError as err:
                self._unread = str(err) if self.model.manifest.tokenizer else ""
        self.input_names = [each["name"] for each in self.get_input_types()]
        self._tokens = options.max_batch_tokens or batches.TOKENS
        self._joining: Joining | None = None
        with suppress(FeedError):  # of a contract that allows no joining
            joining = Joining(self.model.io)
            joining.require_independence()
            self._joining = joining
        self._answer = join(self._together) if self._joining and options.max_batch_tokens else self._alone
        self.ready = True

    def require_readable(self) -> None:
        """Raises Failed where the bundle has a tokenizer that cannot be read here, which is no fault of a request."""
        if self._unread:
            raise Failed(f"{self.name} cannot read text: {self._unread}")

    def get_input_types(self) -> list[dict[str, Any]]:
        """The inputs, with -1 for a dim that is dynamic; a request has `text`, or all others."""
        text = [{"name": TEXT, "datatype": "BYTES", "shape": [-1]}] if self.tokenizer else []
        return [*map(_described, self.model.io.inputs), *text]

    def get_output_types(self) -> list[dict[str, Any]]:
        """The outputs, with -1 for a dim that is dynamic."""
        return [*map(_described, self.model.io.outputs)]

    def told(self, output: str) -> dict[str, str]:
        """The parameters of an output in an answer: the labels of a classifier, as a JSON list, if they are few."""
        (labels,) = (spec.labels for spec in self.model.io.outputs if spec.name == output)
        return {"labels": json.dumps(labels)} if 0 < len(labels) <= _LABELS else {}

    @contextmanager
    def room(self) -> Iterator[None]:
        """Holds the place of one request. Raises Busy if there is none."""
        if self._waiting >= self.options.max_waiting:
            raise Busy(f"got more than {self._waiting} requests at a time; try again.")
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    async def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Arrays:
        """The outputs that a request, `Asked`, is answered with.

        Raises:
            FeedError: it does not fit the contract or the limits.
            TooLarge: its answer would be too large.
            Failed: the runtime failed.
        """
        try:
            wanted = self._wanted(payload)
            request = await asyncio.to_thread(self._checked, payload, wanted)
            answer = await self._answer(request)
            if isinstance(answer, AttnportError):
                raise answer
            self._require_room(payload, {name: answer[name].shape for name in wanted})
        except FeedError:
            raise
        except AttnportError as err:
            raise Failed(str(err)) from err
        return {name: answer[name] for name in wanted}

    def _wanted(self, asked: Asked) -> list[str]:
        """The outputs that a request asks for. Raises FeedError if it asks for others."""
        if asked.version:
            raise FeedError(f"got version {shown(asked.version)}; here, a version is a model with its own name.")
        known = [spec.name for spec in self.model.io.outputs]
        for name in asked.outputs:
            if name not in known:
                raise FeedError(f"output {shown(name)}: the model has no such output; expected {', '.join(known)}.")
        return [*asked.outputs] or self._usual

    def _checked(self, asked: Asked, wanted: list[str]) -> Checked:
        """The inputs of a request. Raises FeedError, or TooLarge."""
        feeds, most = asked.arrays, self.options.max_request_tokens
        if TEXT in feeds and self.tokenizer:
            if len(feeds) > 1:
                raise FeedError(f"got {', '.join(feeds)}; expected {TEXT} alone, or the tensors without it.")
            values = feeds[TEXT]
            if values.dtype != object or values.shape[:1] == () or values.shape[1:] not in ((), (2,)):
                got = f"{values.dtype}, shape {list(values.shape)}"
                raise FeedError(f"input {TEXT!r}: got {got}; expected BYTES [number], or [number, 2] of pairs.")
            with as_sent(TEXT):
                feeds = self.tokenised(values, asked.prompt)
        sizes = {
            dim: size
            for spec in self.model.io.inputs
            for dim, size in zip(spec.dims, feeds[spec.name].shape if spec.name in feeds else (), strict=False)
            if isinstance(dim, str)
        }
        # A size that is not known before the model runs counts as 1.
        shapes = {
            spec.name: [1 if size is None else size for size in spec.known_shape(sizes)]
            for spec in self.model.io.outputs
        }
        self._require_room(asked, {name: shapes[name] for name in wanted})
        if self._joining is None:
            return Checked(feeds, 1)  # the model checks them when it runs
        self._joining.check(feeds)
        tokens = self._joining.tokens(feeds)
        within(tokens, most, "tokens", "Send fewer items at a time.")
        return Checked(feeds, tokens)

    def tokenised(self, texts: np.ndarray[Any, Any], prompt: Any = None) -> Arrays:
        """The inputs of texts, or of pairs of them, behind the prompt of a name. Raises FeedError."""
        assert self.tokenizer is not None
        before, most = self.model.manifest.prompts.chosen(prompt), self.options.max_request_tokens
        within(len(texts), most, "texts", "Send them in several requests.")
        letters = sum(map(len, texts.flat)) + len(texts) * len(before)
        within(letters, LETTERS * most, "letters of text", "Send fewer at a time; a long text is cut anyway.")
        return self.tokenizer.encode(texts.tolist(), prompt=before, places=PLACES * most)

    def _require_room(self, asked: Asked, shapes: Mapping[str, Sequence[int]]) -> None:
        """Raises TooLarge for outputs that make too large an answer, FeedError for what JSON has no values of."""
        kinds = {spec.name: DATATYPES[spec.dtype] for spec in self.model.io.outputs}
        found = {
            name: answer_bytes(kinds[name], math.prod(shape), binary=asked.outputs.get(name, asked.binary))
            for name, shape in shapes.items()
        }
        if sum(found.values()) > self.options.max_response_bytes:
            parts = ", ".join(f"{name} {list(shapes[name])} {size}" for name, size in found.items())
            raise TooLarge(
                f"the answer has up to {sum(found.values())} bytes ({parts}); expected at most "
                f"{self.options.max_response_bytes}. Send fewer items at a time, name fewer outputs "
                f'({{"outputs": [{{"name": ...}}]}}), or ask for binary data ({ASK_BINARY}).'
            )

    async def _alone(self, request: Checked) -> Answer:
        if self._joining is None:
            return await asyncio.to_thread(self.model.run, **request.feeds)
        return await asyncio.to_thread(self.model.map, request.feeds, tokens=self._tokens)

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
            outputs = self.model.map(joining.join(requests), tokens=self._tokens)
        except AttnportError as err:
            return [err] * len(requests)
        return joining.split(outputs, requests)


def _described(spec: TensorSpec) -> dict[str, Any]:
    shape = [dim if isinstance(dim, int) else -1 for dim in spec.dims]
    return {"name": spec.name, "datatype": DATATYPES[spec.dtype], "shape": shape}


class Service(InferenceServicer):  # type: ignore[misc]  # as above
    """KServe's service for gRPC, which reads requests and writes answers beside the event loop."""

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: D102, N802 - the protocol's name
        try:
            return await self.infer(request, context)
        except tuple(STATUSES) as err:
            # What is raised is kept by gRPC, with the request in its frames, until garbage is collected.
            tell_code(err, context)
            return ModelInferResponse()

    async def infer(self, request: Any, context: Any) -> ModelInferResponse:
        """As `ModelInfer`, but an error is raised: one of `STATUSES`."""
        if isinstance(request, bytes):  # see `Unread`; on Ray it has been read
            request = await asyncio.to_thread(parsed, request, ModelInferRequest)
        return await _answered(self._data_plane, request.model_name, partial(from_grpc, request), _message)


def tell_code(err: Exception, context: Any) -> None:
    """Tells a client of gRPC of an error of `STATUSES`."""
    context.set_code(next(code for kind, (_, code) in STATUSES.items() if isinstance(err, kind)))
    context.set_details(str(err)[:_LONGEST])


class Unread(ServerInterceptor):  # type: ignore[misc]  # as above
    """Leaves requests that infer as bytes: gRPC would read them in the event loop, whatever they hold."""

    async def intercept_service(self, continuation: Any, details: Any) -> Any:  # noqa: D102 - gRPC's name
        handler = await continuation(details)
        return handler._replace(request_deserializer=None) if details.method.endswith("/ModelInfer") else handler


def _message(model: Served, asked: Asked, answer: Arrays) -> ModelInferResponse:
    return ModelInferResponse(
        model_name=model.name,
        id=asked.id,
        outputs=[
            {
                "name": name,
                "shape": array.shape,
                "datatype": DATATYPES[str(array.dtype)],
                "parameters": {key: {"string_param": text} for key, text in model.told(name).items()},
            }
            for name, array in answer.items()
        ],
        raw_output_contents=[array.tobytes() for array in answer.values()],
    )


async def _answered(plane: DataPlane, name: str, read: Callable[..., Asked], write: Callable[..., Any]) -> Any:
    """Reads a request, runs it and writes the answer, beside the event loop.

    Args:
        read: Reads the request, of the names of the model's inputs and the options.
        write: Makes the answer, of the model, the request and the outputs.
    """
    model = plane.get_model_from_registry(name)
    with model.room():
        asked = await asyncio.to_thread(read, model.input_names, model.options)
        answer, _ = await plane.infer(model_name=name, request=asked)
        return await asyncio.to_thread(write, model, asked, answer)


def add_endpoints(app: FastAPI, plane: DataPlane, options: Options) -> None:
    """Adds KServe's endpoints of the protocol, with one of our own that infers.

    KServe's would read, check and write in the event loop, and tell every error of a request.
    """

    async def infer(request: Request, model_name: str, model_version: str = "") -> Response:
        plane.get_model_from_registry(model_name)  # before the body of the request is taken
        if model_version:
            raise NotImplementedError("here, a version is a model with its own name.")
        read = partial(from_http, await request.body(), request.headers.get(HEADER))
        return await _answered(plane, model_name, read, written)

    for path in ("", "/versions/{model_version}"):
        app.add_api_route(f"/v2/models/{{model_name}}{path}/infer", infer, methods=["POST"], response_model=None)
    register_v2_endpoints(app, plane, Loaded(plane.model_registry))
    answer_errors(app, options.max_request_bytes)


def answer_errors(app: FastAPI, max_bytes: int) -> None:
    """Makes KServe's endpoints answer errors as the protocol does, and refuse bodies that are too large."""

    def answer(status: int) -> Any:
        def answered(request: Request, err: Exception) -> JSONResponse:
            code = err.status_code if isinstance(err, HTTPException) else status
            openai = request.url.path.startswith(ROUTES)
            return JSONResponse(openai_error(err, code) if openai else {"error": _told(err)}, code)

        return answered

    app.max_body_size = max_bytes
    others = {Exception: 500, HTTPException: 500, NotImplementedError: 501, ClientDisconnect: 400}
    for kind, status in {**{kind: status for kind, (status, _) in STATUSES.items()}, **others}.items():
        app.add_exception_handler(kind, answer(status))
    # KServe prints a traceback for each request that is refused.
    refused = (FeedError, InvalidInput, ModelNotFound, NotImplementedError)
    logging.getLogger("kserve").addFilter(
        lambda record: not (record.exc_info and isinstance(record.exc_info[1], refused))
    )


def status_of(err: Exception) -> int:
    """What HTTP answers to an error of `STATUSES`."""
    return next(status for kind, (status, _) in STATUSES.items() if isinstance(err, kind))


@contextmanager
def as_sent(field: str, *, alone: bool = False) -> Iterator[None]:
    """Names the field of a request in errors about the texts that the reader was given of it.

    Args:
        alone: Whether the field is one text, and no list of them.
    """
    try:
        yield
    except FeedError as err:
        about = _ABOUT_TEXTS.match(told := str(err))
        if about is None:
            raise
        place = "" if alone or about["place"] is None else about["place"]
        raise FeedError(f"{field}{place}:{told[about.end() :]}") from err


_ABOUT_TEXTS = re.compile(r"(?:texts|prompts)(?P<place>\[\d+\])?:")
"""How errors begin that the reader raises about texts."""


def openai_error(err: Exception, status: int) -> dict[str, Any]:
    """An error as OpenAI's protocol has it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    code = "model_not_found" if isinstance(err, ModelNotFound) else None
    return {"error": {"message": _told(err), "type": kind, "param": None, "code": code}}


def _told(err: Exception) -> str:
    if isinstance(err, HTTPException):
        return str(err.detail)
    return f"the request is not of the protocol: {err!r}" if type(err) in MALFORMED else str(err)[:_LONGEST]
