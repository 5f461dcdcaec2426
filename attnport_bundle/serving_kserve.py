"""Serves bundles with KServe's own model server: one process, HTTP and gRPC, metrics at `/metrics`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from batched import aio

from . import kserve_package as kserve
from .serve_options import Options
from .served import Loaded, Served, answer_errors

_ITEMS = 64
"""The most requests in a call; tokens are what limits it."""


def run(models: Mapping[str, Path], options: Options, key: Path | None, tell: Callable[[str], None]) -> None:
    """Serves until SIGTERM or Ctrl-C, and answers what was accepted. See `serving.serve`."""
    # It looks for requests at this interval, also when there are none.
    wait_ms = max(options.wait_ms, 1)
    join = aio.dynamically(batch_size=_ITEMS, max_batch_length=options.max_batch_tokens, timeout_ms=wait_ms)
    served = [Served(name, folder, options, key, join, counts=True) for name, folder in models.items()]
    answer_errors(kserve.model_server.app, options.max_request_bytes)
    kserve.model_server.args.grpc_max_receive_message_length = options.max_request_bytes
    server = kserve.ModelServer(
        http_port=options.port,
        grpc_port=options.grpc_port,
        enable_grpc=options.grpc_port > 0,
        enable_latency_logging=False,
        grace_period=options.grace_s,
    )
    server.model_repository_extension = Loaded(server.registered_models)
    for name in ("kserve", "kserve.trace", "uvicorn", "uvicorn.access"):
        logging.getLogger(name).setLevel(logging.WARNING)
    grpc = f", gRPC on port {options.grpc_port}" if options.grpc_port else ""
    tell(f"{', '.join(models)}: the self-test passed; KServe serves http://0.0.0.0:{options.port}/v2{grpc}")
    server.start(served)
