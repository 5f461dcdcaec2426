"""attnport from Python: a module in memory, its artifact's methods, what they print, and assert_parity."""

from __future__ import annotations

import copy
import inspect
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import structured_modules as modules
import torch
from torch import nn

import attnport
from attnport.artifacts import Dim
from attnport.cli import cli
from attnport.errors import SpecError, UnavailableError, UsageError
from attnport.exporter.capture import dynamic_dims
from attnport.folder.given import Given
from attnport.runtimes import base
from attnport.testing import assert_parity
from attnport.verbs._arguments import as_calls

X = torch.randn(2, 5, 16)


class Encoder(nn.Module):
    """Token ids and a padding mask to hidden states by name."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(50, 16), nn.Parameter(torch.randn(48, 16))
        self.layer = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        x = self.words(ids) + self.places[: ids.shape[1]]
        hidden, _ = self.layer(x, x, x, key_padding_mask=attention_mask == 0, need_weights=False)
        return {"hidden": hidden, "nothing": None, "last": hidden + 1}


IDS, MASK = torch.randint(0, 50, (2, 7)), torch.ones(2, 7, dtype=torch.int64)


@pytest.fixture(scope="module")
def module() -> Encoder:
    return Encoder().train()


@pytest.fixture(scope="module")
def artifact(module: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[attnport.Artifact]:
    folder = tmp_path_factory.mktemp("api") / "out"
    return attnport.export(module, str(folder), args=(IDS, MASK), outputs="hidden")


def test_names_dims_and_marks_come_from_the_forward_and_the_examples(
    artifact: attnport.Artifact, module: Encoder
) -> None:
    io = artifact.manifest.io
    assert [str(spec) for spec in io.inputs] == ["ids=int64[batch,seq]", "attention_mask=int64[batch,seq]"]
    assert io.inputs[0].high == 50
    assert [mask.input for mask in io.masks] == ["attention_mask"]
    assert io.dims[1] == Dim("seq", 1, 48, 48)  # as many as there are places
    assert [str(spec) for spec in io.outputs] == ["hidden=float32[batch,seq,16]"]
    assert module.training  # it was copied
    assert type(module) is Encoder


@pytest.mark.parametrize(
    ("hint", "call"),
    [
        ("Make it with: attnport fuse out.v2 --target ort_cpu.", "attnport.fuse('out.v2', target='ort_cpu')"),
        ("Run: attnport tune 'my out' --text FILE --max-drop 5%", "attnport.tune('my out', text=FILE, max_drop='5%')"),
        ("attnport check out --bisect; or not.", "attnport.check('out')"),  # which is of the command line alone
        ("give it: attnport check out --trust-source", "attnport.check('out', trust_source=True)"),
        ("Make one with: attnport export MODEL -o out", "attnport.export(MODEL, folder='out')"),
        ("attnport check OUT --bundle app compares the two.", "attnport.check(OUT, bundle='app')"),
        ("without it, as attnport export does unless asked", None),
        ("attnport list runtimes", None),
    ],
)
def test_the_command_of_a_hint_is_a_call_in_python(hint: str, call: str | None) -> None:
    assert list(as_calls(hint)) == ([] if call is None else [call])


def test_an_artifact_of_a_module_in_memory_is_fused_checked_opened_and_bundled(
    artifact: attnport.Artifact, module: Encoder, tmp_path: Path
) -> None:
    with pytest.raises(UnavailableError, match="there is no form for ort_cpu") as caught, artifact.open("ort_cpu"):
        pass
    assert caught.value.__notes__ == [f"in Python: attnport.fuse({str(artifact.folder)!r}, target='ort_cpu')"]
    assert artifact.verdict == "NOT_RUN"
    assert "1/1" in str(artifact.fuse("ort_cpu"))
    report = artifact.check("ort_cpu")
    assert report.verdict == artifact.verdict == "PASS"
    assert "parity against float64: PASS" in str(report)
    with artifact.open("ort_cpu") as session:
        got = session.run(ids=IDS, attention_mask=MASK.numpy())["hidden"]
    with torch.no_grad():
        np.testing.assert_allclose(got, copy.deepcopy(module).eval()(IDS, MASK)["hidden"].numpy(), atol=1e-5)
    with artifact.open("torch_eager") as session:
        assert session.run(ids=IDS, attention_mask=MASK)["hidden"].shape == (2, 7, 16)
    assert (artifact.bundle(str(tmp_path / "app"), lang="python") / "python").is_dir()
    html = artifact._repr_html_()
    assert "PASS" in html
    assert "fused, ort_cpu" in html
    assert "1/1" in html
    assert str(artifact).splitlines()[0] == "Encoder: opset 23"
    page = artifact.report()
    assert page.is_file()
    assert "<iframe" in str(page._repr_html_())
    assert "in memory" in page.read_text(encoding="utf-8")


class Scaled(torch.nn.Module):
    """A module whose attribute is no weight, and that notes in a buffer that it ran."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.register_buffer("ran", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.ran.fill_(1)
        return x * self.weight * self.scale + self.ran


def test_another_module_with_the_same_weights_is_exported_again(tmp_path: Path) -> None:
    told: list[str] = []
    artifacts = []
    for scale in (2.0, 3.0, 3.0):
        module = Scaled(scale).eval()
        artifact = attnport.export(module, tmp_path / "out", inputs=["x=float32[batch,4]"], tell=told.append)
        artifacts.append(artifact)
        assert module.ran == 0
        assert bool(artifact.manifest.forms) == (len(artifacts) == 3)  # the third is the second
        artifact.fuse("ort_cpu")
        assert artifact.check("ort_cpu").verdict == "PASS"
        with artifact.open("ort_cpu") as session:
            assert session.run(x=torch.ones(1, 4))["output"].tolist() == [[scale + 1] * 4]
    assert len([line for line in told if "writes to ran, and a graph keeps nothing" in line]) == 3
    again = attnport.open(str(tmp_path / "out"))
    assert again.check("ort_cpu", module=Scaled(3.0).eval(), force=True).verdict == "PASS"
    assert again.check("ort_cpu", module=Scaled(2.0).eval(), force=True).verdict == "FAIL"


def test_two_modules_with_the_same_weights_are_judged_each_by_itself(tmp_path: Path) -> None:
    both = [
        attnport.export(Scaled(scale).eval(), tmp_path / f"{scale}", inputs=["x=float32[batch,4]"])
        for scale in (2.0, 3.0)
    ]
    for artifact in both:
        artifact.fuse("ort_cpu")
        assert artifact.check("ort_cpu").verdict == "PASS"


def test_a_cell_of_a_notebook_that_defines_a_function_anew_counts(tmp_path: Path) -> None:
    code = """
class Cell(torch.nn.Module):
    def forward(self, x):
        return helper(x)
"""
    space: dict[str, Any] = {"torch": torch, "__name__": "a notebook"}
    exec(code, space)
    for factor in (2, 3):
        exec(f"def helper(x): return x * {factor}", space)
        artifact = attnport.export(space["Cell"]().eval(), tmp_path / "out", inputs=["x=float32[batch,4]"])
        artifact.fuse("ort_cpu")
        with artifact.open("ort_cpu") as session:
            assert session.run(x=torch.ones(1, 4))["output"].tolist() == [[factor] * 4]


def test_a_module_that_is_gone_is_asked_for(artifact: attnport.Artifact) -> None:
    again = attnport.open(str(artifact.folder))
    assert again.manifest == artifact.manifest
    other = Encoder()
    with torch.no_grad():
        other.places.add_(1)
    with pytest.raises(SpecError, match=r"the weights of this module are not those of Encoder \(in memory\)"):
        again.check("torch_eager", module=other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "the inputs of Encoder are not known"),
        ({"args": (IDS,)}, r"does not take these examples: missing a required argument: 'attention_mask'"),
        ({"args": (IDS, MASK[:, :3])}, "its forward raised"),
        ({"args": (IDS, MASK), "inputs": {"masc": ":padding"}}, "got masc; the examples have ids, attention_mask"),
        ({"args": (IDS, MASK), "outputs": "hiden"}, "its forward returns hidden, last"),
        ({"args": (IDS, MASK), "inputs": {"ids": "int64[batch,"}}, "cannot be read"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        attnport.export(Encoder(), tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"got list for the model; expected a torch.nn.Module"):
        attnport.export([1], tmp_path / "out", args=(X,))  # type: ignore[arg-type]


def given(module: Any, *args: Any, **options: Any) -> list[str]:
    io = Given(module, args, options.pop("kwargs", {}), **options).spec().io
    return [*map(str, io.inputs), *map(str, io.dims)]


def test_a_declaration_beside_examples_names_the_dims_of_all() -> None:
    found = given(Encoder(), IDS, MASK, inputs={"ids": "int64[items,tokens]:high=50"}, dims={"tokens": (2, 4, 8)})
    assert found == ["ids=int64[items,tokens]", "attention_mask=int64[items,tokens]", "items=1:128:512", "tokens=2:4:8"]


def test_a_batch_of_one_is_dynamic_and_other_dims_have_the_name_of_input_and_axis() -> None:
    past = tuple(torch.randn(1, 2, 3, 8) for _ in range(2))
    found = given(modules.Past(), X[:1], past, kwargs={"scale": 0.5})
    assert found[:3] == ["x=float32[batch,seq,16]"] + [f"past_{at}=float32[batch,2,past_0_2,8]" for at in (0, 1)]


def test_constants_and_paths_are_written_into_the_source() -> None:
    past = tuple(torch.randn(2, 2, 3, 8) for _ in range(2))
    spec = Given(modules.Past(), (X, past), {"scale": 0.5}).spec()
    assert spec.source.inputs[1:] == (
        "past.0=float32[batch,2,past_0_2,8]",
        "past.1=float32[batch,2,past_0_2,8]",
        "scale=0.5",
    )


def test_a_spec_takes_examples_too() -> None:
    spec = Given(f"{modules.__file__}:data_in", (modules.Batch(torch.zeros(2, 3, dtype=torch.int64)),)).spec()
    assert spec.source.inputs == ("batch.ids=int64[batch,seq]:high=40", "batch.mask=null")
    assert [each.name for each in spec.io.outputs] == ["hidden"]


def test_dynamic_shapes_of_torch_are_taken() -> None:
    batch, tokens = torch.export.Dim("items", min=1, max=8), torch.export.Dim("tokens", max=16)
    shapes = {"ids": {0: batch, 1: tokens}, "attention_mask": (batch, tokens)}
    found = given(Encoder(), IDS, MASK, dynamic_shapes=shapes)
    assert found == ["ids=int64[items,tokens]", "attention_mask=int64[items,tokens]", "items=1:8:8", "tokens=1:16:16"]
    auto = torch.export.Dim.AUTO
    assert given(Encoder(), IDS, MASK, dynamic_shapes=({0: auto}, {0: auto}))[:2] == [
        "ids=int64[batch,7]",
        "attention_mask=int64[batch,7]",
    ]
    with pytest.raises(UsageError, match="no input has the dim tokens alone"):
        given(Encoder(), IDS, MASK, dynamic_shapes={"ids": {1: 2 * tokens}})
    with pytest.raises(UsageError, match="dynamic_shapes of ids"):
        given(Encoder(), IDS, MASK, dynamic_shapes={"ids": {1: "tokens"}})


def test_dims_that_happen_to_be_equal_are_not_taken_for_one() -> None:
    class Two(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a.sum() + b

    found = dynamic_dims(Two(), {"a": torch.ones(3, 3), "b": torch.ones(3, 3)})
    assert len({dim.name for own in found.values() for dim in own if not isinstance(dim, int)}) == 4


def test_modules_in_half_precision_are_exported_in_float32() -> None:
    made = Given(Encoder().to(torch.bfloat16), (IDS, MASK)).spec().make()
    assert next(made.parameters()).dtype == torch.float32


def test_a_scalar_of_the_module_is_copied_with_tied_weights_and_parametrisations() -> None:
    module = modules.DictOut()
    module.key.weight = module.query.weight
    nn.utils.parametrizations.weight_norm(module.out)
    made = Given(module, (X,)).spec().make()
    assert made.key.weight is made.query.weight
    with torch.no_grad():
        assert torch.equal(made(x=X)[0], module(X)["hidden"])


def test_assert_parity_passes_a_module_and_shows_the_table_of_one_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    assert assert_parity(modules.DictOut(), (X,), runtimes="ort_cpu", dims="seq=1:5:9").verdict == "PASS"

    class Opposite(Encoder):
        """Its mask is 1 for padding."""

        def forward(self, ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
            return super().forward(ids, 1 - attention_mask)["hidden"]

    with pytest.raises(AssertionError, match=r"padding changes valid rows"):
        assert_parity(Opposite(), (IDS, MASK))
    assert [record for record in caplog.records if record.name.startswith("torch")] == []


@pytest.mark.slow
def test_assert_parity_fails_for_a_runtime_that_was_not_run() -> None:
    with pytest.raises(UnavailableError, match="tensorrt is not installed"):
        assert_parity(modules.DictOut(), (X,), runtimes=("tensorrt",), dims="seq=1:5:9")
    with pytest.raises(AssertionError, match="ort_cpu, tensorrt: not within"):
        assert_parity(modules.DictOut(), (X,), runtimes=("ort_cpu", "tensorrt"), dims="seq=1:5:9")


IN_ANOTHER_PROCESS = """
import sys, attnport
artifact = attnport.open(sys.argv[1])
print(artifact.check("torch_eager", **({"trust_source": True} if sys.argv[2:] else {})).verdict)
"""


@pytest.mark.slow
def test_another_process_checks_against_the_stored_program_where_it_is_trusted(
    artifact: attnport.Artifact, tmp_path: Path
) -> None:
    def run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", IN_ANOTHER_PROCESS, str(folder), *more]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)

    assert run(artifact.folder).stdout.strip() == "PASS"
    moved = tmp_path / "moved"
    shutil.copytree(artifact.folder, moved)
    refused = run(moved)
    assert "was not exported by you on this machine" in refused.stderr
    assert run(moved, "--trust").stdout.strip() == "PASS"


def test_what_a_verb_returns_prints_as_the_command_line_shows_it(tiny_artifact: Path) -> None:
    code = (
        f"import attnport; print(attnport.verify({str(tiny_artifact)!r}))"  # a process that has imported nothing else
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert "PASS" in done.stdout
    assert "VerifyResult(" not in done.stdout


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"ids": "int64[batch,seq]", "attention_mask": "int64[batch,seq]"}, "is 7, of input ids it is 5"),
        ({"attention_mask": "int64[batch]"}, r"declared with 1 dims; its example has shape \[2, 7\]"),
        ({"attention_mask": "int64[batch,9]"}, "axis 1 is declared as 9; in its example it is 7"),
    ],
)
def test_a_dim_of_two_sizes_is_named_with_both(declared: dict[str, str], said: str) -> None:
    class Two(nn.Module):
        def forward(self, ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return ids.sum() + attention_mask * 2.0

    args = torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 7, dtype=torch.int64)
    with pytest.raises(UsageError, match=said):
        Given(Two(), args, inputs=declared).spec()


@pytest.mark.parametrize("name", sorted(set(attnport.__all__) - {"Artifact", "open"}))
def test_the_documentation_of_a_verb_explains_every_parameter(name: str) -> None:
    verb = getattr(attnport, name)
    told = str(inspect.getdoc(verb)).partition("Args:\n")[2].splitlines()
    explained = {line.strip().partition(":")[0] for line in told if line.startswith("    ") and line[4] != " "}
    assert inspect.signature(verb).parameters.keys() <= explained


def test_a_method_that_passes_options_on_names_them_for_completion() -> None:
    assert {"precision", "module"} <= inspect.signature(attnport.Artifact.check).parameters.keys()
    assert "maps" in inspect.signature(attnport.Artifact.report).parameters


def test_every_option_of_a_verb_is_explained_on_the_command_line() -> None:
    for command in cli.commands.values():
        assert all(option.help for option in command.params if isinstance(option, click.Option)), command.name


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> attnport.Artifact:
    found = attnport.export("self_attention", tmp_path_factory.mktemp("names") / "out")
    found.fuse("ort_cpu")
    return found


def test_a_name_stands_for_a_list_and_a_dict_for_a_shape(fused: attnport.Artifact) -> None:
    assert set(attnport.fuse(fused.folder, target="ort_cpu").targets) == {"ort_cpu"}
    report = attnport.check(str(fused.folder), "ort_cpu", shape={"batch": 1, "seq": 3})
    assert any(row.case == "batch=1,seq=3" for row in report.runtimes["ort_cpu"].cases)
    assert set(attnport.fuse(fused.folder, targets="openvino.bf16").targets) == {"ort_cpu", "openvino.bf16"}
    assert {one.name for one in base.chosen(["openvino.bf16", "openvino"])} == {"openvino"}


def test_what_is_spelled_otherwise_is_named(fused: attnport.Artifact) -> None:
    with pytest.raises(TypeError, match=r"check: .*'runtimez'; is it runtimes\?"):
        fused.check(runtimez="ort_cpu")
    with pytest.raises(UsageError, match="text: got list; expected the path of a file"):
        fused.check(text=["a sentence"])
    with pytest.raises(UsageError, match="got part='encoder' and with_past"):
        attnport.export("hf:nowhere", fused.folder, part="encoder", with_past=True)


def test_an_open_artifact_takes_tensors_with_and_without_a_block(fused: attnport.Artifact) -> None:
    running = fused.open("ort_cpu")
    spec = fused.manifest.io.inputs[0]
    got = running.run(**{spec.name: torch.zeros(2, 3, int(spec.dims[2]))})
    running.close()
    assert next(iter(got.values())).shape[:2] == (2, 3)


class Weights(nn.Module):
    """Attention that also returns its weights, of ids."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, ids: torch.Tensor) -> Any:
        x = ids[..., None].float().expand(-1, -1, 8)
        return self.attention(x, x, x)


def test_what_is_left_out_fixed_or_tried_with_few_values_is_told_in_python_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", logger="attnport"):
        attnport.export(Weights().eval(), tmp_path / "out", args=torch.ones(2, 3, dtype=torch.int64))
    said = [record.getMessage() for record in caplog.records if record.name == "attnport"]
    assert any("attention weights were left out" in line for line in said)
    assert any("no :high=N says which whole numbers ids=int64[batch,seq] may have" in line for line in said)


def test_a_dict_for_args_and_a_tensor_for_a_declaration_are_refused_with_words(tmp_path: Path) -> None:
    x = torch.ones(2, 3, dtype=torch.int64)
    with pytest.raises(UsageError, match="args: got a dict with ids; expected a tuple"):
        attnport.export(Weights(), tmp_path / "out", args={"ids": x})
    with pytest.raises(UsageError, match="inputs: got Tensor for ids; expected a declaration"):
        attnport.export(Weights(), tmp_path / "out", inputs={"ids": x})  # type: ignore[dict-item]
    with pytest.raises(UsageError, match="dim 'seq=long' cannot be read"):
        attnport.export(Weights(), tmp_path / "out", args=x, dims={"seq": "long"})
