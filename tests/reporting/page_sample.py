"""Values to render: the shape of a real port of a six-layer encoder, and hostile and empty ones.

`python tests/reporting/page_sample.py OUT.html` writes a page to look at.
"""

from __future__ import annotations

import dataclasses
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

from attnport.artifacts import (
    Argmax,
    CaseResult,
    EngineRecord,
    Form,
    FusionItem,
    FusionReport,
    FusionTable,
    InvarianceResult,
    IOContract,
    LatencyReport,
    LatencyRow,
    Layer,
    LayerError,
    LayerReport,
    LayerSeries,
    Manifest,
    NonFinite,
    PaddedRows,
    ParityReport,
    Ran,
    RuntimeParity,
    Source,
    SourceAttention,
    Ulps,
)
from attnport.dims import Dim, Profile, TensorSpec
from attnport.latency.choice import choose
from attnport.masks import MaskSpec
from attnport.reporting import document as doc
from attnport.reporting.choice import Choice, Deployable
from attnport.reporting.report import Findings, document

SENTENCE = "The old lighthouse keeper wrote every passing ship into a book that nobody ever asked to read."
LAYERS = 6
ATTENTIONS = tuple(f"model.encoder.layer.{layer}.attention.self" for layer in range(LAYERS))
CASES = (
    "no padding",
    "right padding",
    "left padding",
    "interior padding",
    "one row fully masked",
    "sequence 1",
    "longest",
    "primes",
    *(f"sentences {start + 1}-{start + 32}" for start in range(0, 192, 32)),
)
OUTPUTS = ("last_hidden_state", "sentence_embedding")
NO_GPU = "no CUDA device: an engine runs on a GPU; built and checked as a graph only"


def manifest(name: str = "all-MiniLM-L6-v2") -> Manifest:
    dims = (Dim("batch", 1, 8, 64), Dim("seq", 1, 128, 512))
    profile = Profile((Dim("batch", 1, 8, 64), Dim("seq", 1, 128, 512)))
    anchors = {attention: (f"{attention}/Attention",) for attention in ATTENTIONS}
    plans = {"onnx": "fp32", "onnx_18": "fp32", "ort_cpu": "fp32", "openvino": "fp32", "tensorrt_rtx.fp16": "fp16"}
    return Manifest(
        format=1,
        attnport="0.1.0",
        name=name,
        source=Source("hf:models/all-MiniLM-L6-v2", code_digest="a" * 64, weights_digest="b" * 64),
        io=IOContract(
            tuple(TensorSpec(key, "int64", ("batch", "seq")) for key in ("input_ids", "attention_mask")),
            (
                TensorSpec("last_hidden_state", "float32", ("batch", "seq", 384)),
                TensorSpec("sentence_embedding", "float32", ("batch", 384)),
            ),
            dims,
            (MaskSpec(("padding",), "attention_mask"),),
        ),
        opset=23,
        attentions=tuple(SourceAttention(key, key, "scaled_dot_product_attention") for key in ATTENTIONS),
        tokenizer="tokenizer.json",
        versions={"torch": "2.13.0+cpu", "onnx": "1.23.2", "onnxscript": "0.7.2", "transformers": "5.23.0"},
        files={"model.onnx": "c" * 64},
        forms={
            key: Form(key.partition(".")[0], plan, f"model.{key}.onnx", 18 if key == "onnx_18" else 23, anchors)
            for key, plan in plans.items()
        },
        engines={
            "tensorrt_rtx.fp16": EngineRecord(
                target="tensorrt_rtx",
                plan="fp16",
                file="engines/tensorrt_rtx-fp16-default-1f3a9c02.engine",
                form="tensorrt_rtx.fp16",
                sm=(),
                profiles=(profile,),
                version="1.7.1.116",
                digest="d" * 64,
                size_bytes=46_132_224,
                scratch_bytes=68_157_440,
            )
        },
    )


def fusion() -> FusionReport:
    kernels = {
        "ort_cpu": ("Attention", "Attention, float mask", "ort_cpu"),
        "openvino": ("ScaledDotProductAttention", "Attention, bool mask", "openvino"),
        "tensorrt_rtx.fp16": ("_gemm_mha_v2", "Where(mask, s, -inf)", "engine"),
    }
    tables = {}
    for target, (kernel, form, by) in kernels.items():
        items = [
            FusionItem(
                key,
                form,
                "padding(attention_mask)",
                kernel,
                True,
                "",
                f'function={{ name={kernel} layers="[ONNX Layer: {key}/MatMul]<0x1f>[ONNX Layer: {key}/Softmax]" }}',
            )
            for key in ATTENTIONS
        ]
        plan = "fp16" if "fp16" in target else "fp32"
        tables[target] = FusionTable(LAYERS, LAYERS, tuple(items), f"model.{target}.onnx", plan, by)
    reason = "opset 18 has no Attention operator; this form is for older consumers"
    items = [
        FusionItem(key, "MatMul, Softmax, MatMul", "padding(attention_mask)", None, False, reason) for key in ATTENTIONS
    ]
    tables["onnx_18"] = FusionTable(LAYERS, 0, tuple(items), "model.onnx_18.onnx", "fp32", "openvino")
    return FusionReport(tables)


def _more(case: str, output: str, used: float, argmax: bool) -> dict[str, Any]:
    """The metrics beside the errors, as a check gives them: padded rows only where a case has some."""
    padded = output == "last_hidden_state" and "padding" in case and case != "no padding"
    return {
        "ulps": Ulps(8 * used, 50.25 * used, 505 * used, 8_874_998.7 * used),
        "census": NonFinite(),
        "padded": PaddedRows(9216, 2e-7 * used, 3e-6 * used, NonFinite()) if padded else None,
        "argmax": Argmax(1348, 1346) if argmax else None,
    }


def _runtime(
    rng: random.Random, scale: float, plan: str, ran: Ran | None, fail: str = "", argmax: bool = False
) -> RuntimeParity:
    unit = 1.5e-7 if plan == "fp32" else 4.1e-4
    cases = []
    for case in CASES:
        for output in OUTPUTS:
            size = unit * (1.0 if output == "last_hidden_state" else 0.08)
            used = scale * rng.uniform(0.75, 1.15) * (4.2 if case == fail else 1)
            bad = used > 1
            cases.append(
                CaseResult(
                    case,
                    output,
                    "FAIL" if bad else "PASS",
                    "maximum error outside the bound" if bad else "",
                    rng.randint(384, 393_216),
                    size * used * 0.9,
                    size,
                    size * 9 * used,
                    size * 9,
                    size * used / 0.2,
                    1 - 1e-9 * rng.random() if output == "sentence_embedding" else None,
                    0,
                    **_more(case, output, used, argmax),
                )
            )
    invariance = [
        InvarianceResult(comparison, output, "PASS", unit * scale * 0.3, unit, unit * 5 * scale * 0.3, unit * 9)
        for comparison in ("alone against in a padded batch", "more right padding")
        for output in OUTPUTS
    ]
    reason = f"{fail}: maximum error outside the bound" if fail else ""
    return RuntimeParity("FAIL" if fail else "PASS", reason, plan, ran, tuple(cases), tuple(invariance))


def parity(*, fail: bool = False, argmax: bool = False) -> ParityReport:
    rng = random.Random(2)
    runtimes = {
        "torch_eager": _runtime(rng, 0.5, "fp32", Ran("cpu", "torch 2.13.0", "fp32"), argmax=argmax),
        "ort_cpu": _runtime(rng, 0.52, "fp32", Ran("cpu", "CPUExecutionProvider", "fp32")),
        "openvino": _runtime(rng, 0.6, "fp32", Ran("CPU", "OpenVINO 2026.4.1", "f32"), "left padding" if fail else ""),
        "onnx_reference": _runtime(rng, 0.44, "fp32", Ran("cpu", "onnx reference", "fp32")),
        "tensorrt_rtx": RuntimeParity("NOT_RUN", NO_GPU, "fp16"),
    }
    forms = {
        key: _runtime(rng, 0.5, "fp16" if "fp16" in key else "fp32", Ran("cpu", "CPUExecutionProvider", "fp32"))
        for key in ("onnx", "onnx_18", "ort_cpu", "openvino", "tensorrt_rtx.fp16")
    }
    notes = (
        "the module itself gives NaN or Inf in 1 results: one row fully masked, hidden.",
        "Half-precision forms ran in an evaluator that computes in the declared types.",
    )
    return ParityReport("FAIL" if fail else "PASS", runtimes, forms, notes)


def latency() -> LatencyReport:
    rng = random.Random(3)
    eager = {"1 sentence": 6.1e6, "32 sentences": 1.58e9, "batch=8,seq=128": 2.31e8}
    items = {"1 sentence": 1, "32 sentences": 32, "batch=8,seq=128": 8}
    tokens = {"1 sentence": 21, "32 sentences": 1348, "batch=8,seq=128": 1024}
    factors = {"torch_eager": 1.0, "torch_compile": 0.99, "ort_cpu": 0.52, "openvino": 0.39}
    shapes: dict[str, dict[str, LatencyRow]] = {}
    for workload, base in eager.items():
        rows = {}
        for runtime, factor in factors.items():
            mid = factor * (rng.uniform(0.93, 1.07) if runtime != "torch_eager" else 1)
            samples = tuple(int(base * mid * rng.uniform(0.97, 1.06)) for _ in range(24))
            interval = None if factor == 1.0 else (mid * 0.955, mid, mid * 1.05)
            judged = "baseline" if interval is None else "faster" if interval[2] < 1 else "no difference shown"
            if interval and interval[0] > 1:
                judged = "slower"
            median = base * mid
            rows[runtime] = LatencyRow(
                judged,
                "",
                median,
                median * 1.06 if workload != "32 sentences" else None,
                samples,
                interval,
                items[workload] / median * 1e9,
                tokens[workload] / median * 1e9,
                int(rng.uniform(90e6, 310e6)),
                Ran("cpu", {"ort_cpu": "CPUExecutionProvider"}.get(runtime, runtime), "fp32"),
            )
        rows["tensorrt_rtx"] = LatencyRow(reason=NO_GPU, kind="unavailable")
        shapes[workload] = rows
    settings: dict[str, str | int | float | bool] = {
        "threads": 2,
        "spinning": False,
        "seed": 7,
        "samples": 24,
        "cpu": "AMD EPYC 9B45",
    }
    return LatencyReport("torch_eager", settings, shapes, items, tokens)


def grid_latency() -> LatencyReport:
    """The same runtimes on a grid of sizes; the time grows with both, memory with their product."""
    plain = latency()
    shapes = {}
    for batch in (1, 8):
        for seq in (32, 64, 128):
            rows = plain.shapes["1 sentence"].items()
            shapes[f"batch={batch},seq={seq}"] = {
                name: dataclasses.replace(
                    row,
                    median_ns=row.median_ns * batch * seq / 32 if row.median_ns else None,
                    peak_bytes=row.peak_bytes + batch * seq * 10_000 if row.peak_bytes else None,
                )
                for name, row in rows
            }
    return dataclasses.replace(plain, shapes={**plain.shapes, **shapes})


def device_latency() -> LatencyReport:
    """The grid again; OpenVINO's calls timed by events on a device too, and its start from what it kept."""
    plain = grid_latency()
    more: dict[str, Any] = {"cached_load_ns": 4_400_000, "cached_first_ns": 5_500_000}
    parts = {"host_to_device": 11_000.0, "device": 1_230_000.0, "device_to_host": 33_000.0}
    shapes = {
        workload: {
            **rows,
            "openvino": dataclasses.replace(
                rows["openvino"], parts_ns=parts, device_ratio=(0.201, 0.211, 0.222), load_ns=900_000_000, **more
            ),
            "torch_eager": dataclasses.replace(rows["torch_eager"], parts_ns=parts),
        }
        for workload, rows in plain.shapes.items()
    }
    return dataclasses.replace(plain, shapes=shapes)


def layers(*, fail: bool = False) -> LayerReport:
    """Errors that grow along the layers; `fail`: OpenVINO's leave the bound in the fourth."""
    names = ("model.embeddings", *(f"model.encoder.layer.{layer}" for layer in range(LAYERS)), OUTPUTS[0])
    places = tuple(Layer(name, f"layer_norm_{number}", 0.5) for number, name in enumerate(names))

    def series(scale: float, jump: float = 1.0) -> LayerSeries:
        errors = []
        for number in range(len(names)):
            rms = scale * 1e-7 * (number + 1) * (jump if number >= 4 else 1)
            bound = 2.2e-7 * (number + 1)
            errors.append(LayerError("FAIL" if rms > bound else "PASS", "", rms, bound, 5 * rms, 9 * bound))
        return LayerSeries("fp32", errors=tuple(errors), changed=scale == 1.1)

    lines = {"torch_eager": series(1.0), "ort_cpu": series(1.1), "openvino": series(1.3, 40.0 if fail else 1.0)}
    return LayerReport(
        "left padding", places, {**lines, "torch_compile": LayerSeries("fp32", "no tensor can be marked")}
    )


def recommendation(*, fail: bool = False, folder: str = "out/minilm") -> Choice:
    """By the reports above."""
    checked, forms = parity(fail=fail), ("ort_cpu", "openvino")
    deployable = [Deployable(name, name, "fp32", {f"model.{name}.onnx": 1}, "PASS", "", name) for name in forms]
    return choose(folder, deployable, checked, latency())


def findings(**changes: Any) -> Findings:
    """Everything above together."""
    values: dict[str, Any] = {
        "manifest": manifest(),
        "fusion": fusion(),
        "parity": parity(),
        "latency": latency(),
        "layers": layers(),
        "recommendation": recommendation(),
        "maps": maps(),
        "environment": ENVIRONMENT,
        "folder": "out/minilm",
    }
    return Findings(**{**values, **changes})


def maps(layers: int = LAYERS, heads: int = 12) -> doc.Maps:
    """Weights that look like attention: a diagonal, a column that collects, and noise, mixed by head."""
    rng = np.random.default_rng(5)
    tokens = ("[CLS]", *SENTENCE.lower().rstrip(".").split(), ".", "[SEP]")
    size = len(tokens)
    made = []
    for layer in range(layers):
        scores = rng.normal(0, 1.2, (heads, size, size))
        scores += 3 * rng.random((heads, 1, 1)) * np.stack([np.eye(size, k=int(k)) for k in rng.integers(-1, 2, heads)])
        scores[:, :, -1] += layer * rng.random((heads, 1))
        weights = np.exp(scores)
        weights /= weights.sum(-1, keepdims=True)
        hidden = np.zeros((size, size), dtype=bool)
        hidden[:, size - layer :] = True
        weights = np.where(hidden, 0, weights)
        made.append(doc.Heatmap(f"model.encoder.layer.{layer}.attention.self", tokens, tokens, weights, hidden))
    return doc.Maps(made, SENTENCE, quoted=True)


ENVIRONMENT = {"Made": "2026-11-20 10:41 UTC", "CPU": "AMD EPYC 9B45, 2 cores", "System": "Linux x86-64"}


def main() -> None:
    from attnport.reporting import html

    page = html.page(document(findings(latency=grid_latency())))
    Path(sys.argv[1]).write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
