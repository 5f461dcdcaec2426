"""Modules whose weights are in half precision: exported in float32, with the inputs as they are declared."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import attnport
from attnport.errors import SpecError

MODULE = """
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x, ids):
        x = (x + self.words(ids)).to(CAST)
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        return self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

def make():
    torch.manual_seed(1)
    return Layer().to(torch.HALF)
"""


def written(folder: Path, half: str, cast: str = "self.out.weight.dtype") -> str:
    path = folder / "layer.py"
    path.write_text(MODULE.replace("HALF", half).replace("CAST", cast))
    return f"{path}:make"


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_a_module_in_half_precision_is_right_against_its_own_weights_in_float64(half: str, tmp_path: Path) -> None:
    said: list[str] = []
    text = written(tmp_path, half)
    inputs = [f"x={half}[batch,seq,32]", "ids=int64[batch,seq]:high=50"]
    artifact = attnport.export(text, tmp_path / "out", inputs=inputs, tell=said.append)
    assert [line.partition(":")[0] for line in said] == [f"the module is in {half}"]
    assert [spec.dtype for spec in (*artifact.manifest.io.inputs, *artifact.manifest.io.outputs)] == [
        half,
        "int64",
        "float32",
    ]
    artifact.fuse("ort_cpu")
    assert artifact.check("ort_cpu").verdict == "PASS"
    namespace: dict[str, object] = {"__name__": "layer"}
    exec(Path(text.partition(":")[0]).read_text(), namespace)
    module = namespace["make"]().double()  # type: ignore[operator]
    x, ids = torch.randn(2, 5, 32).to(getattr(torch, half)), torch.randint(0, 50, (2, 5))
    with artifact.open("ort_cpu") as session, torch.no_grad():
        got = session.run(x=x, ids=ids)["output"]
        assert np.abs(got - module(x.double(), ids).numpy()).max() < 1e-5


@pytest.mark.slow
def test_a_bundle_takes_the_declared_inputs(tmp_path: Path) -> None:
    inputs = ["x=float16[batch,seq,32]", "ids=int64[batch,seq]:high=50"]
    artifact = attnport.export(written(tmp_path, "float16"), tmp_path / "out", inputs=inputs)
    artifact.fuse("ort_cpu")
    assert artifact.check("ort_cpu").verdict == "PASS"
    artifact.bundle(tmp_path / "app", lang="python")
    from attnport_bundle import load

    x, ids = np.ones((2, 5, 32), np.float16), np.ones((2, 5), np.int64)
    with load(tmp_path / "app") as model, artifact.open("torch_eager") as session:
        assert np.abs(model.run(x=x, ids=ids)["output"] - session.run(x=x, ids=ids)["output"]).max() < 1e-5


@pytest.mark.slow
def test_a_module_in_memory_stays_in_half_precision_itself(tmp_path: Path) -> None:
    namespace: dict[str, object] = {"__name__": "layer"}
    exec(Path(written(tmp_path, "bfloat16").partition(":")[0]).read_text(), namespace)
    module = namespace["make"]()  # type: ignore[operator]
    before = copy.deepcopy(module)
    x, ids = torch.randn(2, 5, 32, dtype=torch.bfloat16), torch.randint(0, 50, (2, 5))
    said: list[str] = []
    artifact = attnport.export(module, tmp_path / "out", args=(x, ids), tell=said.append)
    assert "the module is in bfloat16" in said[0]
    artifact.fuse("ort_cpu")
    with torch.no_grad():
        assert torch.equal(module(x, ids), before(x, ids))
    with artifact.open("ort_cpu") as session:
        got = session.run(x=x.float(), ids=ids)["output"]
        assert np.abs(got - module.double()(x.double(), ids).detach().numpy()).max() < 1e-5


def test_a_forward_that_casts_to_half_precision_itself_is_told_so(tmp_path: Path) -> None:
    text = written(tmp_path, "float16", cast="torch.float16")
    with pytest.raises(SpecError, match="dtype") as caught:
        attnport.export(text, tmp_path / "out", inputs=["x=float32[batch,seq,32]", "ids=int64[batch,seq]:high=50"])
    assert "x.to(self.weight.dtype)" in caught.value.hint


def test_a_module_in_double_is_exported_in_float32_and_says_so(tmp_path: Path) -> None:
    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.linear = nn.Linear(8, 8, dtype=torch.float64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).softmax(-1)

    module, x, said = Linear(), torch.randn(2, 8, dtype=torch.float64), list[str]()
    artifact = attnport.export(module, tmp_path / "out", args=(x,), tell=said.append)
    assert "the module is in float64" in said[0]
    artifact.fuse("ort_cpu")
    with artifact.open("ort_cpu") as session:
        (got,) = session.run(x=x.numpy()).values()
    assert np.abs(got - module(x).detach().numpy()).max() < 1e-6


RAISES = """
import torch
from torch import nn

class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.project = nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (2, 8)).transpose(1, 2) for each in self.project(x).chunk(3, -1))
        angles = torch.arange(x.shape[1], dtype=torch.float32)[:, None]
        return nn.functional.scaled_dot_product_attention(q * angles.cos(), k, v).transpose(1, 2).flatten(2)
"""


def test_a_module_that_raises_in_half_precision_is_no_failure_and_its_line_is_told(tmp_path: Path) -> None:
    (tmp_path / "turned.py").write_text(RAISES)
    artifact = attnport.export(
        f"{tmp_path}/turned.py:Turned", tmp_path / "out", inputs=["x=float32[batch,seq,16]"],
        dims=["batch=1:2:3", "seq=1:4:9"],
    )  # fmt: skip
    artifact.fuse(["ort_cpu", "ort_cuda"])
    report = artifact.check()
    form = report.forms["ort_cuda.fp16"]
    assert (report.verdict, form.verdict) == ("PASS", "NOT_RUN")
    for part in ("PyTorch cannot run the module in fp16", "Half", "(turned.py, line 14: return nn.functional"):
        assert part in form.reason
    assert artifact.bundle(tmp_path / "app", lang="python")


CASTS = """
import torch
from torch import nn

class Casting(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.project, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def attend(self, x, mask, cast):
        q, k, v = (cast(each.unflatten(-1, (2, 8)).transpose(1, 2)) for each in self.project(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=(mask != 0)[:, None, None])
        return y.transpose(1, 2).flatten(2)

class Half(Casting):
    def forward(self, x, mask):
        return self.out(self.attend(x, mask, torch.Tensor.half).float())

class Autocast(Casting):
    def forward(self, x, mask):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.out(self.attend(x, mask, lambda each: each)).float()

class Double(Casting):
    def forward(self, x, mask):
        return self.out(self.attend(x, mask, torch.Tensor.double).float())
"""


@pytest.mark.parametrize(("name", "fused"), [("Half", 1), ("Autocast", 1), ("Double", 0)])
def test_a_forward_that_casts_around_attention_is_right_on_every_runtime(name: str, fused: int, tmp_path: Path) -> None:
    (tmp_path / "casting.py").write_text(CASTS)
    artifact = attnport.export(
        f"{tmp_path}/casting.py:{name}", tmp_path / "out", dims=["batch=1:2:3", "seq=1:4:9"],
        inputs=["x=float32[batch,seq,16]", "mask=int64[batch,seq]:padding"],
    )  # fmt: skip
    assert artifact.fuse(["ort_cpu", "openvino"]).targets["ort_cpu"].fused == fused
    report = artifact.check(["ort_cpu", "openvino", "onnx_reference"])
    assert {row.verdict for row in report.runtimes.values()} == {"PASS"}, report
