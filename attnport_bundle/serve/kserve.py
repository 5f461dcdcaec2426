"""Serves bundles with KServe's endpoints in one process: HTTP, gRPC, and metrics at `/metrics`."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import grpc
import uvicorn
from batched import aio
from fastapi import FastAPI

from ..errors import BundleError
from . import Options, address, bundles, tell_open, url
from .bundles import Loaded, Served, Service, Unread, add_endpoints
from .openai import add_routes

_ITEMS = 64
"""The most requests in a call; tokens are what limits it."""
_KEEP_ALIVE_S = 65
"""How long a connection is kept for its next request: longer than the proxies of clusters keep it."""
_CONNECTION_S = 600
"""How long one of gRPC is kept before its client has to make another: there, half a request is not seen."""


def run(models: Mapping[str, Path], options: Options, key: Path | None, tell: Callable[[str], None]) -> None:
    """Serves until SIGTERM or Ctrl-C, and answers what was accepted. See `serve.serve`."""
    tell_open(options.host, tell)
    # It looks for requests at this interval, also when there are none.
    wait_ms = max(options.wait_ms, 1)
    join = aio.dynamically(batch_size=_ITEMS, max_batch_length=options.max_batch_tokens, timeout_ms=wait_ms)
    repository = bundles.ModelRepository()
    for name, folder in models.items():
        repository.update(Served(name, folder, options, key, join))
    app, plane = FastAPI(openapi_url=None), bundles.DataPlane(repository)
    app.add_api_route("/metrics", bundles.metrics_handler, methods=["GET"])
    add_endpoints(app, plane, options)
    add_routes(app, plane)
    logging.getLogger("kserve").setLevel(logging.WARNING)
    listening = f"gRPC on {address(options.host, options.grpc_port)}" if options.grpc_port else "no gRPC"
    said = f"{', '.join(models)}: the self-test passed; KServe serves {url(options)}, {listening}"
    asyncio.run(_serve(app, Service(plane, Loaded(repository)), options, lambda: tell(said)))


async def _serve(app: FastAPI, service: Service, options: Options, ready: Callable[[], None]) -> None:
    with _listening(options) as listening:
        server = _Http(app, service, options)
        await server.open_grpc()
        ready()
        await server.serve([listening])


def _listening(options: Options) -> socket.socket:
    """A socket that listens. Raises BundleError if nothing can."""
    try:
        family, *_, where = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(where[:2], family=family, backlog=2048)
    except OSError as err:
        raise _taken(options, "port", err) from err


def _taken(options: Options, name: str, err: Exception) -> BundleError:
    where = address(options.host, getattr(options, name))
    return BundleError(f"{where}: nothing can listen there: {err}. --{name.replace('_', '-')} chooses another port.")


class _Http(uvicorn.Server):  # type: ignore[misc]  # the package is not here where types are checked
    """uvicorn's server, with gRPC beside it, which closes the connections of clients that are too slow."""

    def __init__(self, app: FastAPI, service: Service, options: Options) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                ws="none",
                log_config=None,
                log_level=logging.WARNING,
                access_log=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=options.grace_s,
            )
        )
        self._options, self._service = options, service
        self._grpc: Any = None
        self._since: WeakKeyDictionary[Any, tuple[Any, float]] = WeakKeyDictionary()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ends the server at SIGTERM and Ctrl-C; uvicorn's own would raise them once more at the end."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.handle_exit)
        yield

    async def open_grpc(self) -> None:
        """Opens the port of gRPC, if there is one. Raises BundleError if it is taken."""
        if not self._options.grpc_port:
            return
        self._grpc = grpc.aio.server(
            interceptors=[Unread(), bundles.ExceptionToStatusInterceptor()],
            options=[
                ("grpc.max_receive_message_length", self._options.max_request_bytes),
                ("grpc.max_send_message_length", self._options.max_response_bytes + (1 << 20)),
                ("grpc.server_handshake_timeout_ms", self._options.client_s * 1000),
                ("grpc.max_connection_age_ms", _CONNECTION_S * 1000),
                ("grpc.max_connection_age_grace_ms", self._options.client_s * 1000),
                ("grpc.so_reuseport", 0),  # else two servers would share a port
            ],
        )
        bundles.add_GRPCInferenceServiceServicer_to_server(self._service, self._grpc)
        try:
            self._grpc.add_insecure_port(address(self._options.host, self._options.grpc_port))
        except RuntimeError as err:
            raise _taken(self._options, "grpc_port", err) from err
        await self._grpc.start()

    async def shutdown(self, sockets: Any = None) -> None:
        """Answers what was accepted, over both protocols."""
        ending = [super().shutdown(sockets)]
        if self._grpc:
            ending.append(self._grpc.stop(self._options.grace_s))
        await asyncio.gather(*ending)

    async def on_tick(self, counter: int) -> bool:
        """Closes the connections that have waited too long for their client. Is called every 0.1 s."""
        now = time.monotonic()
        for connection in list(self.server_state.connections) if counter % 10 == 0 else ():
            waits_for = _waits_for(connection)
            known, since = self._since.get(connection, (None, now))
            if waits_for is None or waits_for != known:
                self._since[connection] = waits_for, now
            elif now - since > self._options.client_s:
                connection.transport.abort()
        ended: bool = await super().on_tick(counter)
        return ended


def _waits_for(connection: Any) -> tuple[str, int] | None:
    """The part of which request or answer a client has not sent or taken; None while it waits for us, or is idle."""
    cycle = connection.cycle
    if connection.transport.get_write_buffer_size():
        return "answer", id(cycle)
    if cycle is None or cycle.response_complete:
        return None if connection.timeout_keep_alive_task else ("head", id(cycle))
    return ("body", id(cycle)) if cycle.more_body else None
