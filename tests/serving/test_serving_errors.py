"""The status of each error, and what one request's error is to the requests beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from kserve.errors import InvalidInput, ModelNotFound
from starlette.exceptions import HTTPException

from attnport_bundle.errors import BundleError, FeedError
from attnport_bundle.serve import Options
from attnport_bundle.serve.bundles import Busy, Failed, Served, TooLarge, answer_errors
from attnport_bundle.serve.protocol import Asked


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidInput("no"), 400),
        (ValueError("no"), 400),
        (KeyError("inputs"), 400),
        (ModelNotFound("no"), 404),
        (HTTPException(418, "no"), 418),
        (Failed("no"), 500),
        (RuntimeError("no"), 500),
        (NotImplementedError("no"), 501),
        (Busy("no"), 503),
        (TooLarge("no"), 413),
    ],
    ids=repr,
)
def test_each_error_has_its_status_and_the_protocols_json(error: Exception, status: int) -> None:
    app = FastAPI()

    @app.get("/")
    def fail() -> None:
        raise error

    answer_errors(app, 10)
    answer = TestClient(app, raise_server_exceptions=False).get("/")
    assert answer.status_code == status
    assert answer.json().keys() == {"error"}


def together(answers: Any) -> Any:
    """Joins all requests of one turn of the loop, as the engines do those of some milliseconds."""
    waiting: list[Any] = []

    async def joined(request: Any) -> Any:
        waiting.append(request)
        at = len(waiting) - 1
        await asyncio.sleep(0.5)
        if at == 0:
            joined.found = await answers(list(waiting))  # type: ignore[attr-defined]
        while not hasattr(joined, "found"):
            await asyncio.sleep(0.01)
        return joined.found[at]

    return joined


def asked(*texts: str) -> Asked:
    return Asked({"text": np.array(texts, object)}, {}, binary=True)


def answers(served: Served, *requests: Asked) -> list[Any]:
    async def answer(request: Asked) -> Any:
        with served.room():
            return await served.predict(request)

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*map(answer, requests), return_exceptions=True)

    return asyncio.run(all_of_them())


def test_a_wrong_request_costs_none_of_those_beside_it(small: Path) -> None:
    served = Served("small", small, Options(), None, together)
    wrong = Asked({"text": np.ones(1, np.int64)}, {}, binary=True)
    first, refused, last = answers(served, asked("One text."), wrong, asked("Two.", "More, and longer."))
    assert isinstance(refused, FeedError)
    assert first["logits"].shape == (1, 5)
    assert last["logits"].shape == (2, 5)
    (alone,) = answers(Served("small", small, Options(), None, together), asked("One text."))
    np.testing.assert_allclose(first["logits"], alone["logits"], atol=1e-5)


def test_a_runtime_that_fails_is_no_fault_of_the_request(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served("small", small, Options(), None, together)

    def fail(*given: Any, **options: Any) -> None:
        raise BundleError("onnxruntime failed: no memory")

    monkeypatch.setattr(served.model, "map", fail)
    found = answers(served, asked("One text."), asked("Two."))
    assert [type(each) for each in found] == [Failed, Failed]
    assert "no memory" in str(found[0])


def test_what_there_is_no_room_for_is_refused_and_the_others_answered(small: Path) -> None:
    served = Served("small", small, Options(max_waiting=2), None, together)
    *accepted, refused = answers(served, asked("One text."), asked("Two."), asked("Three."))
    assert [each["logits"].shape for each in accepted] == [(1, 5), (1, 5)]
    assert isinstance(refused, Busy)
