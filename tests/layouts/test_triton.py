"""`--layout triton`: by NVIDIA's schema of the configuration, and in the server that PyTriton brings.

That server has the Python backend alone, so that the tokenizer and the ensemble run in it as they are. The model is
NOT_RUN there, which a test shows; behind the ensemble, ONNX Runtime runs its file from a model of the Python backend,
with the configuration that was written but for the backend.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import HERE, ran

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
Vectors = np.ndarray[Any, Any]
NAME = "all-MiniLM-L6-v2"
STAND_IN = '''
"""Runs the model's own file, and keeps how many items came at once."""
import json
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as triton

HERE = Path(__file__).parent


class TritonPythonModel:
    def initialize(self, args):
        self.config = json.loads(args["model_config"])
        self.session = onnxruntime.InferenceSession(str(HERE / "model.onnx"))

    def execute(self, requests):
        names = [each["name"] for each in self.config["input"]]
        found = [{name: triton.get_input_tensor_by_name(one, name).as_numpy() for name in names} for one in requests]
        whole = {name: np.concatenate([each[name] for each in found]) for name in names}
        with (HERE / "joined.txt").open("a") as log:
            log.write(f"{len(requests)} {len(whole[names[0]])}\\n")
        outputs = [output.name for output in self.session.get_outputs()]
        results, answers, at = self.session.run(outputs, whole), [], 0
        for each in found:
            rows = slice(at, at + len(each[names[0]]))
            at = rows.stop
            tensors = [triton.Tensor(name, np.array(array[rows])) for name, array in zip(outputs, results)]
            answers.append(triton.InferenceResponse(output_tensors=tensors))
        return answers
'''


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextmanager
def serving(python: Path, repository: Path, folder: Path, *, all_ready: bool = True) -> Iterator[tuple[str, str]]:
    """PyTriton's tritonserver on a repository: the address for gRPC, and for HTTP."""
    packages = next((python.parents[1] / "lib").glob("python3*/site-packages"))
    brought = packages / "pytriton" / "tritonserver"
    backends = folder / "backends"
    shutil.copytree(brought / "backends", backends)
    version = packages.parent.name.removeprefix("python")
    shutil.copy(brought / "python_backend_stubs" / version / "triton_python_backend_stub", backends / "python")
    base = subprocess.run(
        [python, "-c", "import sys; print(sys.base_prefix)"], capture_output=True, text=True, check=True
    )
    libraries = f"{packages / 'nvidia_pytriton.libs'}:{base.stdout.strip()}/lib"
    grpc, http = free_ports(2)
    command = [
        brought / "bin" / "tritonserver", "--model-repository", repository, "--backend-directory", backends,
        "--grpc-address", "127.0.0.1", "--grpc-port", grpc, "--http-address", "127.0.0.1", "--http-port", http,
        "--allow-metrics", "false", "--exit-on-error", "false",
    ]  # fmt: skip
    # The backend's Python is the one that is first on the path.
    values = {**os.environ, "LD_LIBRARY_PATH": libraries, "PATH": f"{python.parent}:{os.environ['PATH']}"}
    with (folder / "log.txt").open("w") as log:
        server = subprocess.Popen(list(map(str, command)), env=values, stdout=log, stderr=log)
    try:
        wait(server, f"http://127.0.0.1:{http}/v2/health/{'ready' if all_ready else 'live'}", folder / "log.txt")
        yield f"127.0.0.1:{grpc}", f"http://127.0.0.1:{http}"
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)


def wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    for _ in range(600):
        if server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(log.read_text()[-3000:])


def ask(python: Path, address: str, model: str, requests: list[list[str]]) -> list[Any]:
    answers: list[Any] = json.loads(ran([python, HERE / "ask.py", "ask", address, model], requests))
    return answers


@pytest.fixture(scope="module")
def standing_in(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository, with the model in the Python backend."""
    folder = Path(shutil.copytree(repository, tmp_path_factory.mktemp("triton") / "repository"))
    config = folder / NAME / "config.pbtxt"
    said = config.read_text()
    assert 'backend: "onnxruntime"\ndefault_model_filename: "model.onnx"\n' in said
    config.write_text(said.replace('"onnxruntime"', '"python"').replace('default_model_filename: "model.onnx"\n', ""))
    (folder / NAME / "1" / "model.py").write_text(STAND_IN)
    return folder


def test_every_configuration_is_of_nvidias_schema(triton: Path, repository: Path) -> None:
    found = json.loads(ran([triton, HERE / "ask.py", "schema", repository]))
    assert sorted(found) == [NAME, f"{NAME}_text", f"{NAME}_tokenizer"]
    model = found[NAME]
    assert (model["backend"], model["max_batch_size"], model["dynamic_batching"]) == ("onnxruntime", 64, {})
    assert model["output"][1] == {"name": "sentence_embedding", "data_type": "TYPE_FP32", "dims": ["384"]}
    assert model["instance_group"] == [{"kind": "KIND_CPU", "count": 1}]
    (text,) = found[f"{NAME}_text"]["input"]
    assert text == {"name": "TEXT", "data_type": "TYPE_STRING", "dims": ["1"]}


def test_a_wrong_configuration_is_noticed(triton: Path, repository: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong").mkdir()
    said = (repository / NAME / "config.pbtxt").read_text()
    (tmp_path / "wrong" / "config.pbtxt").write_text(said.replace("TYPE_INT64", "TYPE_LONG"))
    with pytest.raises(AssertionError, match="TYPE_LONG"):
        ran([triton, HERE / "ask.py", "schema", tmp_path])


def test_the_model_itself_is_not_run_here_as_the_server_lacks_its_backend(
    triton: Path, repository: Path, tmp_path: Path
) -> None:
    with (
        serving(triton, repository, tmp_path, all_ready=False) as (_, http),
        pytest.raises(urllib.error.HTTPError, match="400"),
    ):
        urllib.request.urlopen(f"{http}/v2/models/{NAME}/ready")
    assert "unable to find backend library for backend 'onnxruntime'" in (tmp_path / "log.txt").read_text()


def test_texts_of_many_clients_give_each_its_own_vectors(
    triton: Path, standing_in: Path, texts: list[str], wanted: Vectors, tmp_path: Path
) -> None:
    requests = [[text] for text in texts] * 4 + [texts[:3]]
    with serving(triton, standing_in, tmp_path) as (address, _):
        answers = ask(triton, address, f"{NAME}_text", requests)
    got = np.concatenate([answer["sentence_embedding"] for answer in answers])
    np.testing.assert_allclose(got, np.concatenate([np.tile(wanted, (4, 1)), wanted[:3]]), atol=1e-6)
    joined = [
        tuple(map(int, line.split())) for line in (standing_in / NAME / "1" / "joined.txt").read_text().splitlines()
    ]
    assert max(requests for requests, _ in joined) > 1
    assert max(items for _, items in joined) <= 64


def test_a_request_that_is_no_text_is_refused_by_name(triton: Path, standing_in: Path, tmp_path: Path) -> None:
    with serving(triton, standing_in, tmp_path) as (address, _):
        wrong, right = ask(triton, address, f"{NAME}_text", [["caf\xe9"], ["a kettle"]])
    assert "INVALID_ARGUMENT" in wrong
    assert "TEXT: got bytes that are no UTF-8" in wrong
    assert np.shape(right["sentence_embedding"]) == (1, 384)
