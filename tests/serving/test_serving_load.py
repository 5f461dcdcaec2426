"""Served bundles under load: no answer is another's, no error but a refusal, no memory lost, none dropped at a stop."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from loads.server import Server, environment, load, post, processes, running_load, serving

pytestmark = pytest.mark.timeout(300)
USERS, SECONDS = 24, 10.0
ENGINES = ["kserve", "ray"]


def resident(server: Server) -> int:
    return sum(process.memory_info().rss for process in processes(server))


@pytest.mark.parametrize("engine", ENGINES)
def test_each_of_many_users_gets_the_own_answer_and_memory_stays(engine: str, minilm: Path, expected: Path) -> None:
    with serving(engine, {"minilm": minilm}) as server:
        load(server, expected, USERS, 5)
        before = resident(server)
        found = load(server, expected, USERS, SECONDS)
        assert found["errors"]["count"] == 0, found["errors"]["log"]
        assert "refused" not in found
        assert found["embed"]["num_requests"] > 0
        assert resident(server) < before + (32 << 20)


def test_an_answer_to_another_text_is_an_error_of_the_load(minilm: Path, expected: Path, tmp_path: Path) -> None:
    given = dict(np.load(expected))
    given["vectors"] = given["vectors"][::-1]
    np.savez(tmp_path / "reversed.npz", **given)
    with serving("kserve", {"minilm": minilm}) as server:
        found = load(server, tmp_path / "reversed.npz", 4, 2)
    assert 0 < found["embed"]["num_requests"] == found["errors"]["count"]
    assert "another's answer" in found["errors"]["log"]


@pytest.mark.parametrize("engine", ENGINES)
def test_more_requests_than_there_is_room_for_are_refused_and_no_error(
    engine: str, minilm: Path, expected: Path
) -> None:
    with serving(engine, {"minilm": minilm}, "--max-waiting", "4") as server:
        found = load(server, expected, 3 * USERS, SECONDS)
        assert found["errors"]["count"] == 0, found["errors"]["log"]
        assert found["refused"]["num_requests"] > 0
        assert found["embed"]["num_requests"] > 0
        status, _ = post(f"{server.url}/v2/models/minilm/infer", {"inputs": []})
        assert status == 400  # there is room again


@pytest.mark.parametrize("engine", ENGINES)
def test_what_was_accepted_is_answered_before_a_server_ends(engine: str, minilm: Path, tmp_path: Path) -> None:
    text = "word " * 300
    body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [8], "data": [text] * 8}]}
    with serving(engine, {"minilm": minilm}) as server, ThreadPoolExecutor(6) as pool:
        url = f"{server.url}/v2/models/minilm/infer"
        assert post(url, body)[0] == 200
        asked = [pool.submit(post, url, body) for _ in range(6)]
        time.sleep(0.3)
        assert not all(each.done() for each in asked)
        server.process.send_signal(signal.SIGTERM)
        assert [each.result()[0] for each in asked] == [200] * 6


def test_a_killed_replica_is_replaced_under_load(minilm: Path, expected: Path) -> None:
    with serving("ray", {"minilm": minilm}, "--replicas", "2") as server:
        with running_load(server, expected, 8, 40) as process:
            time.sleep(8)
            killed, *others = processes(server)
            os.kill(killed.pid, signal.SIGKILL)
            out, err = process.communicate(timeout=120)
        (embed,) = (row for row in json.loads(out) if row["name"] == "embed")
        assert embed["num_failures"] <= 8, err  # what was being computed in it; each user waits for one answer
        assert "another's answer" not in err
        wait_for = time.monotonic() + 60
        while len(processes(server)) < 2 and time.monotonic() < wait_for:
            time.sleep(0.5)
        assert {each.pid for each in processes(server)} > {each.pid for each in others}
        assert load(server, expected, 8, 3)["errors"]["count"] == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_a_bundle_that_fails_its_self_test_is_not_served(engine: str, minilm: Path, tmp_path: Path) -> None:
    shutil.copytree(minilm, tmp_path / "app")
    with (tmp_path / "app" / "weights.bin").open("r+b") as file:
        file.seek(1000)
        file.write(b"\xff")
    command = [sys.executable, "-m", "attnport_bundle", "serve", "app", "--engine", engine]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment())
    assert done.returncode == 6
    assert "does not pass its self-test: weights.bin: changed" in done.stderr
