"""One attention, as a module and as the ONNX file that its export gives: what every runtime is tried on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from attnport.artifacts import FORMAT, EngineRecord, Form, IOContract, Manifest, ModelSpec, Source
from attnport.dims import Dim, TensorSpec
from attnport.folder.workspace import create
from attnport.masks import MaskSpec
from attnport.verbs.build import build
from attnport.verbs.bundle import bundle
from attnport.verbs.export import export

VOCAB, WIDTH, HEADS = 1 << 15, 64, 2
"""The table of words is 8 MiB in float32: a session that is not freed shows in the memory of the process."""


def contract(dtype: str = "float32") -> IOContract:
    """Token ids and a padding mask in; the attention's own output and the lengths out."""
    return IOContract(
        inputs=(
            TensorSpec("ids", "int64", ("batch", "seq"), VOCAB),
            TensorSpec("keep", "bool", ("batch", "seq")),
        ),
        outputs=(
            TensorSpec("attended", dtype, ("batch", "seq", WIDTH)),
            TensorSpec("lengths", "int64", ("batch",)),
        ),
        dims=(Dim("batch", 1, 2, 8), Dim("seq", 1, 8, 32)),
        masks=(MaskSpec(("padding",), "keep"),),
        positions="none",
    )


class OneAttention(nn.Module):
    """Embedding, projections, one attention whose output is the model's."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, WIDTH)
        self.project = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, ids: torch.Tensor, keep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        B, S = ids.shape
        q, k, v = self.project(self.words(ids)).view(B, S, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        mask_B1SS = keep[:, None, None, :].expand(B, 1, S, S)
        mixed_BHSD = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask_B1SS)
        return mixed_BHSD.transpose(1, 2).reshape(B, S, WIDTH), keep.sum(1)


def make() -> OneAttention:
    """The module, the same every time, with values of order one."""
    torch.manual_seed(0)
    module = OneAttention().eval()
    with torch.no_grad():
        module.project.weight.mul_(3)
    return module


def spec() -> ModelSpec:
    """What `attnport export` is given."""
    return ModelSpec("one", Source("one"), contract(), make)


@dataclass(frozen=True)
class Model:
    """The module's spec, its exports by plan, a bundle of the fp32 one, and a folder for engines."""

    spec: ModelSpec
    files: dict[str, Path]
    bundle: Path
    engines: Path

    def engine(self, target: str, plan: str) -> tuple[Path, EngineRecord]:
        """An engine, built as a user builds it when it is first asked for."""
        export(f"{__file__}:spec", self.engines)
        record, _ = build(self.engines, target, plan)
        return self.engines / record.file, record


def pack(folder: Path, exported: Path) -> Path:
    """A bundle of an fp32 export, made as a user makes it, of an artifact folder in `folder`."""
    artifact, io = folder / "artifact", contract()
    feeds = {"ids": np.arange(10).reshape(2, 5), "keep": np.tri(5, dtype=bool)[2:4]}
    arrays = {f"golden-0/in/{name}": array for name, array in feeds.items()}
    tensors = {name: torch.from_numpy(array) for name, array in feeds.items()}
    with torch.no_grad():
        exact, eager = make().double()(**tensors), make()(**tensors)
    for spec, reference, single in zip(io.outputs, exact, eager, strict=True):
        valid = feeds["keep"] if spec.name == "attended" else np.ones(2, bool)
        arrays |= {
            f"golden-0/{kind}/{spec.name}": array
            for kind, array in (("out", reference.numpy()), ("eager", single.numpy()), ("valid", valid))
        }
    manifest = Manifest(
        FORMAT,
        "0",
        "one",
        Source("one", code_digest="c" * 64, weights_digest="d" * 64),
        io,
        23,
        (),
        None,
        {},
        {},
        forms={"ort_cpu": Form("ort_cpu", "fp32", "model.ort_cpu.onnx", 23)},
    )
    with create(artifact, manifest) as edit:
        edit.path("model.onnx").write_bytes(exported.read_bytes())
        edit.path("model.ort_cpu.onnx").write_bytes(exported.read_bytes())
        with edit.path("golden.npz").open("wb") as file:
            np.savez(file, **arrays)
        edit.finish("export", "by hand")
    return bundle(artifact, folder / "app", unverified=True)
