"""`file.py:factory` and `package.module:factory`: what a plain module's contract is read from, and its digests."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from loaded import load

from attnport.artifacts import ModelSpec
from attnport.errors import SpecError, UsageError
from attnport.sources.package import with_prefix
from attnport.sources.parsing import parse_input

HELPER = """
import torch
from torch import nn

SCALE = 2.0

def scaled(x):
    return x * SCALE

class Model(nn.Module):
    def forward(self, x):
        return scaled(x)

def factory():
    return Model()

ready = Model()
"""


def write(folder: Path, body: str, name: str = "model") -> str:
    path = folder / f"{name}.py"
    path.write_text(body)
    return f"{path}:factory"


def module(forward: str, init: str = "pass") -> str:
    return (
        "import torch\nfrom torch import nn\nclass Model(nn.Module):\n"
        f"    def __init__(self):\n        super().__init__()\n        {init}\n"
        f"    def forward(self, x, y=None):\n        {forward}\n"
        "def factory():\n    return Model()\n"
    )


X = "x=float32[batch,seq,4]"


def test_the_axes_of_outputs_follow_the_dims_of_inputs(tmp_path: Path) -> None:
    text = write(tmp_path, module("return x.transpose(0, 1), x.mean(1), x.sum((0, 1))"))
    spec = load(text, inputs=[X])
    assert [one.dims for one in spec.io.outputs] == [("seq", "batch", 4), ("batch", 4), (4,)]
    assert [str(dim) for dim in spec.io.dims] == ["batch=1:8:64", "seq=1:128:512"]


def test_a_mask_declared_is_a_mask(tmp_path: Path) -> None:
    text = write(tmp_path, module("return x * y[..., None]"))
    spec = load(text, inputs=[X, "y=int64[batch,seq]:padding:hide"], dims=["seq=1:2:3"])
    assert [str(mask) for mask in spec.io.masks] == ["padding(y)"]
    assert spec.io.masks[0].polarity == "hide"
    assert spec.io.dim("seq").max == 3
    assert spec.source.dims == ("seq=1:2:3",)


def test_lengths_of_a_dim_that_no_input_has_are_refused(tmp_path: Path) -> None:
    text = write(tmp_path, module("return x * y[:, None, None]"))
    with pytest.raises(UsageError, match="got keys=men; the inputs have batch, seq"):
        load(text, inputs=[X, "y=int64[batch]:padding:keys=men"])
    spec = load(text, inputs=[X, "y=int64[batch]:padding:keys=seq"])
    assert (spec.io.masks[0].carries, spec.io.masks[0].keys) == ("lengths", "seq")


def test_parts_of_a_declaration() -> None:
    spec, mask, *_ = parse_input(" ids = int64[batch, seq, 3]:high=30522 ")
    assert (spec.name, spec.dtype, spec.dims, spec.high, mask) == ("ids", "int64", ("batch", "seq", 3), 30522, None)


def test_a_factory_may_be_a_module_or_a_class(tmp_path: Path) -> None:
    text = write(tmp_path, HELPER).removesuffix("factory")
    for name in ("factory", "ready", "Model"):
        assert [one.name for one in load(f"{text}{name}", inputs=[X]).io.outputs] == ["output"]


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("SCALE = 2.0", "SCALE = 3.0", True),  # beside the class, and as much a part of what it computes
        ("return x * SCALE", "return x + SCALE", True),
        ("return scaled(x)", "return scaled(x) + 1", True),
        ("", "", False),
    ],
)
def test_the_code_digest_changes_with_the_file(old: str, new: str, changes: bool, tmp_path: Path) -> None:
    text = write(tmp_path, HELPER)
    before = load(text, inputs=[X]).source
    write(tmp_path, HELPER.replace(old, new))
    after = load(text, inputs=[X]).source
    assert (after.code_digest != before.code_digest) is changes
    assert after.weights_digest == before.weights_digest


def test_a_package_is_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_package").mkdir()
    (tmp_path / "their_package" / "__init__.py").touch()
    write(tmp_path / "their_package", HELPER, "inner")
    monkeypatch.syspath_prepend(tmp_path)
    assert load("their_package.inner:factory", inputs=[X]).name == "inner.factory"
    with pytest.raises(SpecError, match=r"no module 'their_package\.outer'"):
        load("their_package.outer:factory")
    with pytest.raises(SpecError, match="not a module's name"):
        load("their-package:factory")
    sys.modules.pop("their_package.inner")


def test_a_package_of_the_current_folder_is_found_with_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        tmp_path, "def make():\n    import near_model\n    return near_model.Model()\nfactory = make\n", "near_package"
    )
    write(tmp_path, HELPER, "near_model")
    # Installed in parts, as google.protobuf is: on one module path, a file goes before a folder without __init__.py.
    write(tmp_path, "raise SystemExit('the wrong module')", "far_parts")
    (tmp_path / "installed" / "far_parts").mkdir(parents=True)
    write(tmp_path / "installed" / "far_parts", "", "part")
    monkeypatch.syspath_prepend(tmp_path / "installed")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.chdir(tmp_path)
    assert load("near_package:factory", inputs=[X]).name == "near_package.factory"
    importlib.import_module("far_parts.part")
    for name in ("near_package", "near_model", "far_parts.part", "far_parts"):
        sys.modules.pop(name)


def test_a_file_imports_those_beside_it_now_and_when_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "from beside_shapes import WIDTH\ndef factory():\n    import beside_model\n    return beside_model.factory()\n"
    )
    write(tmp_path, "WIDTH = 4\n", "beside_shapes")
    write(tmp_path, HELPER, "beside_model")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    spec = load(write(tmp_path, code, "beside"), inputs=[X])
    assert {Path(name).name for name in spec.depends} >= {"beside_model.py", "beside_shapes.py"}
    for name in ("beside_shapes", "beside_model"):
        sys.modules.pop(name)


@pytest.mark.parametrize(("wrong", "near"), [("mkae", "make"), ("Modle", "Model")])
def test_a_function_that_is_spelled_wrong_is_asked_about(wrong: str, near: str, tmp_path: Path) -> None:
    text = write(tmp_path, f"{HELPER}\ndef make():\n    return factory()\nclass Model: ...\n")
    with pytest.raises(SpecError, match=f"there is no '{wrong}'") as told:
        load(text.replace(":factory", f":{wrong}"))
    assert told.value.hint == f"Is it {near}?"


def test_a_prefix_is_only_needed_where_a_name_is_two_things(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "code").mkdir()
    assert with_prefix("model") == "hf:model"
    assert with_prefix(str(tmp_path / "model")) == f"hf:{tmp_path}/model"
    assert with_prefix("owner/name") == "hf:owner/name"
    (tmp_path / "model").rename(tmp_path / "code" / "mini")
    assert with_prefix("code/mini") == with_prefix("hf:code/mini") == "hf:./code/mini", "no id of the hub elsewhere"
    assert with_prefix("theirs.onnx") == "onnx:theirs.onnx"
    for text in ("bert_encoder", "code", "file.py:make", "folder/file.py", "package.module:make", "hf:x", "onnx:x", ""):
        assert with_prefix(text) == text


def test_a_package_of_the_current_folder_stands_in_for_no_installed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "raise SystemExit('the wrong module')", "colorsys")
    write(tmp_path, HELPER, "near_model")
    before = list(sys.meta_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match="there is no 'factory'; it defines hls_to_rgb"):
        load("colorsys:factory")
    with pytest.raises(SpecError, match="no module 'nowhere'"):
        load("nowhere:factory")
    assert sys.meta_path == before


def test_a_model_of_ours_takes_dims_and_no_inputs() -> None:
    spec = load("bert-encoder", dims=["seq=1:8:16"])
    assert isinstance(spec, ModelSpec)
    assert spec.io.dim("seq").max == 16
    with pytest.raises(UsageError, match="declares its own inputs"):
        load("bert_encoder", inputs=[X])
    with pytest.raises(UsageError, match="the model takes it from"):
        load("bert_encoder", dims=["seq=1:8:999999"])


@pytest.mark.parametrize(
    ("forward", "init", "sizes"),
    [
        ("return x.view(x.shape[0], 9, 4)", "", "'seq=9:9:9'"),
        ("return x.view(2, 9, 4)", "", "'batch=2:2:2', 'seq=9:9:9'"),
        ("return x + self.table", "self.table = torch.ones(1, 27, 4)", "'seq=27:27:27'"),
    ],
)
def test_the_size_that_a_module_takes_alone_is_named_as_it_is_given(
    forward: str, init: str, sizes: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError) as told:
        load(write(tmp_path, module(forward, init)), inputs=[X])
    assert f"take that size alone: dims=[{sizes}]" in told.value.hint


@pytest.mark.parametrize(
    ("forward", "told"),
    [
        ("return x.view(3, 5, 4)", "dim 'batch' of input 'x' is frozen"),
        ("return x.view(x.shape[0], 5, 4)", "dim 'seq' of input 'x' is frozen"),
        ("return x + self.table", "dim 'seq' of input 'x' is frozen"),
        ("return None", "returns NoneType"),
        ("raise KeyError('k')", "forward raised KeyError"),
    ],
)
def test_a_module_that_takes_one_size_only_or_returns_no_tensors(forward: str, told: str, tmp_path: Path) -> None:
    text = write(tmp_path, module(forward, "self.table = torch.ones(5, 4)"))
    with pytest.raises(SpecError, match=told):
        load(text, inputs=[X])
