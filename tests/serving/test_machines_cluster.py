"""`check`, `bench` and `tune` on a cluster of two nodes, by the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from small_embedder import artifact_of

pytestmark = pytest.mark.filterwarnings("ignore")
ATTNPORT = str(Path(sys.executable).with_name("attnport"))


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return artifact_of(tmp_path_factory)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster of two nodes, each with a processor of this machine."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    made.wait_for_nodes()
    yield made.address
    ray.shutdown()
    made.shutdown()


def started(*arguments: Any, **environment: str) -> subprocess.Popen[str]:
    told = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "80", **environment}
    command = [ATTNPORT, *map(str, arguments)]
    # A shell ignores SIGINT in what it starts in the background, and a child inherits that.
    return subprocess.Popen(
        command,
        env=told,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )


def run(*arguments: Any, **environment: str) -> subprocess.CompletedProcess[str]:
    process = started(*arguments, **environment)
    out, err = process.communicate(timeout=400)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_check_has_a_row_for_each_machine_and_leaves_the_folder_as_it_is(artifact: Path, cluster: str) -> None:
    before = files(artifact)
    done = run("check", artifact, "--runtime", "ort_cpu", "--ray", cluster, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["schema"] == "attnport/machines/1"
    assert len({row["machine"] for row in report["results"]}) == 2
    for row in report["results"]:
        assert row["report"]["runtimes"]["ort_cpu"]["verdict"] == "PASS"
        assert row["cpu"]
        assert row["error"] == ""
    assert files(artifact) == before


def test_bench_has_a_table_for_each_machine(artifact: Path, cluster: str) -> None:
    options = ("--runtime", "ort_cpu", "--shape", "batch=1,seq=8", "--budget", "4", "--no-cold")
    done = run("bench", artifact, "--ray", cluster, *options)
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stdout.splitlines() if line.split()[:1] == ["ort_cpu"]]) == 2


def test_a_machine_that_cannot_do_it_has_its_reason(artifact: Path, cluster: str) -> None:
    done = run("check", artifact, "--runtime", "openvino", "--ray", cluster)
    assert done.returncode == 3
    assert done.stderr.count("openvino was not run") == 2
    assert "Traceback" not in done.stderr


def test_code_that_nobody_asked_for_here_is_not_sent(artifact: Path, cluster: str, tmp_path: Path) -> None:
    source = tmp_path / "theirs.py"
    source.write_text("from torch import nn\n\n\ndef make():\n    return nn.Linear(4, 4)\n")
    out = tmp_path / "out"
    made = run("export", f"{source}:make", "-o", out, "--input", "input=float32[batch,4]")
    assert made.returncode == 0, made.stderr
    done = run("check", out, "--ray", cluster, XDG_STATE_HOME=str(tmp_path / "elsewhere"))
    assert done.returncode == 2
    assert "was not exported by you on this machine" in done.stderr
    done = run("check", out, "--runtime", "onnx_reference", "--ray", cluster)
    assert done.returncode == 0, done.stderr


def test_two_artifacts_have_a_row_each_on_each_machine(artifact: Path, cluster: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.symlink_to(artifact)
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("the ferry leaves at dawn\nwith bread and letters\n" * 24)
    options = ("--runtime", "ort_cpu", "--text", sentences, "--shape", "batch=1,seq=8", "--budget", "5")
    done = run("tune", artifact, other, *options, "--ray", cluster, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["results"]
    assert len({(row["machine"], row["folder"]) for row in rows}) == 4
    assert all(row["report"]["candidates"] for row in rows)


def test_a_cluster_that_is_not_there_is_said(artifact: Path) -> None:
    done = run("check", artifact, "--ray", "127.0.0.1:1")
    assert done.returncode == 3
    assert "--ray 127.0.0.1:1: there is no cluster" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_verb_while_it_waits_for_machines(
    number: signal.Signals, code: int, artifact: Path, cluster: str
) -> None:
    process = started("check", artifact, "--runtime", "ort_cpu", "--ray", cluster, "-v")
    assert process.stderr is not None
    assert next(line for line in process.stderr if line.startswith("check: folders: 1, machines: 2"))
    process.send_signal(number)
    _, err = process.communicate(timeout=100)
    assert process.returncode == code
    assert "interrupted" in err
    assert "Traceback" not in err
