"""Where the time of attnport's forms goes: milliseconds of each kind of operator, by the runtimes' own profiles.

    python benchmarks/profile_forms.py MODEL WORK [--schedule "its own batches"]

MODEL and WORK are those of benchmarks/compare.py, such as minilm and "32 sentences, 26% real"; float32, one thread.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from beside.models import MODELS, described
from beside.schedules import PADDED, calls, feeds_of

from attnport_bundle.runtimes.onnxruntime import CPU, WITHOUT_SKIP_NORMS

Feeds = list[dict[str, np.ndarray[Any, Any]]]
WARM, ROUNDS = 3, 8
SHOWN = 12


def onnxruntime_profile(file: Path, batches: Feeds) -> Counter[str]:
    """Milliseconds by operator; products by the width of their input."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.add_session_config_entry(*WITHOUT_SKIP_NORMS)
    settings.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        settings.profile_file_prefix = f"{folder}/profile"
        session = onnxruntime.InferenceSession(file, settings, providers=[CPU])
        for _ in range(WARM + ROUNDS):
            for feeds in batches:
                session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text())
    runs = sorted(event["ts"] for event in events if event["name"] == "model_run")
    begin, found = runs[WARM * len(batches)], Counter[str]()
    for event in events:
        if event["cat"] == "Node" and event["name"].endswith("_kernel_time") and event["ts"] >= begin:
            kind = event["args"]["op_name"]
            if kind == "MatMul":
                shapes = event["args"]["input_type_shape"]
                kind += f" of {next(iter(shapes[0].values()))[-1]}" if len(shapes) == 1 else " of two tensors"
            found[kind] += event["dur"] / 1e3 / ROUNDS
    return found


def openvino_profile(file: Path, batches: Feeds) -> Counter[str]:
    """Milliseconds by layer and kernel."""
    import openvino

    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    request = openvino.Core().compile_model(file, "CPU", settings | {"PERF_COUNT": True}).create_infer_request()
    found = Counter[str]()
    for number in range(WARM + ROUNDS):
        for feeds in batches:
            request.infer(feeds)
            for layer in request.get_profiling_info() if number >= WARM else ():
                if layer.status == layer.Status.EXECUTED:
                    name = f"{layer.node_type} ({layer.exec_type})"
                    found[name] += layer.real_time.total_seconds() * 1e3 / ROUNDS
    return found


def main() -> None:
    """Prints a table a runtime."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("work")
    parser.add_argument("--schedule", default=PADDED)
    given = parser.parse_args()
    model = MODELS[given.model]
    work = next((one for one in model.works() if one.name == given.work), None)
    if work is None:
        parser.error(f"works of {model.name}: {', '.join(one.name for one in model.works())}")
    schedules = calls(work)
    if given.schedule not in schedules:
        parser.error(f"schedules: {', '.join(schedules)}")
    batches = [feeds_of([work.rows[at] for at in places], model.inputs) for places in schedules[given.schedule]]
    folder = Path(described(model)["ours"])
    for name, profile in (("ort_cpu", onnxruntime_profile), ("openvino", openvino_profile)):
        found = profile(folder / f"model.{name}.onnx", batches)
        print(f"{name}: {found.total():.1f} ms in {len(batches)} batches")
        for kind, spent in found.most_common(SHOWN):
            print(f"{spent:9.2f} ms  {kind}")


if __name__ == "__main__":
    main()
