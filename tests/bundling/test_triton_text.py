"""`--layout triton` of a text model: the tokenizer as Triton runs it, and the ensemble."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import text_artifact
from bundle_folders import tree

from attnport.verbs.bundle import bundle
from attnport_bundle import Tokenizer, load

ENSEMBLE = """\
# tiny.py:module, form ort_cpu: onnxruntime 1.28 or later
name: "tiny_text"
max_batch_size: 8
platform: "ensemble"
input {
  name: "TEXT"
  data_type: TYPE_STRING
  dims: [ 1 ]
}
output {
  name: "last_hidden_state"
  data_type: TYPE_FP32
  dims: [ -1, 8 ]
}
output {
  name: "sentence_embedding"
  data_type: TYPE_FP32
  dims: [ 8 ]
}
ensemble_scheduling {
  step {
    model_name: "tiny_tokenizer"
    model_version: -1
    input_map {
      key: "TEXT"
      value: "TEXT"
    }
    output_map {
      key: "input_ids"
      value: "tokenizer.input_ids"
    }
    output_map {
      key: "attention_mask"
      value: "tokenizer.attention_mask"
    }
  }
  step {
    model_name: "tiny"
    model_version: -1
    input_map {
      key: "input_ids"
      value: "tokenizer.input_ids"
    }
    input_map {
      key: "attention_mask"
      value: "tokenizer.attention_mask"
    }
    output_map {
      key: "last_hidden_state"
      value: "last_hidden_state"
    }
    output_map {
      key: "sentence_embedding"
      value: "sentence_embedding"
    }
  }
}
"""
BACKEND = '''
"""As much of Triton's module as a model uses."""


class Tensor:
    def __init__(self, name, array):
        self.name, self.array = name, array

    def as_numpy(self):
        return self.array


class TritonError:
    INVALID_ARG = 3

    def __init__(self, message, code):
        self.message, self.code = message, code


class InferenceResponse:
    def __init__(self, output_tensors=(), error=None):
        self.output_tensors, self.error = output_tensors, error


def get_input_tensor_by_name(request, name):
    return request[name]
'''
PROGRAM = """
import importlib.util, json, sys
import numpy as np

sys.path.insert(0, sys.argv[1])
import triton_python_backend_utils as triton

spec = importlib.util.spec_from_file_location("model", sys.argv[2])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
model = module.TritonPythonModel()
model.initialize({})
requests = [
    {"TEXT": triton.Tensor("TEXT", np.array([[bytes(text)] for text in texts], object).reshape(len(texts), 1))}
    for texts in json.loads(sys.argv[3])
]
print(json.dumps([
    response.error.message if response.error else {each.name: each.array.tolist() for each in response.output_tensors}
    for response in model.execute(requests)
]))
"""


@pytest.fixture(scope="module")
def text_out(tmp_path_factory: pytest.TempPathFactory, exported: Path, arrays: dict[str, Any]) -> Path:
    return text_artifact.make(tmp_path_factory.mktemp("text") / "out", exported, arrays)


@pytest.fixture(scope="module")
def repository(text_out: Path) -> Path:
    return bundle(text_out, text_out.parent / "repository", layout="triton")


def run(repository: Path, folder: Path, *requests: list[bytes]) -> list[Any]:
    """What the tokenizer answers to requests that Triton gives it at once."""
    (folder / "triton_python_backend_utils.py").write_text(BACKEND)
    model, given = repository / "tiny_tokenizer/1/model.py", json.dumps([[*map(list, each)] for each in requests])
    command = [sys.executable, "-I", "-c", PROGRAM, str(folder), str(model), given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers: list[Any] = json.loads(done.stdout)
    return answers


def test_a_text_model_comes_with_its_tokenizer_and_an_ensemble(repository: Path) -> None:
    found = {name for name in tree(repository) if "/attnport_bundle/" not in name}
    assert found == {
        "tiny/config.pbtxt",
        "tiny/1/model.onnx",
        "tiny/1/weights.bin",
        "tiny_tokenizer/config.pbtxt",
        "tiny_tokenizer/1/bundle.json",
        "tiny_tokenizer/1/model.py",
        "tiny_tokenizer/1/tokenizer.json",
        "tiny_tokenizer/1/tokenizer.chars",
        "tiny_text/config.pbtxt",
        "tiny_text/1/.keep",
    }
    assert (repository / "tiny_text" / "config.pbtxt").read_text() == ENSEMBLE


def test_the_tokenizer_gives_what_the_bundle_makes_of_the_texts(
    repository: Path, text_out: Path, tmp_path: Path
) -> None:
    app = bundle(text_out, tmp_path / "app")
    (got,) = run(repository, tmp_path, [b"w3 w4", b"w5 strange w6"])
    with load(app) as model:
        wanted = Tokenizer(app / "tokenizer.json", model.io).encode(["w3 w4", "w5 strange w6"])
    assert got == {name: array.tolist() for name, array in wanted.items()}


def test_requests_that_come_together_are_padded_to_one_length(repository: Path, tmp_path: Path) -> None:
    one, other = run(repository, tmp_path, [b"w1"], [b"w1 w2 w3", b"w4"])
    assert one == {"input_ids": [[2, 6, 3, 0, 0]], "attention_mask": [[1, 1, 1, 0, 0]]}
    assert np.shape(other["input_ids"]) == (2, 5)


def test_a_wrong_request_costs_no_other_its_answer(repository: Path, tmp_path: Path) -> None:
    wrong, right, none = run(repository, tmp_path, [b"w1", b"\xff"], [b"w1"], [])
    assert wrong.startswith("TEXT: got bytes that are no UTF-8: ")
    assert right == {"input_ids": [[2, 6, 3]], "attention_mask": [[1, 1, 1]]}
    assert none == "TEXT: got no text; expected one or more."


def test_without_a_tokenizer_that_the_reader_knows_clients_send_ids_and_the_user_is_told(
    exported: Path, arrays: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_artifact, "write_tokenizer", lambda path: path.write_text('{"model": {"type": "Odd"}}'))
    folder, told = text_artifact.make(tmp_path / "out", exported, arrays), []
    repository = bundle(folder, tmp_path / "repository", layout="triton", tell=told.append)
    assert [path.name for path in repository.iterdir()] == ["tiny"]
    assert [line for line in told if line.startswith("without a tokenizer, clients send token ids: ")]
