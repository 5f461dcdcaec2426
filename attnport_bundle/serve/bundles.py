"""A bundle as a model of KServe: the contract as metadata, requests checked and joined, errors with their status."""

from __future__ import annotations

import asyncio
import logging
import math
import struct
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from grpc import StatusCode
from grpc.aio import ServerInterceptor
from grpc_interceptor.exceptions import ResourceExhausted
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from .. import batches
from ..arguments import shown
from ..errors import AttnportError, FeedError
from ..format import expressions
from ..format.contract import IO, TensorSpec
from ..selftest import load_tested
from ..text.tokenizer import Tokenizer
from .joining import Joining
from .options import LETTERS, PLACES, Options, within
from .package import (
    DataPlane,
    InferenceError,
    InferenceServicer,
    InvalidInput,
    Model,
    ModelInferRequest,
    ModelInferResponse,
    ModelNotFound,
    ModelRepositoryExtension,
    register_v2_endpoints,
)
from .protocol import ASK_BINARY, DATATYPES, HEADER, Asked, answer_bytes, from_grpc, from_http, parsed, written

Arrays = Mapping[str, np.ndarray[Any, Any]]
Answer = Arrays | AttnportError
Join = Callable[[Callable[[list[Any]], Awaitable[list[Any]]]], Callable[[Any], Awaitable[Any]]]
"""What an engine makes of a function for several requests: one for a single request, which others join."""

TEXT = "text"
"""The input that takes texts in place of tensors, where a bundle has a tokenizer and gives one vector for a text."""
MALFORMED = (ValueError, TypeError, KeyError, struct.error)
"""What KServe's readers of requests raise for one that is not of the protocol."""
_LONGEST = 1000
"""Letters of an error that a client is told, who may have sent the rest."""


class Busy(ResourceExhausted):  # type: ignore[misc]  # the package has no types
    """More requests than the server takes at a time: 503, or RESOURCE_EXHAUSTED."""


class TooLarge(ResourceExhausted):  # type: ignore[misc]  # as above
    """The answer would be larger than the server gives: 413, or RESOURCE_EXHAUSTED."""


class Failed(RuntimeError):
    """The runtime failed on inputs that fit the contract: 500, or INTERNAL."""


CODES = {
    ModelNotFound: StatusCode.NOT_FOUND,
    ResourceExhausted: StatusCode.RESOURCE_EXHAUSTED,
    Failed: StatusCode.INTERNAL,
    **dict.fromkeys((*MALFORMED, InferenceError), StatusCode.INVALID_ARGUMENT),
}
"""The status that gRPC gives each kind of error."""


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
        self.options = options
        self._counts, self._waiting = counts, 0
        self._model = load_tested(folder, options.threads or None, key)
        self._tokenizer = _tokenizer(folder, self._model)
        self.input_names = [each["name"] for each in self.get_input_types()]
        self._usual = _usual(self._model.io)
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

    @contextmanager
    def room(self) -> Iterator[None]:
        """Holds the place of one request. Raises Busy if there is none."""
        if self._counts and self._waiting >= self.options.max_waiting:
            raise Busy(f"got more than {self._waiting} requests at a time; try again.")
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    async def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Arrays:
        """The outputs that a request, `Asked`, is answered with.

        Raises:
            InvalidInput: it does not fit the contract or the limits.
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
        except FeedError as err:
            raise _invalid(err) from err
        except AttnportError as err:
            raise Failed(str(err)) from err
        return {name: answer[name] for name in wanted}

    def _wanted(self, asked: Asked) -> list[str]:
        """The outputs that a request asks for. Raises FeedError if it asks for others."""
        if asked.version:
            raise FeedError(f"got version {shown(asked.version)}; here, a version is a model with its own name.")
        known = [spec.name for spec in self._model.io.outputs]
        for name in asked.outputs:
            if name not in known:
                raise FeedError(f"output {shown(name)}: the model has no such output; expected {', '.join(known)}.")
        return [*asked.outputs] or self._usual

    def _checked(self, asked: Asked, wanted: list[str]) -> Checked:
        """The inputs of a request. Raises FeedError, or TooLarge."""
        feeds, most = asked.arrays, self.options.max_request_tokens
        if TEXT in feeds and self._tokenizer:
            if len(feeds) > 1:
                raise FeedError(f"got {', '.join(feeds)}; expected {TEXT} alone, or the tensors without it.")
            prompt = self._model.manifest.prompts.chosen(_prompt(asked))
            texts = _texts(feeds[TEXT])
            within(len(texts), most, "texts", "Send them in several requests.")
            letters = sum(map(len, texts)) + len(texts) * len(prompt)
            within(letters, LETTERS * most, "letters of text", "Send fewer at a time; a long text is cut anyway.")
            feeds = self._tokenizer.encode_part(texts, 0, prompt, PLACES * most)
        sizes = {
            dim: size
            for spec in self._model.io.inputs
            for dim, size in zip(spec.dims, feeds[spec.name].shape if spec.name in feeds else (), strict=False)
            if isinstance(dim, str)
        }
        shapes = {spec.name: [_size(dim, sizes) for dim in spec.dims] for spec in self._model.io.outputs}
        self._require_room(asked, {name: shapes[name] for name in wanted})
        if self._joining is None:
            return Checked(feeds, 1)  # the model checks them when it runs
        self._joining.check(feeds)
        tokens = self._joining.tokens(feeds)
        within(tokens, most, "tokens", "Send fewer items at a time.")
        return Checked(feeds, tokens)

    def _require_room(self, asked: Asked, shapes: Mapping[str, Sequence[int]]) -> None:
        """Raises TooLarge for outputs that make too large an answer, FeedError for what JSON has no values of."""
        kinds = {spec.name: DATATYPES[spec.dtype] for spec in self._model.io.outputs}
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


def _tokenizer(folder: Path, model: Any) -> Tokenizer | None:
    """The tokenizer of a bundle that gives one vector for a text; None of others."""
    if model.manifest.tokenizer is None:
        return None
    try:
        batches.embedding(model.io)
        return Tokenizer(folder / model.manifest.tokenizer.file, model.io, limit=model.manifest.text_limit)
    except AttnportError:
        return None


def _usual(io: IO) -> list[str]:
    """The outputs of requests that name none: of an embedder its vectors alone, as the others may be much larger."""
    try:
        return [batches.embedding(io)]
    except FeedError:
        return [spec.name for spec in io.outputs]


def _size(dim: int | str, sizes: Mapping[str, int]) -> int:
    """The size of an output's dim, from those of the inputs; 1 if it is not known before the model runs."""
    try:
        return dim if isinstance(dim, int) else expressions.evaluate(dim, sizes)
    except ValueError:
        return 1


def _prompt(asked: Asked) -> str | None:
    """The name of a prompt. Raises FeedError."""
    if not isinstance(asked.prompt, str | None):
        raise FeedError(f"parameter prompt: got {shown(asked.prompt)}; expected the name of a prompt.")
    return asked.prompt


def _described(spec: TensorSpec) -> dict[str, Any]:
    shape = [dim if isinstance(dim, int) else -1 for dim in spec.dims]
    return {"name": spec.name, "datatype": DATATYPES[spec.dtype], "shape": shape}


def _texts(values: np.ndarray[Any, Any]) -> list[str]:
    """Texts of a tensor of BYTES. Raises FeedError."""
    if values.dtype != object or values.ndim != 1:
        raise FeedError(f"input {TEXT!r}: got {values.dtype}, shape {list(values.shape)}; expected BYTES [number].")
    return list(values)


class Service(InferenceServicer):  # type: ignore[misc]  # as above
    """KServe's service for gRPC, which reads requests and writes answers beside the event loop."""

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: D102, N802 - the protocol's name
        try:
            return await self.infer(request, context)
        except tuple(CODES) as err:
            # What is raised is kept by gRPC, with the request in its frames, until garbage is collected.
            tell_code(err, context)
            return ModelInferResponse()

    async def infer(self, request: Any, context: Any) -> ModelInferResponse:
        """As `ModelInfer`, but an error is raised: one of `CODES`."""
        if isinstance(request, bytes):  # see `Unread`; on Ray it has been read
            request = await asyncio.to_thread(_read, parsed, request, ModelInferRequest)
        model = self._data_plane.get_model_from_registry(request.model_name)
        with model.room():
            asked = await asyncio.to_thread(_read, from_grpc, request, model.input_names, model.options)
            answer, _ = await self._data_plane.infer(model_name=request.model_name, request=asked)
            return await asyncio.to_thread(_message, model.name, asked, answer)


def tell_code(err: Exception, context: Any) -> None:
    """Tells a client of gRPC of an error of `CODES`."""
    context.set_code(next(code for kind, code in CODES.items() if isinstance(err, kind)))
    context.set_details(str(err))


class Unread(ServerInterceptor):  # type: ignore[misc]  # as above
    """Leaves requests that infer as bytes: gRPC would read them in the event loop, whatever they hold."""

    async def intercept_service(self, continuation: Any, details: Any) -> Any:  # noqa: D102 - gRPC's name
        handler = await continuation(details)
        return handler._replace(request_deserializer=None) if details.method.endswith("/ModelInfer") else handler


def _message(model: str, asked: Asked, answer: Arrays) -> ModelInferResponse:
    return ModelInferResponse(
        model_name=model,
        id=asked.id,
        outputs=[
            {"name": name, "shape": array.shape, "datatype": DATATYPES[str(array.dtype)]}
            for name, array in answer.items()
        ],
        raw_output_contents=[array.tobytes() for array in answer.values()],
    )


def _read(read: Callable[..., Asked], *given: Any) -> Asked:
    try:
        return read(*given)
    except FeedError as err:
        raise _invalid(err) from err


def _invalid(err: FeedError) -> InvalidInput:
    """What a client is told, whose own letters in it may be many."""
    return InvalidInput(str(err)[:_LONGEST])


def add_endpoints(app: FastAPI, plane: DataPlane, options: Options) -> None:
    """Adds KServe's endpoints of the protocol, with one of our own that infers.

    KServe's would read, check and write in the event loop, and tell every error of a request.
    """

    async def infer(request: Request, model_name: str, model_version: str = "") -> Response:
        model = plane.get_model_from_registry(model_name)
        if model_version:
            raise NotImplementedError("here, a version is a model with its own name.")
        body = await request.body()
        with model.room():
            asked = await asyncio.to_thread(
                _read, from_http, body, request.headers.get(HEADER), model.input_names, options
            )
            answer, _ = await plane.infer(model_name=model_name, request=asked)
            return await asyncio.to_thread(written, model_name, asked, answer)

    for path in ("", "/versions/{model_version}"):
        app.add_api_route(f"/v2/models/{{model_name}}{path}/infer", infer, methods=["POST"], response_model=None)
    register_v2_endpoints(app, plane, Loaded(plane.model_registry))
    answer_errors(app, options.max_request_bytes)


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
        TooLarge: 413,
        ClientDisconnect: 400,
    }
    statuses |= dict.fromkeys((*MALFORMED, InferenceError), 400)
    for kind, status in statuses.items():
        app.add_exception_handler(kind, answer(status))
    # KServe prints a traceback for each request that is refused.
    logging.getLogger("kserve").addFilter(lambda record: not (record.exc_info and _refused(record.exc_info[1])))


def _refused(err: BaseException | None) -> bool:
    return isinstance(err, InvalidInput | ModelNotFound | NotImplementedError)


def _told(err: Exception) -> str:
    if isinstance(err, HTTPException):
        return str(err.detail)
    return f"the request is not of the protocol: {err!r}" if type(err) in MALFORMED else str(err)
