"""OpenAI's protocol for the same models: vectors of texts, scores of documents, and texts that a decoder continues.

KServe's own classes for it import vllm, so that these are routes of our own (docs/adr/0030-routes-of-our-own.md). As in
the other protocol, what a request may have is limited before it is made, and all work is beside the event loop. A
decoder generates in threads of its own, which end at the next token when their client goes away.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import re
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import orjson
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import Field
from starlette.requests import ClientDisconnect

from .. import batches
from ..arguments import integer, require, shown
from ..decoding.generate import Stream, Words
from ..errors import AttnportError, BundleError, FeedError
from ..format.decoder import Roles
from ..format.manifest import CHAT
from ..format.strict_json import parse
from ..text import IDS
from . import LETTERS, PLACES, within
from .bundles import (
    ROUTES,
    STATUSES,
    Arrays,
    DataPlane,
    Failed,
    Served,
    TooLarge,
    as_sent,
    openai_error,
    status_of,
)
from .protocol import Asked, Part, of_json

T = TypeVar("T")
Kind = TypeVar("Kind", bound="_Body")

_IGNORED = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"}
"""What a request may say, and what changes no answer."""
_NEW_TOKENS = 16
"""Of a completion that names no number, as OpenAI documents."""
_STOPS, _STOP_LETTERS = 4, 256
"""The most texts that end a text, and the letters of one: they are looked for at every token."""
_TEMPLATE_S = 10.0
"""The most seconds of a chat template, which takes milliseconds: its author may have written a loop without an end."""
_WIDE = re.compile(r"%[^a-zA-Z%]*(?:\*|\d{5})|\{[^{}]*:[^{}]*\d{5}")
"""A format of 10,000 letters and more."""
_MOST_MADE = 10_000_000
"""The largest number, and the longest text or list, that an operator of a chat template may make."""
_VALUE = {"float": 16, "base64": 6}
"""The most letters of an answer for each number of a vector."""


class _Body(Part):
    model: str


class _Embeddings(_Body):
    input: Any
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)
    prompt: str | None = None


class _Rerank(_Body):
    query: str
    documents: list[Any]
    top_n: int | None = Field(None, ge=1)
    return_documents: bool = False


class _StreamOptions(Part):
    include_usage: bool = False


class _Generate(_Body):
    max_tokens: Any = None
    temperature: Any = None
    top_p: Any = None
    top_k: Any = None
    seed: Any = None
    min_tokens: Any = None
    repetition_penalty: Any = None
    stop: Any = None
    stream: bool = False
    stream_options: _StreamOptions = _StreamOptions()

    def how(self) -> dict[str, Any]:
        """The options of `Model.generate`, which refuses what has no meaning."""
        names = ("temperature", "top_p", "top_k", "seed", "min_tokens", "repetition_penalty")
        return {name: getattr(self, name) for name in names}


class _Completion(_Generate):
    prompt: Any


class _Chat(_Generate):
    messages: list[Any] = Field(min_length=1)
    max_completion_tokens: Any = None


_NOTHING: Mapping[str, tuple[Any, ...]] = {
    "n": (1,), "frequency_penalty": (0,), "presence_penalty": (0,), "logit_bias": ({},),
}  # fmt: skip
_USUAL: Mapping[type[_Body], Mapping[str, tuple[Any, ...]]] = {
    _Completion: {**_NOTHING, "logprobs": (), "best_of": (1,), "echo": (False,), "suffix": ("",)},
    _Chat: {
        **_NOTHING, "logprobs": (False,), "top_logprobs": (0,), "tools": ([],), "tool_choice": ("none", "auto"),
        "response_format": ({"type": "text"},), "modalities": (["text"],),
    },
}  # fmt: skip
"""What OpenAI's API takes besides, with the values that ask for nothing."""


def _read(kind: type[Kind], body: bytes) -> Kind:
    """A request. Raises FeedError: it is none, or asks for what is not here."""

    def plain(values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        kept = {name: value for name, value in values.items() if value is not None and name not in _IGNORED}
        for name, usual in _USUAL.get(kind, {}).items():
            if name in kept and (value := kept.pop(name)) not in usual:
                expected = " or ".join(["none", *map(shown, usual)])
                raise FeedError(f"{name}: got {shown(value)}; expected {expected}: it is not served here.")
        if unknown := next((name for name in kept if name not in kind.model_fields), None):
            raise FeedError(f"got {shown(unknown)}, which is not served here; expected {', '.join(kind.model_fields)}.")
        return kept

    found: Kind = of_json(body, kind, plain)
    return found


def _several(name: str, value: Any) -> list[Any]:
    """Texts, or lists of token ids, of a value that has one or several of them."""
    given = value if isinstance(value, list) and set(map(type, value)) != {int} else [value]
    kinds = set(map(type, given))
    ids = kinds == {list} and all(given) and all(set(map(type, row)) == {int} for row in given)
    expected = "a text, token ids, or a list of texts or of lists of token ids"
    require(kinds == {str} or ids, name, value, f"{expected}, none of them empty")
    return given


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


def _asked(model: Served, output: str, feeds: Arrays) -> tuple[Asked, int]:
    """The request for one output, and the number of its tokens."""
    tokens = feeds[IDS].size
    with suppress(FeedError):  # of masks that are of another form
        masks, _ = batches.padding(model.model.io)
        tokens = batches.real_places(masks, feeds).sum() if masks else tokens
    return Asked(feeds, {output: True}, binary=True), int(tokens)


# --- vectors and scores -------------------------------------------------------------------------------------------


def _vectors_asked(model: Served, body: _Embeddings) -> tuple[Asked, int]:
    output = batches.embedding(model.model.io)
    (width,) = (spec.dims[1] for spec in model.model.io.outputs if spec.name == output)
    texts = _several("input", body.input)
    alone = texts is not body.input
    for at, text in enumerate(texts):  # as OpenAI does
        require(text != "", "input" if alone else f"input[{at}]", text, "a text that is not empty")
    if body.dimensions is not None:
        integer("dimensions", body.dimensions, 1, int(width))
    if model.tokenizer is None:
        model.require_readable()
        raise FeedError("the bundle has no tokenizer; ask /v2/models for its vectors, with its tensors.")
    letters = len(texts) * int(width) * _VALUE[body.encoding_format]
    if letters > model.options.max_response_bytes:
        raise TooLarge(
            f"the answer has up to {letters} bytes; expected at most {model.options.max_response_bytes}. Send fewer "
            "texts at a time."
        )
    if isinstance(texts[0], str):
        given = np.empty(len(texts), object)
        given[:] = texts
        return _asked(model, output, model.tokenised(given, body.prompt))
    require(body.prompt is None, "prompt", body.prompt, "none, where there are token ids: it stands before texts")
    with as_sent("input", alone=alone):
        feeds = model.tokenizer.padded(texts, places=PLACES * model.options.max_request_tokens)
    return _asked(model, output, feeds)


def _vectors(body: _Embeddings, answer: Arrays, tokens: int) -> Response:
    (found,) = answer.values()
    vectors = np.ascontiguousarray(found, "<f4")
    if body.dimensions is not None:
        vectors = np.ascontiguousarray(vectors[:, : body.dimensions])
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo("f4").tiny)
    as_text, parts = body.encoding_format == "base64", []
    for at, vector in enumerate(vectors):
        value = (
            b'"%s"' % base64.b64encode(vector) if as_text else orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY)
        )
        parts.append(b'{"object":"embedding","index":%d,"embedding":%s}' % (at, value))
    head = orjson.dumps({"object": "list", "model": body.model, "usage": _usage(tokens)})
    return Response(head[:-1] + b',"data":[' + b",".join(parts) + b"]}", media_type="application/json")


def _usage(prompt: int, new: int | None = None) -> dict[str, int]:
    made = {} if new is None else {"completion_tokens": new}
    return {"prompt_tokens": prompt, **made, "total_tokens": prompt + (new or 0)}


def _documents(body: _Rerank) -> list[str]:
    found: list[Any] = [each.get("text") if isinstance(each, dict) else each for each in body.documents]
    fits = bool(found) and set(map(type, found)) == {str}
    require(fits, "documents", body.documents, 'a list of one or more texts, or of {"text": ...}')
    return found


def _scores_asked(model: Served, body: _Rerank) -> tuple[Asked, int]:
    output, documents = batches.scoring(model.model.io), _documents(body)
    dims = next((spec.dims[1:] for spec in model.model.io.outputs if spec.name == output), None)
    model.require_readable()
    if model.tokenizer is None or dims not in ((), (1,)):
        raise FeedError(
            "rerank: the model does not give one score for a query and a document, as a cross-encoder does."
        )
    pairs = np.empty((len(documents), 2), object)
    pairs[:, 0], pairs[:, 1] = body.query, documents
    with as_sent("documents"):
        return _asked(model, output, model.tokenised(pairs))


def _scores(body: _Rerank, answer: Arrays, tokens: int) -> Response:
    ((output, found),) = answer.items()
    scores, documents = found.reshape(-1).astype(np.float64), _documents(body)
    if output == "logits":  # of one label, as `predict` gives them
        scores = 1 / (1 + np.exp(-scores))
    results = [
        {"index": int(at), "relevance_score": float(scores[at])}
        | ({"document": {"text": documents[at]}} if body.return_documents else {})
        for at in (-scores).argsort(kind="stable")[: body.top_n]
    ]
    return _json({"id": str(uuid.uuid4()), "model": body.model, "results": results, "usage": _usage(tokens)})


# --- texts --------------------------------------------------------------------------------------------------------


class _Gone(Exception):
    """The client went away."""


class _Over(Exception):
    """Every text has ended, of which the model may not know: a stop text ends one, too."""


class _Piece(NamedTuple):
    """What is new of a text. `reason` is why it has ended, and `tokens` how many it then has."""

    row: int
    text: str
    reason: str | None
    tokens: int


class _Text:
    """A text that grows, and ends behind a token or before a stop text."""

    def __init__(self, stream: Stream, ends: Sequence[int], stops: Sequence[str], most: int) -> None:
        self._stream, self._ends, self._stops, self._most = stream, ends, stops, most
        self._held = ""  # which may be the beginning of a stop text
        self.tokens, self.reason = 0, ""

    def more(self, token: int) -> str:
        """What can be told of the text, with one more token."""
        self.tokens += 1
        ended = token in self._ends
        whole = ended or self.tokens == self._most
        text = self._held + self._stream.more(token, whole=whole)
        if found := [at for at in map(text.find, self._stops) if at >= 0]:
            self.reason = "stop"
            return text[: min(found)]
        if whole:
            self.reason = "stop" if ended else "length"
            return text
        begun = (size for stop in self._stops for size in range(1, len(stop)) if text.endswith(stop[:size]))
        told = len(text) - max(begun, default=0)
        self._held = text[told:]
        return text[:told]


@dataclass(frozen=True)
class _Job:
    """What a decoder is asked for: prompts as ids, the most new tokens of each, stop texts, how tokens are chosen.

    Attributes:
        field, alone: What the request calls the prompts, and whether it is one.
    """

    field: str
    alone: bool
    prompts: Sequence[Sequence[int]]
    most: int
    stops: Sequence[str]
    how: Mapping[str, Any]

    def usage(self, tokens: Sequence[int]) -> dict[str, int]:
        """The tokens of the prompts and of the texts, as an answer counts them."""
        return _usage(sum(map(len, self.prompts)), sum(tokens))


class _Writer:
    """Continues prompts with a decoder, in threads of its own, whose number limits the memory of its caches."""

    def __init__(self, model: Served) -> None:
        """Opens the tokenizer and the chat template, if the bundle has them."""
        decoder, manifest = model.model.io.decoder, model.model.manifest
        assert decoder is not None
        self._served, self._roles, self._ends = model, Roles(model.model.io, decoder), decoder.stop
        self._threads = ThreadPoolExecutor(model.options.generations, f"{model.name} generates")
        self._words: Words | None = None
        self._problem = ""
        if manifest.tokenizer:
            try:
                self._words = Words(model.folder / manifest.tokenizer.file)
            except BundleError as err:
                self._problem = str(err)
        self._template = Template((model.folder / CHAT).read_bytes()) if CHAT in manifest.files else None

    def job(self, body: _Completion | _Chat) -> _Job:
        """What a request asks for. Raises FeedError, or Failed where the bundle's tokenizer cannot be read here."""
        if self._words is None:
            kind, problem = (Failed, self._problem) if self._problem else (FeedError, "the bundle has no tokenizer.")
            raise kind(f"{body.model} cannot read and write text: {problem}")
        options, words = self._served.options, self._words
        stops = [body.stop] if isinstance(body.stop, str) else [] if body.stop is None else body.stop
        fits = isinstance(stops, list) and all(type(stop) is str and 0 < len(stop) <= _STOP_LETTERS for stop in stops)
        require(
            fits and len(stops) <= _STOPS, "stop", body.stop, f"up to {_STOPS} texts of 1 to {_STOP_LETTERS} letters"
        )
        if isinstance(body, _Chat):
            if self._template is None:
                raise FeedError(f"{body.model} has no chat template; ask /v1/completions.")
            messages = [_message(at, each) for at, each in enumerate(body.messages)]
            self._require_letters(text for message in messages for text in message.values())
            prompt = self._template.rendered(messages, LETTERS * options.max_request_tokens)
            prompts = [words.ids(prompt, special=False)]
            # The last token is in no cache.
            room = self._roles.longest_past - self._roles.start - len(prompts[0]) + 2
            most, limit = body.max_completion_tokens, "max_completion_tokens"
            if most is None:
                most, limit = body.max_tokens, "max_tokens"
            if most is None:
                most = max(1, min(room, options.max_new_tokens))
            field, alone = "messages", True
        else:
            given = _several("prompt", body.prompt)
            field, alone, limit = "prompt", given is not body.prompt, "max_tokens"
            within(len(given), options.max_request_tokens, "prompts", "Send them in several requests.")
            self._require_letters(each for each in given if isinstance(each, str))
            prompts = [words.ids(each) if isinstance(each, str) else each for each in given]
            most = _NEW_TOKENS if body.max_tokens is None else body.max_tokens
        within(sum(map(len, prompts)), options.max_request_tokens, "tokens", "Send fewer or shorter prompts.")
        each = options.max_new_tokens // len(prompts)
        within(len(prompts), options.max_new_tokens, "prompts", "Send them in several requests.")
        return _Job(field, alone, prompts, integer(limit, most, 1, each), stops, body.how())

    def _require_letters(self, texts: Iterator[str]) -> None:
        most = LETTERS * self._served.options.max_request_tokens
        within(sum(map(len, texts)), most, "letters of text", "Send fewer at a time.")

    async def pieces(self, job: _Job) -> AsyncIterator[_Piece]:
        """What is new of the texts. Raises FeedError, or Failed. The generation ends with the iterator."""
        loop, gone = asyncio.get_running_loop(), threading.Event()
        told: asyncio.Queue[_Piece | Exception | None] = asyncio.Queue()  # as long as `max_new_tokens` at most

        def tell(piece: _Piece | Exception | None) -> None:
            if gone.is_set():
                raise _Gone
            loop.call_soon_threadsafe(told.put_nowait, piece)

        def work() -> None:
            with suppress(_Gone, RuntimeError):  # the loop is closed
                try:
                    self._generate(job, tell)
                except Exception as err:  # whatever it is, it is raised where the pieces are read
                    tell(err)
                tell(None)

        working = self._threads.submit(work)
        try:
            while (piece := await told.get()) is not None:
                if isinstance(piece, AttnportError) and not isinstance(piece, FeedError):
                    raise Failed(str(piece)) from piece
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            gone.set()
            working.cancel()  # which has not begun, if all places were taken

    def _generate(self, job: _Job, tell: Callable[[_Piece], None]) -> None:
        assert self._words is not None
        for begin, prompts in self._groups(job):
            texts = [_Text(Stream(self._words, self._ends), self._ends, job.stops, job.most) for _ in prompts]

            def more(row: int, token: int, texts: Sequence[_Text] = texts, begin: int = begin) -> None:
                text = texts[row]
                if not text.reason:
                    new = text.more(token)
                    tell(_Piece(begin + row, new, text.reason or None, text.tokens))
                    if all(each.reason for each in texts):
                        raise _Over

            with suppress(_Over), as_sent(job.field, alone=job.alone):
                self._served.model.generate(prompts, as_text=False, on_token=more, max_tokens=job.most, **job.how)

    def _groups(self, job: _Job) -> Iterator[tuple[int, Sequence[Sequence[int]]]]:
        """The prompts that run together, which limits their memory: as many places as of other requests."""
        most, begin = self._served.options.max_batch_tokens or batches.TOKENS, 0
        while begin < len(job.prompts):
            end, longest, alike = begin + 1, len(job.prompts[begin]), True
            while alike and end < len(job.prompts):
                size = len(job.prompts[end])
                fits = (end + 1 - begin) * (max(longest, size) + job.most) <= most
                alike = fits and (size == longest or (self._roles.mask_covers_new and not self._roles.context))
                longest, end = (max(longest, size), end + 1) if alike else (longest, end)
            yield begin, job.prompts[begin:end]
            begin = end


def _message(at: int, given: Any) -> dict[str, str]:
    """A message as chat templates take it."""
    found = {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else {}
    content = found.get("content")
    if isinstance(content, list):
        texts: list[Any] = [
            part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"
        ]
        fits = len(texts) == len(content) > 0 and set(map(type, texts)) == {str}
        found["content"] = "\n".join(texts) if fits else None
    named = {"role", "content"} <= found.keys() <= {"role", "content", "name"}
    fits = named and set(map(type, found.values())) == {str}
    require(fits, f"messages[{at}]", given, "a role and a content, of text")
    return found


class Template:
    """The chat template of a bundle, rendered as transformers does: by jinja2, in its sandbox."""

    def __init__(self, data: bytes) -> None:
        """Reads what a bundle has in `CHAT`. Raises BundleError."""
        found = parse(data, CHAT)
        try:
            self._text, self._tokens = str(found["template"]), dict(found["tokens"])
        except (LookupError, TypeError, ValueError) as err:
            raise BundleError(f"{CHAT} is no chat template: {err!r}.") from err

    def rendered(self, messages: Sequence[Mapping[str, str]], most: int) -> str:
        """The prompt of messages, of so many letters at most.

        Raises:
            FeedError: the template does not take these messages, makes more of them, or takes too long.
            NotImplementedError: jinja2 is not installed; the server answers it with 501.
        """
        try:
            from jinja2.exceptions import TemplateError
        except ImportError as err:
            raise NotImplementedError("chat needs the package jinja2: pip install jinja2.") from err
        parts, letters = [], 0
        try:
            given = {**self._tokens, "messages": messages, "tools": None, "documents": None}
            given[_END] = time.monotonic() + _TEMPLATE_S
            for part in _compiled(self._text).generate(given, add_generation_prompt=True):
                parts.append(part)
                letters += len(part)
                within(letters, most, "letters, which the chat template makes", "Send fewer messages.")
        except FeedError:
            raise
        except (TemplateError, ArithmeticError, LookupError, MemoryError, TypeError, ValueError, RecursionError) as err:
            raise FeedError(f"messages: the chat template does not take them: {str(err)[:200]}") from err
        return "".join(parts)


_END = "end of rendering"
"""A variable of a template that no template can name."""


def _limit(*values: Any, formats: bool = False) -> None:
    """Refuses numbers over `_MOST_MADE`; with `formats` also texts that are wide formats, such as `"%99999d"`."""
    from jinja2.exceptions import SecurityError

    for value in values:
        large = isinstance(value, int) and abs(value) > _MOST_MADE
        if large or (formats and isinstance(value, str) and _WIDE.search(value)):
            raise SecurityError(f"it computes {value!s:.40}")


def _limiting(made: Callable[..., Any], *, formats: bool) -> Callable[..., Any]:
    """A filter whose arguments are limited: jinja2 runs filters without `call`."""

    def checked(*args: Any, **values: Any) -> Any:
        _limit(*args, *values.values(), formats=formats)
        return made(*args, **values)

    return checked


def _product(operator: str, left: Any, right: Any) -> int:
    """The size of a product: the number, or the length of the text or list. Every power counts as too large."""
    if operator == "**":
        return _MOST_MADE + 1
    one, other = (len(value) if hasattr(value, "__len__") else abs(value) for value in (left, right))
    return int(one * other)


def _sandbox() -> Any:
    """jinja2's sandbox, which looks at the time in every call, and in every round of a loop by a call of `step`.

    The operands of `*`, `**` and `%` are limited: one operation could take hours, or all memory. jinja2 does not fold
    such an operation into a constant either.
    """
    from jinja2 import nodes, sandbox
    from jinja2.exceptions import SecurityError

    class Timed(sandbox.ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(("**", "*", "%"))

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            for name in ("center", "format", "indent"):
                self.filters[name] = _limiting(self.filters[name], formats=name == "format")

        def wrap_str_format(self, value: Any) -> Any:
            if (found := super().wrap_str_format(value)) is not None:
                _limit(value.__self__, formats=True)
            return found

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _limit(left if operator == "%" else _product(operator, left, right), formats=True)
            return super().call_binop(context, operator, left, right)

        def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
            made = super()._parse(source, name, filename)
            for loop in made.find_all(nodes.For):
                step = nodes.Call(nodes.EnvironmentAttribute("step"), [], [], None, None)
                loop.body.insert(0, nodes.ExprStmt(step).set_lineno(loop.lineno))
            return made

        def step(self) -> None:
            """Does nothing."""

        def call(self, context: Any, what: Any, /, *args: Any, **values: Any) -> Any:
            if time.monotonic() > context.parent[_END]:
                raise SecurityError(f"it takes more than {_TEMPLATE_S:.0f} s")
            _limit(
                getattr(what, "__self__", None) if getattr(what, "__name__", "") in ("format", "format_map") else None
            )
            _limit(*args, *values.values())  # of numbers alone: a text may be anybody's
            return super().call(context, what, *args, **values)

    return Timed


@cache
def _compiled(text: str) -> Any:
    """A template, with what transformers has in its sandbox: it may come from anybody."""
    from jinja2 import ext, utils
    from jinja2.exceptions import SecurityError, TemplateError

    class Generation(ext.Extension):
        """`{% generation %}`, by which trainers find what an assistant said."""

        tags = {"generation"}  # noqa: RUF012 - as its base has it

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Namespace(utils.Namespace):
        """Without names that lead out of the sandbox."""

        def __init__(self, *args: Any, **values: Any) -> None:
            super().__init__()
            for name, value in dict(*args, **values).items():
                self[name] = value

        def __setitem__(self, name: str, value: Any) -> None:
            if str(name).startswith("_"):
                raise SecurityError(f"got the name {name!r}")
            super().__setitem__(name, value)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    made = _sandbox()(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols])
    made.filters["tojson"] = tojson
    made.globals |= {
        "raise_exception": refuse,
        "strftime_now": lambda form: datetime.datetime.now().strftime(form),
        "dict": lambda *args, **values: dict(*args, **values),
        "namespace": Namespace,
    }
    return made.from_string(text)


# --- routes -------------------------------------------------------------------------------------------------------


class _Form:
    """How an answer of `/v1/completions` or `/v1/chat/completions` is written."""

    def __init__(self, body: _Completion | _Chat) -> None:
        self.chat = isinstance(body, _Chat)
        kind = "chat.completion" if self.chat else "text_completion"
        kind += ".chunk" if self.chat and body.stream else ""
        self._head = {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{uuid.uuid4().hex}", "object": kind,
            "created": int(time.time()), "model": body.model,
        }  # fmt: skip
        self._stream = body.stream

    def answer(self, choices: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {**self._head, "choices": choices, **more}

    def choice(self, index: int, text: str, reason: str | None, *, role: bool = True) -> dict[str, Any]:
        said: dict[str, Any] = {"text": text}
        if self.chat:
            message = {**({"role": "assistant"} if role else {}), "content": text}
            said = {"delta" if self._stream else "message": message}
        return {"index": index, **said, "logprobs": None, "finish_reason": reason}


async def _whole(model: Served, writer: _Writer, body: _Completion | _Chat) -> Response:
    """The answer with all texts."""
    with model.room():
        job, form = await asyncio.to_thread(writer.job, body), _Form(body)
        texts, ends = [""] * len(job.prompts), [_Piece(0, "", None, 0)] * len(job.prompts)
        async for piece in writer.pieces(job):
            texts[piece.row] += piece.text
            ends[piece.row] = piece
    choices = [form.choice(at, text, end.reason) for at, (text, end) in enumerate(zip(texts, ends, strict=True))]
    return _json(form.answer(choices, usage=job.usage([end.tokens for end in ends])))


async def _events(model: Served, writer: _Writer, body: _Completion | _Chat) -> AsyncIterator[bytes]:
    """The events of a stream. What goes wrong before the first of them is raised."""
    begun: set[int] = set()
    try:
        with model.room():
            job, form = await asyncio.to_thread(writer.job, body), _Form(body)
            tokens = [0] * len(job.prompts)
            async for at, text, reason, count in writer.pieces(job):
                tokens[at] = count
                if text or reason:
                    choice = form.choice(at, text, reason, role=at not in begun)
                    begun.add(at)
                    yield _event(form.answer([choice]))
    except tuple(STATUSES) as err:
        if not begun:
            raise
        yield _event(openai_error(err, status_of(err)))
        return
    if body.stream_options.include_usage:
        yield _event(form.answer([], usage=job.usage(tokens)))
    yield b"data: [DONE]\n\n"


def _event(value: Any) -> bytes:
    return b"data: %s\n\n" % orjson.dumps(value)


async def _while_there(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of work, which ends when the client goes away."""

    async def away() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(away())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()


class _Routes:
    """What answers requests."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane, self._began = plane, int(time.time())
        self._models: Mapping[str, Served] = plane.model_registry.get_models()
        self._writers = {name: _Writer(model) for name, model in self._models.items() if model.model.io.decoder}

    async def models(self) -> Response:
        return _json({"object": "list", "data": [*map(self._told, self._models)]})

    async def one_model(self, name: str) -> Response:
        return _json(self._told(self._model(name).name))

    async def embeddings(self, request: Request) -> Response:
        body = await asyncio.to_thread(_read, _Embeddings, await request.body())
        return await self._run(body, _vectors_asked, _vectors)

    async def rerank(self, request: Request) -> Response:
        body = await asyncio.to_thread(_read, _Rerank, await request.body())
        return await self._run(body, _scores_asked, _scores)

    async def completions(self, request: Request) -> Response:
        return await self._generated(request, _Completion)

    async def chat(self, request: Request) -> Response:
        return await self._generated(request, _Chat)

    def _model(self, name: str) -> Served:
        found: Served = self._plane.get_model_from_registry(name)
        return found

    def _told(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._began, "owned_by": "attnport"}

    async def _run(
        self, body: Kind, read: Callable[..., tuple[Asked, int]], write: Callable[..., Response]
    ) -> Response:
        """Runs a request that `read` makes, and whose answer `write` makes of the outputs and the number of tokens."""
        model = self._model(body.model)
        with model.room():
            asked, tokens = await asyncio.to_thread(read, model, body)
            answer, _ = await self._plane.infer(model_name=model.name, request=asked)
            return await asyncio.to_thread(write, body, answer, tokens)

    async def _generated(self, request: Request, kind: type[_Completion] | type[_Chat]) -> Response:
        body = await asyncio.to_thread(_read, kind, await request.body())
        model, writer = self._model(body.model), self._writers.get(body.model)
        if writer is None:
            raise FeedError(f"{body.model} does not generate. Decoders of hf: do, exported --with-past.")
        if not body.stream:
            return await _while_there(request, _whole(model, writer, body))
        events = _events(model, writer, body)

        async def first() -> bytes:
            return await anext(events)

        begin = await _while_there(request, first())  # behind which an error has no status of its own

        async def all_of_them() -> AsyncIterator[bytes]:
            yield begin
            async for event in events:
                yield event

        return StreamingResponse(all_of_them(), media_type="text/event-stream")


def add_routes(app: FastAPI, plane: DataPlane) -> None:
    """Adds the routes of OpenAI's protocol, for every model."""
    routes = _Routes(plane)
    posted = {"embeddings": routes.embeddings, "rerank": routes.rerank, "completions": routes.completions}
    for path, route in {**posted, "chat/completions": routes.chat}.items():
        app.add_api_route(f"{ROUTES}{path}", route, methods=["POST"], response_model=None)
    app.add_api_route(f"{ROUTES}models", routes.models, methods=["GET"], response_model=None)
    app.add_api_route(f"{ROUTES}models/{{name}}", routes.one_model, methods=["GET"], response_model=None)
