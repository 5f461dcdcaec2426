"""An export whose dims stay dynamic, which is tried; one that froze is refused by the name of the dim and the input."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_model
import torch
from representatives import representatives
from torch import nn

from attnport.artifacts import MANIFEST
from attnport.errors import ExportError, UsageError
from attnport.exporter import capture as capturing
from attnport.folder.workspace import open_folder, refuse_stranger
from attnport.jsonfile import digest_file
from attnport.parity.sizes import size_cases
from attnport.verbs.export import export

FROZEN = {
    "a loop": ("return x + sum(at for at in range(x.shape[1]))", "A Python loop over a size is unrolled"),
    "control flow": ("return x * 2 if x.shape[1] > 4 else x", "without a Python branch on a size"),
}
DYNAMIC = {
    "a size made a number": "return x * int(x.shape[1])",
    "a size made a float": "return x / float(x.shape[1])",
    "a length": "return x * torch.ones(len(x), 1, 1)",
    "a table sliced by a number": "return x + self.table[: int(x.shape[1])]",
    "numpy": "return x + torch.from_numpy(np.arange(x.shape[1], dtype=np.float32))[:, None]",
}


def declare(folder: Path, forward: str) -> str:
    path = folder / "frozen.py"
    path.write_text(
        "import numpy as np\nimport torch\nfrom torch import nn\nclass Model(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.table = nn.Parameter(torch.ones(512, 4))\n"
        f"    def forward(self, x):\n        {forward}\ndef factory():\n    return Model()\n"
    )
    return f"{path}:factory"


@pytest.mark.parametrize("name", FROZEN)
def test_a_dim_that_the_code_turns_into_a_constant(name: str, tmp_path: Path) -> None:
    forward, remedy = FROZEN[name]
    text = declare(tmp_path, forward)
    with pytest.raises(ExportError, match=r"dim 'seq' of input 'x'") as caught:
        export(text, tmp_path / "out", inputs=["x=float32[batch,seq,4]"])
    assert "froze" in caught.value.message
    assert remedy in caught.value.hint
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", representatives(DYNAMIC, ("a size made a number", "a table sliced by a number")))
def test_a_size_that_the_code_computes_with_stays_dynamic(name: str, tmp_path: Path) -> None:
    text = declare(tmp_path, DYNAMIC[name])
    manifest = export(text, tmp_path / "out", inputs=["x=float32[batch,seq,4]"])
    assert manifest.io.outputs[0].dims == ("batch", "seq", 4)


def test_inputs_that_may_be_masks_of_padding_are_told_how_to_be_declared(tmp_path: Path) -> None:
    class Masked(nn.Module):
        def forward(
            self, x: torch.Tensor, mask: torch.Tensor, key_padding_mask: torch.Tensor, ids: torch.Tensor
        ) -> torch.Tensor:
            return x * (mask * ids)[..., None] * (~key_padding_mask)[..., None]

    told = list[str]()
    inputs = (
        "x=float32[batch,seq,4]",
        "mask=int64[batch,seq]",
        "key_padding_mask=bool[batch,seq]",
        "ids=int64[batch,seq]",
    )
    export(Masked(), tmp_path / "out", inputs=inputs, tell=told.append)
    mask, hide, ids = told
    unknown = "is not declared as a mask, so that no test has padding in it: if it is a mask of padding, declare"
    assert mask == (
        f"mask=int64[batch,seq] {unknown} mask=int64[batch,seq]:padding where 1 is a real token, or "
        "mask=int64[batch,seq]:padding:hide where 1 is padding"
    )
    assert f"{unknown} key_padding_mask=bool[batch,seq]:padding where true is padding, or" in hide
    assert "key_padding_mask=bool[batch,seq]:padding:keep where true is a real token" in hide
    assert ids.startswith("no :high=N says which whole numbers ids=int64[batch,seq] may have")


class Baked(nn.Module):
    """The tiny model with something of the traced size left in the graph."""

    def __init__(self, module: nn.Module, bake: str) -> None:
        super().__init__()
        self.module, self.bake = module, bake

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, pooled = self.module(input_ids, attention_mask)
        if self.bake == "seq":
            return hidden * (input_ids.shape[1] / 5), pooled
        if self.bake == "batch":
            return hidden, pooled + (input_ids.shape[0] - 3) * 0.01
        return hidden * 1.001, pooled


@pytest.mark.parametrize(
    ("bake", "told"),
    [
        ("seq", "dim 'seq' of input 'input_ids', 'attention_mask' froze"),
        ("batch", "dim 'batch' of input 'input_ids', 'attention_mask' froze"),
        ("all", "the exported graph is not the module"),
    ],
)
def test_a_graph_that_is_right_at_the_traced_size_alone(
    bake: str, told: str, tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no tracer reports: the check of sizes has to."""
    real = capturing.capture
    monkeypatch.setattr(capturing, "capture", lambda module, io, **more: real(Baked(module, bake), io, **more))
    before = {path.name: digest_file(path) for path in tiny_artifact.iterdir()}
    with pytest.raises(ExportError, match=told):
        export(f"{tiny_model.__file__}:spec", tiny_artifact, force=True)
    assert {path.name: digest_file(path) for path in tiny_artifact.iterdir()} == before


LAYERS = """import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x + 1
def factory():
    return Model().eval()
"""


def test_the_first_module_that_a_graph_does_not_compute_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = capturing.capture

    def other(module: nn.Module, io: Any, **more: Any) -> Any:
        with torch.no_grad():
            (copied := copy.deepcopy(module)).get_submodule("layers.1.0").weight.mul_(1.1)
        return real(copied, io, **more)

    monkeypatch.setattr(capturing, "capture", other)
    (path := tmp_path / "layers.py").write_text(LAYERS)
    with pytest.raises(
        ExportError, match=r"is not the module: .*; the first module whose output differs is layers\.1\.0\."
    ):
        export(f"{path}:factory", tmp_path / "out", inputs=["x=float32[batch,seq,4]"])


def test_every_dim_is_tried_at_its_ends_and_at_primes() -> None:
    tried = [(dim, {name: dict(zip(("batch", "seq"), case.feeds["input_ids"].shape, strict=True))[name]
                    for name in ("batch", "seq")}) for dim, case in size_cases(tiny_model.IO)]  # fmt: skip
    assert len(tried) >= 5
    for name, sizes in (("batch", {1, 32}), ("seq", {1, 48})):
        assert sizes <= {size[name] for dim, size in tried if dim == name}
    assert {2, 13} <= {size for _, sizes in tried for size in sizes.values()}


def test_export_writes_a_folder_that_opens_and_is_not_made_twice(tmp_path: Path) -> None:
    text, out = f"{tiny_model.__file__}:spec", tmp_path / "out"
    first = export(text, out)
    assert open_folder(out) == first
    assert len(first.attentions) == 1
    assert export(text, out) == first
    assert export(text, out, force=True).stages["export"] != first.stages["export"]
    with np.load(out / "golden.npz", allow_pickle=False) as golden:
        outputs = [name for name in golden.files if "/out/" in name]
        assert outputs
        assert all(golden[name].dtype == np.float64 for name in outputs)


def test_the_artifact_of_another_model_is_replaced_and_that_is_said(tiny_artifact: Path, tmp_path: Path) -> None:
    other, said = tmp_path / "other.py", list[str]()
    shutil.copy(tiny_model.__file__, other)
    export(f"{other}:spec", tiny_artifact, tell=said.append)
    assert [f"of {tiny_model.__file__}:spec: it is replaced" in note for note in said].count(True) == 1
    said.clear()
    export(f"{other}:spec", tiny_artifact, force=True, tell=said.append)
    assert not any("is replaced" in note for note in said)


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    refuse_stranger(tmp_path / "new")
    refuse_stranger(tmp_path)
    (tmp_path / ".attnport-lock").touch()
    refuse_stranger(tmp_path)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UsageError, match=r"holds other files \(thesis\.tex\)"):
        refuse_stranger(tmp_path)
    (tmp_path / MANIFEST).touch()
    refuse_stranger(tmp_path)
