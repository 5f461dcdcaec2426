"""A load for a served embedder: users who each ask for a text's vector, and compare it with the one that is right.

    ATTNPORT_EXPECTED=texts.npz locust -f benchmarks/loads/load.py --headless --users 32 --run-time 20s --host URL

`texts.npz` has `texts` and `vectors`, a row for each, and `model`, the name that is asked for. Requests that the server
refuses for want of room, with 429 or 503, are counted apart, as `refused`.
"""

from __future__ import annotations

import os
import random
import sys
from typing import Any

import numpy as np
from locust import FastHttpUser, task

LEAST_COSINE = 0.9999
"""Of a vector with the right one: texts beside it change its rounding, and no more."""
_given = np.load(os.environ["ATTNPORT_EXPECTED"])
TEXTS, VECTORS = [str(text) for text in _given["texts"]], _given["vectors"]
PATH = f"/v2/models/{_given['model']}/infer"
OUTPUT = str(_given["output"])


class Reader(FastHttpUser):  # type: ignore[misc]
    """Asks again as soon as it has an answer."""

    @task
    def embed(self) -> None:
        """Asks for one text's vector."""
        at = random.randrange(len(TEXTS))
        body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXTS[at]]}]}
        with self.client.post(PATH, json=body, name="embed", catch_response=True) as response:
            if response.status_code in (429, 503):
                response.request_meta["name"] = "refused"
                response.success()
            elif response.status_code != 200:
                _fail(response, f"{response.status_code}: {response.text or response.error}")
            elif problem := _differs(response.json(), VECTORS[at]):
                _fail(response, f"another's answer: {problem}")
            else:
                response.success()


def _fail(response: Any, problem: str) -> None:
    print(problem, file=sys.stderr)
    response.failure(problem)


def _differs(answer: dict[str, Any], expected: np.ndarray[Any, Any]) -> str:
    (output,) = (each for each in answer["outputs"] if each["name"] == OUTPUT)
    vector = np.asarray(output["data"], np.float32)
    if output["shape"] != [1, len(expected)]:
        return f"shape {output['shape']}"
    cosine = float(vector @ expected / np.linalg.norm(vector) / np.linalg.norm(expected))
    return "" if cosine >= LEAST_COSINE else f"cosine {cosine:.4f}"
