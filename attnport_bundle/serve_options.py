"""How bundles are served: the engines, and the options of both command lines."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from .errors import BundleError

ENGINES = {"kserve": "kserve", "ray": "ray-serve"}
"""The engines, each with the extra of attnport-bundle that installs it."""


@dataclass(frozen=True)
class Options:
    """How bundles are served. Each attribute is an option of the command line, with its help in the metadata."""

    port: int = field(default=8080, metadata={"help": "HTTP port."})
    grpc_port: int = field(default=8081, metadata={"help": "gRPC port; 0 = no gRPC."})
    threads: int = field(
        default=0, metadata={"help": "Compute threads; 0 = the runtime's choice, and 1 a replica on Ray."}
    )
    max_batch_tokens: int = field(
        default=1024, metadata={"help": "Requests are joined up to so many tokens; 0 = one at a time."}
    )
    wait_ms: int = field(default=2, metadata={"help": "How long a request waits for others to join it."})
    max_waiting: int = field(default=256, metadata={"help": "Requests at a time; further ones are answered with 503."})
    max_request_tokens: int = field(
        default=65536, metadata={"help": "The most tokens of a request; items, for a model without."}
    )
    max_request_bytes: int = field(default=8 << 20, metadata={"help": "The most bytes of a request; 413 beyond."})
    grace_s: int = field(
        default=30, metadata={"help": "Seconds for the requests that were accepted, once the server is told to stop."}
    )
    replicas: int = field(default=1, metadata={"help": "Ray: processes; each has every model."})
    address: str = field(
        default="", metadata={"help": "Ray: a cluster's address; default: RAY_ADDRESS, or a new cluster here."}
    )
    metrics_port: int = field(default=0, metadata={"help": "Ray: port of a new cluster's metrics; 0 = any."})

    def __post_init__(self) -> None:
        """Raises BundleError for a number below zero, or one that has to be above it."""
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            least = 0 if each.name in _MAY_BE_ZERO else 1
            if isinstance(value, int) and value < least:
                raise BundleError(f"{each.name}: got {value}; expected {least} or more.")


_MAY_BE_ZERO = ("grpc_port", "threads", "max_batch_tokens", "wait_ms", "metrics_port")
