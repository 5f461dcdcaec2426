"""A tiny attention as an artifact folder: one head, a padding mask, weights in `weights.bin`, goldens."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attnport.artifacts import (
    FORMAT,
    CaseResult,
    Form,
    FusionItem,
    FusionReport,
    FusionTable,
    IOContract,
    Manifest,
    ParityReport,
    Ran,
    RuntimeParity,
    Source,
    SourceAttention,
    Verdict,
)
from attnport.dims import Dim, TensorSpec
from attnport.folder.workspace import change, create, model_digest
from attnport.jsonfile import read, to_json
from attnport.masks import MaskSpec
from attnport.parities import Basis

E = 8
IO = IOContract(
    inputs=(
        TensorSpec("ids", "int64", ("batch", "seq"), high=50),
        TensorSpec("attention_mask", "int64", ("batch", "seq")),
    ),
    outputs=(TensorSpec("hidden", "float32", ("batch", "seq", E)), TensorSpec("pooled", "float32", ("batch", E))),
    dims=(Dim("batch", 1, 2, 8), Dim("seq", 1, 5, 16)),
    masks=(MaskSpec(("padding",), "attention_mask"),),
)
LENGTHS = {"golden-0": [5, 3], "golden-1": [7], "golden-2": [1, 4, 2]}


def module() -> Any:
    import torch
    from torch import nn

    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, E)
            self.q, self.k, self.v, self.out = (nn.Linear(E, E) for _ in range(4))

        def forward(self, ids: Any, attention_mask: Any) -> Any:
            x_BTE = self.embed(ids)
            keep_B1ST = attention_mask.bool()[:, None, None, :].expand(-1, -1, ids.shape[1], -1)
            q, k, v = (part(x_BTE).unsqueeze(1) for part in (self.q, self.k, self.v))
            y_BTE = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep_B1ST).squeeze(1)
            hidden = self.out(y_BTE) + x_BTE
            weights = attention_mask.unsqueeze(-1).to(hidden.dtype)
            return hidden, (hidden * weights).sum(1) / weights.sum(1).clamp_min(1)

    torch.manual_seed(7)
    return Tiny().eval()


def export(folder: Path, opset: int = 23) -> None:
    """Writes `model.onnx` and `weights.bin` into `folder`."""
    import torch

    with torch.no_grad():
        program = torch.onnx.export(
            module(),
            (torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 5, dtype=torch.int64)),
            dynamo=True,
            opset_version=opset,
            input_names=[spec.name for spec in IO.inputs],
            output_names=[spec.name for spec in IO.outputs],
            dynamic_shapes={name: {0: "batch", 1: "seq"} for name in ("ids", "attention_mask")},
            verbose=False,
        )
    save(program.model_proto, folder)


def save(model: Any, folder: Path) -> None:
    """Writes `model.onnx` and `weights.bin` into `folder`."""
    import onnx

    onnx.save_model(
        model,
        folder / "model.onnx",
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location="weights.bin",
        size_threshold=200,
    )


def feeds(lengths: list[int], seed: int) -> dict[str, np.ndarray[Any, Any]]:
    random, size = np.random.default_rng(seed), max(lengths)
    mask = (np.arange(size)[None, :] < np.asarray(lengths)[:, None]).astype(np.int64)
    return {"ids": random.integers(0, 50, (len(lengths), size)), "attention_mask": mask}


def ones(batch: int = 2, size: int = 5) -> dict[str, np.ndarray[Any, Any]]:
    """Feeds without padding, each token the first word."""
    return {"ids": np.ones((batch, size), np.int64), "attention_mask": np.ones((batch, size), np.int64)}


def goldens() -> dict[str, np.ndarray[Any, Any]]:
    """What export stores: inputs, float64 outputs, valid elements, and eager's outputs in float32 and float16."""
    import torch

    arrays: dict[str, np.ndarray[Any, Any]] = {}
    with torch.no_grad():
        for seed, (case, lengths) in enumerate(LENGTHS.items()):
            given = feeds(lengths, seed)
            tensors = {name: torch.from_numpy(array) for name, array in given.items()}
            exact, eager, half = (made(**tensors) for made in (module().double(), module(), module().half()))
            for name, array in given.items():
                arrays[f"{case}/in/{name}"] = array
            for spec, reference, single, narrow in zip(IO.outputs, exact, eager, half, strict=True):
                arrays[f"{case}/out/{spec.name}"] = reference.numpy()
                arrays[f"{case}/eager/{spec.name}"] = single.numpy()
                arrays[f"{case}/eager.fp16/{spec.name}"] = narrow.numpy()
                valid = given["attention_mask"].astype(bool) if spec.name == "hidden" else np.ones(len(lengths), bool)
                arrays[f"{case}/valid/{spec.name}"] = valid
    return arrays


def manifest(**changes: Any) -> Manifest:
    """The manifest of a folder that holds the form `ort_cpu` only."""
    whole = Manifest(
        format=FORMAT,
        attnport="0",
        name="tiny",
        source=Source("tests/tiny.py:module", code_digest="c" * 64, weights_digest="d" * 64),
        io=IO,
        opset=23,
        attentions=(SourceAttention("attention", "", "scaled_dot_product_attention"),),
        tokenizer=None,
        versions={"torch": "2"},
        files={},
        forms={"ort_cpu": Form("ort_cpu", "fp32", "model.ort_cpu.onnx", 23)},
    )
    return dataclasses.replace(whole, **changes)


def parity(verdict: Verdict = "PASS", reason: str = "") -> ParityReport:
    case = CaseResult("full", "hidden", verdict, reason, 1, 0.0, 1.0, 0.0, 1.0, 0.0, None, 0)
    one = RuntimeParity(verdict, reason, "fp32", Ran("CPU", "CPUExecutionProvider", "float32"), (case,))
    return ParityReport(verdict, {"ort_cpu": one}, {"ort_cpu": one})


def fusion() -> FusionReport:
    item = FusionItem("attention", "ort_cpu", "padding", "Attention", True, "")
    return FusionReport({"ort_cpu": FusionTable(1, 1, (item,), "model.ort_cpu.onnx", "fp32", "ort_cpu")})


def make(folder: Path, exported: Path, arrays: Mapping[str, Any], report: ParityReport | None = None) -> Path:
    """Writes an artifact folder: the export at `exported` as its model and form, goldens, fusion and parity."""
    with create(folder, manifest()) as edit:
        for name, source in {"model.onnx": "model.onnx", "model.ort_cpu.onnx": "model.onnx"}.items():
            edit.path(name).write_bytes((exported / source).read_bytes())
        edit.path("weights.bin").write_bytes((exported / "weights.bin").read_bytes())
        with edit.path("golden.npz").open("wb") as file:
            np.savez(file, **arrays)
        edit.path("fusion.json").write_text(to_json(fusion()))
        edit.finish("fuse", "1")
    return folder if report is None else judged(folder, report)


def edit_manifest(folder: Path, edited: Callable[[Manifest], Manifest]) -> Path:
    """Changes a folder's manifest as a verb would, which leaves a stage `again`; returns the folder.

    A parity report is then of the changed folder.
    """
    with change(folder) as edit:
        edit.manifest = edited(edit.manifest)
        edit.finish("again", "1")
    parity = folder / "parity.json"
    return judged(folder, read(ParityReport, parity)) if parity.is_file() else folder


def edit_source(folder: Path, **changes: Any) -> Path:
    """Changes what a folder's manifest says of its source."""
    return edit_manifest(folder, lambda m: dataclasses.replace(m, source=dataclasses.replace(m.source, **changes)))


def judged(folder: Path, report: ParityReport, **files: str) -> Path:
    """Writes a parity report on what a folder holds, as `check` does, but for `files` of other digests."""
    with change(folder) as edit:
        manifest = dataclasses.replace(edit.manifest, files={**edit.manifest.files, **files})
        edit.write("parity.json", on(manifest, report))
        edit.finish("check", "1")
    return folder


def on(manifest: Manifest, report: ParityReport) -> ParityReport:
    """A report whose rows are of what a folder holds."""

    def of(name: str, row: RuntimeParity, form: bool) -> RuntimeParity:
        model = model_digest(manifest, name, row.plan, form=form)
        return dataclasses.replace(row, basis=Basis(model, "", "", "", False))

    return dataclasses.replace(
        report,
        runtimes={name: of(name, row, False) for name, row in report.runtimes.items()},
        forms={name: of(name, row, True) for name, row in report.forms.items()},
    )


def rms(values: np.ndarray[Any, Any]) -> float:
    return math.sqrt(float(np.mean(np.square(values))))
