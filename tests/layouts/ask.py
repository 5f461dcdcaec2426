"""Run by the Python that has Triton's client: reads configurations, or asks a server.

python ask.py schema REPOSITORY                   each config.pbtxt by NVIDIA's schema, as JSON
python ask.py ask ADDRESS MODEL < REQUESTS.json   lists of texts, each from a client of its own, all at once
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from google.protobuf import json_format, text_format
from tritonclient import grpc
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import InferenceServerException


def schema(folder: Path) -> dict[str, object]:
    found = {}
    for path in sorted(folder.glob("*/config.pbtxt")):
        config = text_format.Parse(path.read_text("utf-8"), model_config_pb2.ModelConfig())
        found[path.parent.name] = json_format.MessageToDict(config, preserving_proto_field_name=True)
    return found


def ask(address: str, model: str, texts: list[str]) -> object:
    """The outputs of a request, or the server's refusal."""
    tensor = grpc.InferInput("TEXT", [len(texts), 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode("latin-1")] for text in texts], object).reshape(-1, 1))
    try:
        result = grpc.InferenceServerClient(address).infer(model, [tensor])
    except InferenceServerException as err:
        return f"{err.status()}: {err.message()}"
    return {output.name: result.as_numpy(output.name).tolist() for output in result.get_response().outputs}


if sys.argv[1] == "schema":
    print(json.dumps(schema(Path(sys.argv[2]))))
else:
    requests = json.load(sys.stdin)
    with ThreadPoolExecutor(len(requests)) as clients:
        print(json.dumps(list(clients.map(lambda texts: ask(*sys.argv[2:4], texts), requests))))
