"""What is not known without a GPU, in the order in which it matters; `tools/gpu_first_run.sh` runs all of it.

    python benchmarks/gpu_first_run.py STEP FOLDER [--rehearse]

Each step writes FOLDER/STEP.json. With `--rehearse` it runs whole on a machine without a GPU: ONNX Runtime's CPU
provider stands for CUDA's, models and sizes are small, and what is written says so and has no meaning as a time.

peaks      matrix products and copies, cold, with the clocks
kernels    MultiHeadAttention with no mask, with a bias and with lengths, and Attention, at even and odd lengths: the
           kernel that ONNX Runtime prints and its time, for `sdpa_kernel` 0 (its own choice), 27 (what is asked for
           below SM 90) and 19 (without cuDNN)
operators  of BERT in fp16 and bf16: how often each is in the optimised graph, and its time in one profiled call
ragged     32 rows of which 26 % and 61 % are real tokens: the padded form, and one that computes real tokens alone
decode     64 steps behind a prompt, for 1 and 8 texts: caches through the host, and on the device
graphs     BERT, one text: calls of a bundle's session one by one, and as it captures them
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu_rates
import numpy as np
import onnx.parser

from attnport.decoders import roles_in
from attnport.exporter import storage
from attnport.exporter.targets.ort_cuda import OrtCuda
from attnport.folder.workspace import MODEL, open_folder, opened
from attnport.runtimes import _cuda, _ort
from attnport.verbs.export import export
from attnport.verbs.fuse import fuse
from attnport_bundle.decoding.caches import Decoding, MakeSteps, Steps, steps_of
from attnport_bundle.runtimes.cuda import provider_options
from attnport_bundle.runtimes.onnxruntime import CUDA, OnDevice, OnnxRuntimeSession

MODELS = "attnport.verbs._gpu_models"
TURNS, CALLS = 7, 20
ATTENTION = (
    '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]> g (KIND[B,S,E] x%s) => (KIND[B,S,E] y) '
    "{ [att] y = %s }"
)
MULTI_HEAD = "com.microsoft.MultiHeadAttention<num_heads=12>(x, x, x%s)"
FORMS = {
    "none": ("", MULTI_HEAD % ""),
    "bias": (", KIND[B,1,S,S] m", MULTI_HEAD % ", , , m"),
    "lengths": (", int32[B] n", MULTI_HEAD % ", , n"),
    "Attention": (", bool[B,1,S,S] b", "Attention<q_num_heads=12, kv_num_heads=12>(x, x, x, b)"),
}
SHAPES = ((8, 512), (8, 509), (32, 128), (1, 128), (1, 127))


class Host:
    """The processor in the place of a GPU, for `gpu_rates.peaks`."""

    kind, name, bf16 = "cpu", "rehearsal on a CPU", True

    def mark(self) -> int:
        """The time."""
        return time.perf_counter_ns()

    def ns_between(self, first: int, second: int) -> int:
        """Between two of them."""
        return second - first

    def wait(self) -> None:
        """Nothing to wait for."""


class Run:
    """One step: where it writes, and what stands for a GPU in a rehearsal."""

    def __init__(self, folder: Path, rehearse: bool) -> None:
        self.folder, self.rehearse = folder, rehearse
        self.runtime = "ort_cpu" if rehearse else "ort_cuda"
        self.turns, self.calls = (2, 1) if rehearse else (TURNS, CALLS)
        self.plans = ("fp32",) if rehearse else ("fp16", "bf16")

    def provider(self, **more: str) -> Any:
        """The provider and its options."""
        if self.rehearse:
            return _ort.CPU
        _cuda.load_cuda()
        return CUDA, {**provider_options(_cuda.Device().sm), **more}

    def artifact(self, name: str, plan: str) -> Path:
        """The folder of a model with its form; it is made once."""
        folder = self.folder / name
        if not (folder / "attnport.json").exists():
            large = {"bert_encoder": "bert_base", "llama_decoder": "llama_part"}[name]
            export(name if self.rehearse else f"{MODELS}:{large}", folder)
        fuse(folder, targets=[self.runtime], precision=plan)
        return folder

    def timed_us(self, call: Callable[[], object]) -> float:
        """The median time of a call, after one that does not count."""
        call()
        times = []
        for _ in range(self.turns):
            began = time.perf_counter()
            for _ in range(self.calls):
                call()
            times.append((time.perf_counter() - began) / self.calls)
        return round(statistics.median(times) * 1e6, 1)


def peaks(run: Run) -> Any:
    """What the GPU reaches at most."""
    if run.rehearse:
        return gpu_rates.peaks(Host(), ("fp32",), sizes=(64,), copy_bytes=1 << 16, rounds=2, warm_s=0.0)
    from attnport.runtimes._torch_device import TorchDevice

    device = TorchDevice()
    return {"device": device.name, **gpu_rates.peaks(device, ("fp16", "bf16") if device.bf16 else ("fp16",))}


def kernels(run: Run) -> Any:
    """Kernel and time of each form of an attention, by shape and `sdpa_kernel`."""
    kind, dtype = ("float", np.float32) if run.rehearse else ("float16", np.float16)
    found = {}
    shapes = ((2, 16), (2, 13)) if run.rehearse else SHAPES
    for allowed, (B, S), form in itertools.product(("0", "27", "19"), shapes, FORMS):
        inputs, node = FORMS[form]
        text = (ATTENTION % (inputs, node)).replace("KIND", kind).replace("E]", "768]")
        lengths = np.maximum(S - np.arange(B) * S // (2 * B), 1).astype(np.int32)
        keep = np.broadcast_to((np.arange(S) < lengths[:, None])[:, None, None], (B, 1, S, S))
        given = {"x": np.random.default_rng(0).standard_normal((B, S, 768)).astype(dtype)}
        given |= {"bias": {"m": np.where(keep, 0, -np.inf).astype(dtype)}, "lengths": {"n": lengths},
                  "Attention": {"b": keep.copy()}}.get(form, {})  # fmt: skip
        key = f"{form} {B} x {S} sdpa_kernel={allowed}"
        try:
            with _ort.printed_kernels() as printed:
                options = {} if allowed == "0" else {"sdpa_kernel": allowed}
                model = onnx.parser.parse_model(text).SerializeToString()
                session = _ort.open_session(model, _ort.options(None), run.provider(**options))
                session.run(None, given)
            binding = _bound(session, given, run)
            us = run.timed_us(lambda held=binding, of=session: of.run_with_iobinding(held))
            found[key] = {"kernel": " and ".join(printed.get("att", ())), "us": us}
        except Exception as err:  # each is one line of a table
            found[key] = {"problem": str(err).splitlines()[0][:200]}
    return found


def _bound(session: Any, given: dict[str, Any], run: Run) -> Any:
    import onnxruntime

    place, binding = "cpu" if run.rehearse else "cuda", session.io_binding()
    for name, array in given.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array, place, 0))
    for output in session.get_outputs():
        binding.bind_output(output.name, place)
    return binding


def _feeds(batch: int, seq: int, real: float = 1.0) -> dict[str, np.ndarray]:
    """BERT's inputs, with lengths around a share of real tokens."""
    random = np.random.default_rng(0)
    lengths = np.clip(random.integers(1, max(2, round(2 * real * seq)), batch), 1, seq)
    lengths = np.full(batch, seq) if real == 1.0 else lengths
    mask = (np.arange(seq) < lengths[:, None]).astype(np.int64)
    ids = random.integers(1, 50, (batch, seq)) * mask
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def _fitting(session: Any, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {tensor.name: feeds[tensor.name] for tensor in session.get_inputs()}


def operators(run: Run) -> Any:
    """Operators of the optimised graph and of one profiled call, by precision."""
    found = {}
    for plan in run.plans:
        folder = run.artifact("bert_encoder", plan)
        form = _form(folder, run, plan)
        io = open_folder(folder).io
        given = {spec.name: _feeds(*((2, 16) if run.rehearse else (8, 512)))[spec.name] for spec in io.inputs}
        events, optimised = _ort.profiled(form, run.provider(), given, io=io)
        times = Counter[str]()
        for event in events:
            times[event["args"]["op_name"]] += event["dur"]
        found[plan] = {
            "nodes": dict(Counter(node.op_type for node in optimised.graph.node).most_common()),
            "us": dict(times.most_common()),
        }
    return found


def _form(folder: Path, run: Run, plan: str) -> Path:
    forms = open_folder(folder).forms
    return folder / next(form.file for form in forms.values() if (form.target, form.plan) == (run.runtime, plan))


class Tokens(OrtCuda):
    """The form of `ort_cuda` that computes the real tokens of a padded batch alone."""

    real_tokens = True


def ragged(run: Run) -> Any:
    """Times of a padded batch, in a form that computes padding and in one that does not."""
    plan = run.plans[0]
    folder = run.artifact("bert_encoder", plan)
    manifest, found = open_folder(folder), {}
    files = {}
    for name, lowering in (("padded", OrtCuda()), ("real tokens", Tokens())):
        lowered = lowering.lower(
            storage.load(folder / MODEL), manifest.attentions, plan=plan, masks=manifest.io.masks,
            sizes=manifest.io.profile().sizes("opt"),
        )  # fmt: skip
        files[name] = folder / f"trial.{name.replace(' ', '_')}.onnx"
        storage.save_form(lowered.model, files[name], f"{files[name].stem}.bin")
        found[name] = {"padding": lowered.padding}
    batch, seq = (4, 16) if run.rehearse else (32, 512)
    for real in (0.26, 0.61):
        given = _feeds(batch, seq, real)
        for name, file in files.items():
            try:
                session = _ort.open_session(file, _ort.options(None), run.provider())
                binding = _bound(session, _fitting(session, given), run)
                us = run.timed_us(lambda held=binding, of=session: of.run_with_iobinding(held))
                found[name][f"{given['attention_mask'].mean():.0%} real, us"] = us
            except Exception as err:  # in a rehearsal, the CPU has no kernel for packed q, k and v
                found[name][f"{real:.0%} real"] = str(err).splitlines()[0][:200]
    return found


def decode(run: Run) -> Any:
    """Times of a step, and how far the scores of both ways are apart."""
    folder = run.artifact("llama_decoder", run.plans[0])
    manifest, found = open_folder(folder), {}
    session, roles = opened(folder, manifest, run.runtime), roles_in(manifest.io)
    prompt, steps = (9, 4) if run.rehearse else (2000 - 8, 64)

    def on_device(_: Any) -> Steps | None:
        import onnxruntime

        return OnDevice(onnxruntime, session._session, "cpu").steps(roles)  # type: ignore[attr-defined]

    device = on_device if run.rehearse else steps_of(session)
    for batch, (name, make) in itertools.product((1, 8), {"host": None, "device": device}.items()):
        ms, scores = _steps(lambda **feeds: session.run(feeds), manifest.io, roles, make, batch, prompt, steps)
        found[f"{batch} texts, caches on the {name}"] = {"ms a step": ms}
        key = f"{batch} texts, largest difference of scores"
        found[key] = float(np.abs(scores - found.pop("scores")).max()) if "scores" in found else scores
        if name == "host":
            found["scores"] = found.pop(key)
    return found


def _steps(
    call: Any, io: Any, roles: Any, make: MakeSteps | None, batch: int, prompt: int, steps: int
) -> tuple[float, Any]:
    decoding = Decoding(call, io, roles, make)
    random = np.random.default_rng(0)
    for begin in range(0, prompt, 512):
        count = min(512, prompt - begin)
        scores = decoding.push(random.integers(0, 50, (batch, count)), np.ones((batch, count), bool))
    times = []
    for _ in range(steps):
        new = random.integers(0, 50, (batch, 1))
        began = time.perf_counter()
        scores = decoding.push(new, np.ones((batch, 1), bool))
        times.append(time.perf_counter() - began)
    return round(statistics.median(times) * 1e3, 3), scores


def graphs(run: Run) -> Any:
    """Times of a call without and with graphs."""
    plan = run.plans[0]
    form, given = _form(run.artifact("bert_encoder", plan), run, plan), _feeds(1, 16 if run.rehearse else 128)
    import onnxruntime

    provider = _ort.CPU if run.rehearse else CUDA
    session = OnnxRuntimeSession(onnxruntime, form, SimpleNamespace(provider=provider, external=()), None)  # type: ignore[arg-type]
    given = {port.name: given[port.name] for port in session.inputs}
    captured, session._graphs = session._graphs, None
    found: dict[str, Any] = {"one by one, us": run.timed_us(lambda: session.run(given))}
    session._graphs = captured
    found["as it captures them, us"] = run.timed_us(lambda: session.run(given))
    found["captured"] = len(session._graphs._captured) if session._graphs else 0
    return found


STEPS = {step.__name__: step for step in (peaks, kernels, operators, ragged, decode, graphs)}


def main() -> None:
    """Runs one step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rehearse", action="store_true")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    found = STEPS[asked.step](Run(asked.folder, asked.rehearse))
    told = {"rehearsal": "on a CPU; no time here is one of a GPU"} if asked.rehearse else {}
    text = json.dumps({**told, asked.step: found}, indent=1, default=str) + "\n"
    with tempfile.NamedTemporaryFile("w", dir=asked.folder, delete=False) as file:
        file.write(text)
    Path(file.name).replace(asked.folder / f"{asked.step}.json")
    print(text, end="")


if __name__ == "__main__":
    main()
