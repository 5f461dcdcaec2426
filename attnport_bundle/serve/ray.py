"""Serves bundles on Ray Serve: replicas of KServe's endpoints, whose requests `serve.batch` joins by their tokens."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
from fastapi import FastAPI
from grpc import StatusCode
from ray import serve

from ..errors import BundleError
from ..model import load_tested
from . import Options, bundles, is_local, tell_open, url
from .bundles import STATUSES, DataPlane, ModelRepository, Served, Service, add_endpoints, tell_code
from .openai import add_routes

APP, NEW = "attnport", "local"
"""The application's name, and Ray's word for a cluster of this process's own."""
_SERVICE = f"{bundles.__name__}.add_GRPCInferenceServiceServicer_to_server"
_NO_METADATA = SimpleNamespace(invocation_metadata=lambda: ())
"""In place of a call's context: KServe reads headers from it, which nothing here uses, in another form than Ray's."""


@serve.deployment
@serve.ingress()
class Bundles:
    """Every model in one process: KServe's endpoints for HTTP, and a method for each gRPC call of its service."""

    def __init__(self, models: Mapping[str, str], options: Options, key: str | None) -> None:
        """Opens the bundles after their self-tests. A replica is given no request before."""
        most = options.max_batch_tokens

        def join(together: Any) -> Any:
            batched = serve.batch(
                max_batch_size=most,
                batch_wait_timeout_s=options.wait_ms / 1000,
                batch_size_fn=lambda requests: min(sum(map(len, requests)), most + (len(requests) > 1)),
            )
            return batched(together)

        repository = ModelRepository()
        for name, folder in models.items():
            repository.update(Served(name, Path(folder), options, Path(key) if key else None, join))
        self._plane, self._options = DataPlane(repository), options
        self._service = Service(self._plane, None)

    def __serve_build_asgi_app__(self) -> FastAPI:
        app = FastAPI(openapi_url=None)
        add_endpoints(app, self._plane, self._options)
        add_routes(app, self._plane)
        return app

    async def ServerLive(self, request: Any, grpc_context: Any) -> Any:  # noqa: D102, N802 - the protocol's name
        return await _answered(self._service.ServerLive, request, grpc_context)

    async def ServerReady(self, request: Any, grpc_context: Any) -> Any:  # noqa: D102, N802 - the protocol's name
        return await _answered(self._service.ServerReady, request, grpc_context)

    async def ServerMetadata(self, request: Any, grpc_context: Any) -> Any:  # noqa: D102, N802 - the protocol's name
        return await _answered(self._service.ServerMetadata, request, grpc_context)

    async def ModelReady(self, request: Any, grpc_context: Any) -> Any:  # noqa: D102, N802 - the protocol's name
        return await _answered(self._service.ModelReady, request, grpc_context)

    async def ModelMetadata(self, request: Any, grpc_context: Any) -> Any:  # noqa: D102, N802 - the protocol's name
        return await _answered(self._service.ModelMetadata, request, grpc_context)

    async def ModelInfer(self, request: Any, grpc_context: Any) -> Any:  # noqa: D102, N802 - the protocol's name
        if request.ByteSize() > self._options.max_request_bytes:
            most = self._options.max_request_bytes
            problem = f"got a request of {request.ByteSize()} bytes; expected at most {most}."
            grpc_context.set_code(StatusCode.RESOURCE_EXHAUSTED)
            grpc_context.set_details(problem)
            raise ValueError(problem)
        return await _answered(self._service.infer, request, grpc_context)


async def _answered(call: Callable[[Any, Any], Awaitable[Any]], request: Any, grpc_context: Any) -> Any:
    """Calls a method of KServe's service; an error has its status."""
    try:
        return await call(request, _NO_METADATA)
    except tuple(STATUSES) as err:
        tell_code(err, grpc_context)
        raise


def app(arguments: Mapping[str, Any]) -> serve.Application:
    """The application, for `serve run attnport_bundle.serve.ray:app` and Serve's configuration files.

    Args:
        arguments: `models`, folders by name; `key`; and every attribute of `Options`.
    """
    given = dict(arguments)
    models = {str(name): str(Path(folder).absolute()) for name, folder in given.pop("models").items()}
    key = given.pop("key", None)
    options = Options(**given)
    options = dataclasses.replace(options, threads=options.threads or 1)
    deployment: Any = Bundles  # as the decorators leave it
    return deployment.options(
        num_replicas=options.replicas,
        ray_actor_options={"num_cpus": options.threads},
        max_ongoing_requests=options.max_waiting,
        max_queued_requests=options.max_waiting,
        graceful_shutdown_timeout_s=options.grace_s,
    ).bind(models, options, key)


def run(models: Mapping[str, Path], options: Options, key: Path | None, tell: Callable[[str], None]) -> None:
    """Serves until SIGTERM or Ctrl-C, and answers what was accepted. See `serve.serve`."""
    address = options.address or os.environ.get("RAY_ADDRESS") or NEW
    if address == NEW:  # each replica tests the bundles too, but Ray tells of a failure in tracebacks of several trials
        for folder in models.values():
            load_tested(folder, options.threads or None, key).close()
    mine = options.metrics_port and address == NEW
    metrics = {"_metrics_export_port": options.metrics_port} if mine else {}
    ray.init(address=address, log_to_driver=False, **metrics)
    try:
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):  # Ray has handlers of its own
            signal.signal(number, lambda *_: stop.set())
        tell_open(options.host, tell)
        grpc = {"port": options.grpc_port, "grpc_servicer_functions": [_SERVICE]}
        # Ray has no host for gRPC: it would be on every address.
        with_grpc = options.grpc_port > 0 and not is_local(options.host)
        if options.grpc_port and not with_grpc:
            tell("no gRPC: Ray would open it on every address of the machine; --host 0.0.0.0 opens both")
        try:
            serve.start(
                proxy_location="EveryNode",
                http_options={"host": options.host, "port": options.port},
                grpc_options=grpc if with_grpc else None,
            )
            serve.run(app({"models": models, "key": key, **dataclasses.asdict(options)}), name=APP)
        except (ray.exceptions.RayError, RuntimeError) as err:
            raise BundleError(f"Ray Serve did not start: {err}") from err
        tell(f"{', '.join(models)}: the self-test passed; Ray serves {url(options)}")
        stop.wait()
        serve.delete(APP)  # which answers what was accepted, where a shutdown at once does not
        if address == NEW:
            serve.shutdown()
    finally:
        ray.shutdown()
