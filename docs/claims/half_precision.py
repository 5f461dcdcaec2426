"""Half precision against single: memory everywhere, time where the hardware computes in it."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnport.errors import AttnportError
from attnport.folder.machine import machine
from attnport.reporting.document import milliseconds, significant
from attnport.runtimes import base
from attnport.verbs.build import build
from attnport.verbs.export import WEIGHTS
from claims._artifacts import OPENVINO, ORT, exported, model
from claims._findings import Findings, Progress, Ratio, Verdict, exact, of_half, of_ratio, shown, table, unmeasured
from claims._ratios import ratios
from claims._runs import Effort, peaks, race, ratio

TITLE = "Half precision against single"
CLAIM = """Half precision halves the memory of weights and activations, and is faster where the hardware computes in it
(Micikevicius et al., "Mixed Precision Training", 2018; Kalamkar et al., "A Study of BFLOAT16", 2019)."""
SINGLE, HALF = "fp32", "bf16"
ENGINE, ENGINE_HALF = "tensorrt_rtx", "fp16"


@dataclass(frozen=True)
class Sizes:
    """`model` is a factory of `_models`; `shapes` are batches and lengths, `engine` the largest that engines take."""

    model: str
    shapes: tuple[tuple[int, int], ...]
    engine: tuple[int, int]
    effort: Effort


FULL = Sizes("encoder", ((1, 16), (1, 128), (8, 128)), (8, 512), Effort(4.0))
TOY = Sizes("full", ((1, 2), (1, 4)), (1, 8), Effort(0.0, 2, 2))


@dataclass(frozen=True)
class Pair:
    """One figure in single and in half precision, as shown, and half / single.

    Attributes:
        differs: What else the two sides differ in, which forbids to say that precision makes the ratio.
    """

    single: str
    half: str
    ratio: Ratio
    differs: str = ""


def measure(sizes: Sizes, progress: Progress) -> Findings:
    """Times OpenVINO in bfloat16 where the CPU has it, and compares what is stored and what is taken."""
    longest = max(length for _, length in (*sizes.shapes, sizes.engine))
    with tempfile.TemporaryDirectory(prefix="attnport-claims-") as scratch:
        folder = exported(sizes.model, Path(scratch), (f"seq=1:{longest}:{longest}",), (OPENVINO,), progress)
        pairs, missing = _openvino(folder, sizes, progress)
        more, without = _engines(folder, sizes.engine, progress)
    pairs |= more
    features = ", ".join(machine().features) or "none of those that matter here"
    how = f"""`bert_encoder` in the shape of all-MiniLM-L6, at batch x tokens. *OpenVINO* runs the same float32 graph
once in float32 and once in bfloat16: its CPU plugin has no float16. The processor's instruction sets: {features}.
*Peak memory* is what a run takes above the opened model, in a process of its own. An *engine* of TensorRT-RTX is built
in fp32 and in fp16, which needs no GPU: its file, and the scratch memory that it wants beside weights, inputs and
outputs."""
    return Findings(
        how=how,
        tables=(
            table(
                ("figure", "single", "half", "half / single"),
                [(name, pair.single, pair.half, shown(pair.ratio)) for name, pair in pairs.items()],
            ),
        ),
        pictures={"half_precision": ratios({name: pair.ratio for name, pair in pairs.items()}, "Half / single")},
        verdicts=[*map(_verdict, pairs, pairs.values()), *missing, *without, _ort_cpu()],
        figures={name: asdict(pair) for name, pair in pairs.items()},
    )


def _openvino(folder: Path, sizes: Sizes, progress: Progress) -> tuple[dict[str, Pair], list[Verdict]]:
    """Time and peak memory by shape; or why there is none."""
    found = base.get(OPENVINO).probe()
    if not found.available or HALF not in found.plans:
        why = found.reason or f"OpenVINO has no {HALF} on this CPU"
        return {}, [unmeasured(f"openvino {HALF}, time and peak memory", why)]
    models = {plan: model(folder, OPENVINO, plan) for plan in (SINGLE, HALF)}
    feeds = {f"{B} x {T}": models[SINGLE].feeds({"batch": B, "seq": T}) for B, T in sizes.shapes}
    rows = race({f"openvino, {shape}": dict.fromkeys(models, feed) for shape, feed in feeds.items()}, models,
                sizes.effort, progress)  # fmt: skip
    pairs = {
        f"openvino {HALF}, time {setting.partition(', ')[2]}": Pair(
            f"{milliseconds(row[SINGLE].median_ns)} ms", f"{milliseconds(row[HALF].median_ns)} ms", ratio(row[HALF])
        )
        for setting, row in rows.items()
    }
    progress("peak memory")
    first = models[SINGLE].feeds({"batch": 1, "seq": 1})
    taken = {plan: peaks(one, first, feeds) for plan, one in models.items()}
    for shape in list(feeds)[-1:]:
        pairs[f"openvino {HALF}, peak memory {shape}"] = _bytes(taken[SINGLE][shape], taken[HALF][shape])
    return pairs, []


def _engines(folder: Path, largest: tuple[int, int], progress: Progress) -> tuple[dict[str, Pair], list[Verdict]]:
    """Files and scratch memory of the engines; and that their time was not measured."""
    B, T = largest
    records: dict[str, Any] = {}
    fused: dict[str, str] = {}
    for plan in (SINGLE, ENGINE_HALF):
        progress(f"building an engine in {plan}")
        try:
            records[plan], proof = build(folder, ENGINE, plan, [f"batch=1:{B}:{B},seq=1:{T}:{T}"])
        except AttnportError as err:
            return {}, [unmeasured(f"{ENGINE} {plan}", err.message)]
        fused[plan] = f"{proof.fused}/{proof.attentions} fused"
    single, half = records[SINGLE], records[ENGINE_HALF]
    name = f"{ENGINE} {ENGINE_HALF}"
    files = (folder / WEIGHTS, folder / f"model.{ENGINE}.{ENGINE_HALF}.bin")
    weights, weights_half = (file.stat().st_size for file in files)
    pairs = {
        f"{ENGINE_HALF}, weights of the ONNX form": _bytes(weights, weights_half),
        f"{name}, engine file": _bytes(single.size_bytes, half.size_bytes),
        f"{name}, scratch {B} x {T}": _scratch(
            single.scratch_bytes, half.scratch_bytes, fused[SINGLE], fused[ENGINE_HALF]
        ),
    }
    return pairs, [unmeasured(f"{name}, time", machine().gpu_note)] if machine().gpu_note else []


def _verdict(name: str, pair: Pair) -> Verdict:
    """Less time, and half of the memory, where precision is all that differs."""
    if pair.differs:
        return unmeasured(name, f"{shown(pair.ratio)}, but {pair.differs}")
    return of_ratio(name, pair.ratio) if "time" in name else of_half(name, pair.ratio)


def _ort_cpu() -> Verdict:
    """ONNX Runtime's CPU provider, which casts to float32."""
    plans = base.get(ORT).probe().plans
    return unmeasured(
        "ort_cpu, time", f"it computes in {', '.join(plans)} alone: half-precision graphs are cast to float32"
    )


def _bytes(single: int, half: int) -> Pair:
    return Pair(f"{significant(single / 1e6)} MB", f"{significant(half / 1e6)} MB", exact(half, single))


def _scratch(single: int, half: int, fused: str, fused_half: str) -> Pair:
    """Scratch memory, of which an attention that is not fused takes a multiple: only like is compared with like."""
    pair = _bytes(single, half)
    differs = f"the two engines fuse differently: {fused} against {fused_half}" if fused != fused_half else ""
    return Pair(f"{pair.single}, {fused}", f"{pair.half}, {fused_half}", pair.ratio, differs)
