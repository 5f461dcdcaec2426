"""The vectors of texts through a server's `/v1/embeddings`, beside `Model.embed` in a process.

Both have the same bundle of MiniLM and the same number of threads. The server is asked by 16 clients, each for some of
the sentences at a time, until all were answered; the process embeds all of them in one call. They take turns, so that
what else the machine does is for both, and each answer is compared with the right vectors. The clients are threads of
this process, which take some of the server's processors.

    python benchmarks/search.py APP [--rounds 7] [--sentences 512] [--threads 2] [--json FILE]

APP is a bundle of MiniLM for ONNX Runtime. It needs what `make serve-test` sets up.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from loads.server import serving

from attnport.folder.machine import machine
from attnport_bundle import load

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = 16
TEXTS = (1, 8, 32)
"""The texts of a request."""


def asked(port: int, bodies: Sequence[bytes]) -> list[bytes]:
    """The answers to requests, which 16 clients send, each over a connection of its own."""
    answers: list[bytes] = [b""] * len(bodies)

    def client(first: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for at in range(first, len(bodies), CLIENTS):
            connection.request("POST", "/v1/embeddings", bodies[at], {"content-type": "application/json"})
            answer = connection.getresponse()
            answers[at] = answer.read()
            assert answer.status == 200, answers[at]
        connection.close()

    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(client, range(CLIENTS)))
    return answers


def vectors(answers: Sequence[bytes]) -> np.ndarray[Any, Any]:
    """The vectors of answers, in their order."""
    found = [each["embedding"] for answer in answers for each in json.loads(answer)["data"]]
    return np.array([np.frombuffer(base64.b64decode(each), "<f4") for each in found])


def main(arguments: Sequence[str]) -> None:
    """Measures, prints and writes what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("app", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sentences", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    sentences = ((ROOT / "examples" / "sentences.txt").read_text("utf-8").splitlines() * 6)[: given.sentences]
    rows: list[dict[str, object]] = []
    threads = ("--threads", str(given.threads))
    with load(given.app, threads=given.threads) as model, serving("kserve", {"minilm": given.app}, *threads) as server:
        right = model.embed(sentences)
        for texts in TEXTS:
            parts = [sentences[at : at + texts] for at in range(0, len(sentences), texts)]
            bodies = [
                json.dumps({"model": "minilm", "input": part, "encoding_format": "base64"}).encode() for part in parts
            ]
            served, own = [], []
            for _ in range(given.rounds):
                begin = time.perf_counter()
                model.embed(sentences)
                own.append(len(sentences) / (time.perf_counter() - begin))
                begin = time.perf_counter()
                answers = asked(server.port, bodies)
                served.append(len(sentences) / (time.perf_counter() - begin))
                assert np.abs(vectors(answers) - right).max() < 2e-5
            ratios = sorted(one / other for one, other in zip(served, own, strict=True))
            rows.append(
                {
                    "texts_of_a_request": texts,
                    "server_texts_per_s": round(statistics.median(served), 1),
                    "process_texts_per_s": round(statistics.median(own), 1),
                    "ratio": round(statistics.median(ratios), 3),
                    "least_and_largest_ratio": [round(ratios[0], 3), round(ratios[-1], 3)],
                }
            )
            print(rows[-1], flush=True)
    if given.json:
        found: dict[str, object] = {"machine": machine().cpu, "threads": given.threads, "clients": CLIENTS}
        given.json.write_text(json.dumps({**found, "rows": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
