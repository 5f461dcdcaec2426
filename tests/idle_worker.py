"""Answers `bench` as the process of a runtime does, and runs nothing: it starts without PyTorch or a runtime."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnport.errors import ArtifactError
from attnport.processes.worker import Worker, serve

CALL_S = {"torch_eager": 0.0004}
OTHERS_S = 0.0002


class Idle:
    """A session whose calls take a time of their own."""

    def __init__(self, runtime: str) -> None:
        self._call_s = CALL_S.get(runtime, OTHERS_S)

    def run(self, feeds: Mapping[str, Any]) -> None:
        time.sleep(self._call_s)


class IdleWorker(Worker):
    def do_open(self, message: Mapping[str, Any]) -> dict[str, Any]:
        began, model = self.clock(), message["model"]
        if model and not Path(message["folder"], model).is_file():
            raise ArtifactError(f"{model} is missing.")
        self._session: Any = Idle(message["runtime"])
        ran = {"device": "CPU", "provider": message["runtime"], "precision": message["plan"]}
        return {"ran": ran, "modules": [], "load_ns": self.clock() - began, "modes": []}


if __name__ == "__main__":
    serve(IdleWorker())
