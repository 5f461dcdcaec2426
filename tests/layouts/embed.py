"""Run by the Python of sentence-transformers: the vectors of texts, or the scores of pairs, by one of its backends.

python embed.py FOLDER BACKEND OUT.npy < TEXTS.json
"""

from __future__ import annotations

import json
import sys

import numpy as np
from sentence_transformers import CrossEncoder, SentenceTransformer

SETTINGS = {
    "torch": {},
    "onnx": {"provider": "CPUExecutionProvider"},
    # Without it, OpenVINO computes in bfloat16 where the CPU can.
    "openvino": {"ov_config": {"INFERENCE_PRECISION_HINT": "f32"}},
}
folder, backend, out = sys.argv[1:]
texts = json.load(sys.stdin)
made = SentenceTransformer if isinstance(texts[0], str) else CrossEncoder
model = made(folder, backend=backend, model_kwargs=SETTINGS[backend], device="cpu", local_files_only=True)
if backend != "torch" and "transformers" in type(model[0].auto_model).__module__:
    sys.exit(f"{backend}: it runs {type(model[0].auto_model)}")
np.save(out, model.encode(texts) if made is SentenceTransformer else model.predict(texts))
