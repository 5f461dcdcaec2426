"""Bad input through the real command line: a clear error, the right exit code, and nothing that was there is lost."""

from __future__ import annotations

import importlib
import json
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusing import call, contents, refused
from representatives import representatives

import attnport
from attnport.artifacts import Candidate, Source, TuneReport
from attnport.errors import AttnportError, SpecError
from attnport.folder.loading import reload
from attnport.folder.workspace import open_folder
from attnport.options import Folder
from attnport.verbs._arguments import verb

MODEL = '''
from pathlib import Path
import numpy as np
import torch
from torch import nn

def half(x):
    return x * 0.5

class Model(nn.Module):
    """One attention, with weights from a file."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(4, 12)
        weights = np.load(Path(__file__).with_name("weights.npy"))
        self.project.weight.data = torch.from_numpy(weights)
        self.project.bias.data.zero_()

    def forward(self, x, attention_mask):
        q, k, v = self.project(half(x)).unsqueeze(1).chunk(3, -1)
        keep = attention_mask.bool()[:, None, None, :].expand(-1, 1, x.shape[1], -1)
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep).squeeze(1)

def factory():
    return Model().eval()
'''
DECLARED = ("--input", "x=float32[batch,seq,4]", "--input", "attention_mask=int64[batch,seq]:padding",
            "--dim", "seq=1:6:24", "--dim", "batch=1:2:6")  # fmt: skip


@pytest.fixture(scope="module")
def _exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in a file, its weights and its artifact, below a path with spaces and letters of other alphabets."""
    home = tmp_path_factory.mktemp("with space") / "mödel 模型"
    home.mkdir()
    (home / "my model.py").write_text(MODEL)
    np.save(home / "weights.npy", np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32))
    result = call("export", f"{home / 'my model.py'}:factory", "-o", home / "out put", *DECLARED, "--json")
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["attentions"]) == 1
    return home


@pytest.fixture
def home(_exported: Path) -> Path:
    """The folder of `_exported`, brought back to what it was: the SPEC in the manifest is a path."""
    (_exported / "my model.py").write_text(MODEL)
    np.save(_exported / "weights.npy", np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32))
    return _exported


SPECS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "no such model": ("", "no_such_model", ("is no model of attnport", "bert_encoder")),
    "a hub's name without its owner": ("", "bert-base-uncased", ("hf:bert-base-uncased",)),
    "a misspelt file": ("", "{folder}/model.onx", ("there is no such file", "Is it model.py?")),
    "a file of another kind": ("", "{folder}/config.json", ("ends in .onnx", "net.py:make")),
    "no such package": ("", "no_such_package.module:factory", ("no module 'no_such_package'",)),
    "no such file": ("", "nowhere.py:factory", ("nowhere.py is not a file",)),
    "no such factory": ("def other(): pass", "{file}:factory", ("there is no 'factory'", "other")),
    "an empty factory": ("", "{file}:", ("expected a function's name",)),
    "a file alone": ("", "{file}", ("names no model", "model.py:factory")),
    "a folder alone": ("", "{folder}", ("names no model", "no config.json")),
    "nothing": ("", "", ("names no model",)),
    "only a colon": ("", ":", ("names no model",)),
    "hf alone": ("", "hf:", ("no folder after the colon",)),
    "hf without a colon": ("", "hf", ("no folder after the colon",)),
    "hf of no folder": ("", "hf:/nowhere", ("no such folder",)),
    "hf of a folder without config": ("", "hf:{folder}", ("no config.json",)),
    "a syntax error": ("def factory(:\n", "{file}:factory", ("SyntaxError", "model.py, line 1")),
    "not Python": ("\x00\x01", "{file}:factory", ("loading it raised",)),
    "a missing import": ("import no_such_thing\n", "{file}:factory", ("No module named 'no_such_thing'", "line 1")),
    "an import error": ("from math import nothing\n", "{file}:factory", ("ImportError", "model.py, line 1")),
    "an exception": ("def factory():\n    return 1 / 0\n", "{file}:factory", ("ZeroDivisionError", "line 2")),
    "exit on import": ("import sys\nsys.exit(0)\n", "{file}:factory", ("SystemExit", "__main__")),
    "exit in the factory": ("def factory():\n    raise SystemExit('bye')\n", "{file}:factory", ("SystemExit: bye",)),
    "a number": ("factory = 3\n", "{file}:factory", ("got int",)),
    "no module": ("def factory():\n    return 'text'\n", "{file}:factory", ("got str", "torch.nn.Module")),
    "arguments": ("def factory(size):\n    return 1\n", "{file}:factory", ("missing 1 required positional",)),
    "no inputs declared": (
        "import torch\ndef factory():\n    return torch.nn.Linear(2, 2)\n",
        "{file}:factory",
        ("inputs are not known", "--input"),
    ),
    "endless recursion": ("def factory():\n    return factory()\n", "{file}:factory", ("RecursionError",)),
}


@pytest.mark.parametrize("name", SPECS)
def test_a_spec_that_does_not_load(name: str, tmp_path: Path, tiny_artifact: Path) -> None:
    code, text, told = SPECS[name]
    file = tmp_path / "model.py"
    file.write_text(code)
    (tmp_path / "config.json").write_text("{}") if "config.json" in text else None
    before = contents(tiny_artifact)
    refused(call("export", text.format(file=file, folder=tmp_path), "-o", tiny_artifact), *told)
    assert contents(tiny_artifact) == before


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        (["--input", "x"], ("input 'x' cannot be read", "NAME=DTYPE[DIM,...]")),
        (["--input", "x=float32"], ("cannot be read",)),
        (["--input", "x=float33[batch,4]"], ("dtype 'float33'", "float32")),
        (["--input", "x=float32[batch,4]:paddding"], ("got mark 'paddding'",)),
        (["--input", "x=float32[batch,0]"], ("forward raised RuntimeError",)),
        (["--input", "x=float32[batch,4]", "--input", "x=float32[batch,4]"], ("declared twice",)),
        (["--input", "x=float32[batch,4]", "--dim", "seq=1:2:3"], ("no input has that dim", "batch")),
        (["--input", "x=float32[batch,4]", "--dim", "batch=3:2:1"], ("min=3, opt=2, max=1",)),
        (["--input", "x=float32[batch,4]", "--dim", "batch=0:0:3"], ("batch=0:0:3",)),
        (["--input", "x=float32[batch,4]", "--dim", "batch"], ("cannot be read", "DIM=MIN:OPT:MAX")),
        (["--input", "x=float32[batch,4]", "--dim", "batch=1:2:3", "--dim", "batch=1:2:3"], ("given twice",)),
        (["--input", "y=float32[batch,4]"], ("takes no input of this name", "forward(x)", "Its inputs are x")),
        (["--input", "xs=float32[batch,4]"], ("Did you mean 'x'?",)),
        (["--input", "batch=4"], ("takes no input of this name",)),
        (
            ["--input", "x=float32[batch,5]"],
            ("forward raised RuntimeError", "shapes", "model.py, line 4: return super"),
        ),
        (["--input", "x=int64[batch,4]"], ("forward raised RuntimeError", "dtype", "model.py, line 4: return super")),
    ],
)
def test_declarations_that_do_not_fit(declared: list[str], told: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\nclass M(torch.nn.Linear):\n    def forward(self, x):\n        return super().forward(x)\n"
        "def factory():\n    return M(4, 2)\n"
    )
    refused(call("export", f"{tmp_path / 'model.py'}:factory", "-o", tmp_path / "out", *declared), *told)
    assert not (tmp_path / "out").exists()


def test_weights_with_nan_are_named(home: Path) -> None:
    before = contents(home / "out put")
    np.save(home / "weights.npy", np.full((12, 4), np.nan, np.float32))
    result = call("export", f"{home / 'my model.py'}:factory", "-o", home / "out put", *DECLARED)
    refused(result, "weight project.weight holds 48 NaN of 48 values")
    assert contents(home / "out put") == before


@pytest.mark.parametrize("verb", ["check", "bench"])
@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("my model.py", lambda home: (home / "my model.py").write_text(MODEL.replace("x * 0.5", "x * 0.25"))),
        ("weights.npy", lambda home: np.save(home / "weights.npy", np.ones((12, 4), np.float32))),
    ],
)
def test_a_source_that_changed_since_export(verb: str, part: str, change: Callable[[Path], object], home: Path) -> None:
    before = contents(home / "out put")
    change(home)
    refused(call(verb, home / "out put"), "changed since export: ", part)
    assert contents(home / "out put") == before


def test_a_source_that_is_gone(home: Path) -> None:
    (home / "my model.py").unlink()
    refused(call("check", home / "out put"), "my model.py is not a file")


@pytest.mark.parametrize("place", ["a file", "below a file", "somebody's folder", "a folder that cannot be made"])
def test_an_output_that_cannot_be_written(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "model.onnx").write_text("mine")
    out = {
        "a file": tmp_path / "file",
        "below a file": tmp_path / "file" / "out",
        "somebody's folder": tmp_path / "theirs",
        "a folder that cannot be made": Path("/proc/attnport"),
    }[place]
    refused(call("export", f"{Path(__file__).parent / 'tiny_model.py'}:spec", "-o", out), str(out))
    assert contents(tmp_path).keys() == {"file", "theirs/model.onnx"}
    assert (tmp_path / "theirs" / "model.onnx").read_text() == "mine"


@pytest.mark.parametrize(
    ("module", "arguments", "told"),
    [
        ("onnxruntime", ["check", "{folder}", "--runtime", "ort-cpu"], "pip install onnxruntime"),
        ("openvino", ["check", "{folder}", "--runtime", "openvino"], "pip install openvino"),
        ("tensorrt_rtx", ["build", "{folder}", "--target", "tensorrt_rtx"], "pip install tensorrt-rtx"),
        ("tensorrt", ["build", "{folder}", "--target", "tensorrt"], "pip install tensorrt-cu13"),
    ],
)
def test_a_missing_extra_is_named_with_its_pip_line(
    module: str, arguments: list[str], told: str, tiny_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    # In child processes too, which some runtimes have to themselves.
    (tmp_path / f"{module}.py").write_text(f"raise ModuleNotFoundError('none here', name={module!r})")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = call(*(argument.format(folder=tiny_artifact) for argument in arguments))
    assert result.exit_code == 3, result.output
    assert told in result.stderr
    assert "Traceback" not in result.stderr


def small_files() -> None:
    """The kernel's own disk that is full: no file may grow beyond 4 KiB, and the process is told, not killed."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


@pytest.mark.parametrize(
    "verb", representatives(["export", "fuse", "build", "check", "bench", "report"], ["export", "check"])
)
def test_a_full_disk_leaves_what_was_there(verb: str, tiny_artifact: Path) -> None:
    spec = f"{Path(__file__).parent / 'tiny_model.py'}:spec"
    folder = str(tiny_artifact)
    arguments = {
        "export": ["export", spec, "-o", folder, "--force"],
        "build": ["build", folder, "--target", "tensorrt_rtx", "--precision", "fp16"],
        "check": ["check", folder, "--runtime", "torch_eager"],
        "bench": ["bench", folder, "--runtime", "torch_eager", "--shape", "batch=32,seq=48", "--budget", "1"],
    }.get(verb, [verb, folder])
    before = contents(tiny_artifact)
    done = subprocess.run(
        [sys.executable, "-B", "-c", "from attnport.cli import main; main()", *arguments],
        capture_output=True, text=True, timeout=120, check=False, preexec_fn=small_files,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "untouched" in done.stderr
    assert "Traceback" not in done.stderr
    assert contents(tiny_artifact) == before
    assert {path.name for path in tiny_artifact.iterdir()} == {name.partition("/")[0] for name in before}


def test_the_check_for_a_clean_refusal_sees_what_is_not_one(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        refused(call("list", "models"))
    with pytest.raises(AssertionError):
        refused(call("check", tmp_path), "not what it says")
    with pytest.raises(AssertionError):
        refused(call("check", tmp_path, "--traceback"))
    shutil.copy(__file__, tmp_path / "copy")
    assert contents(tmp_path) != {}


def test_a_bundle_is_no_artifact_and_says_what_takes_it(tiny_artifact: Path) -> None:
    (tiny_artifact / "bundle.json").write_text("{}")
    told = f"attnport verify {tiny_artifact}", f"attnport_bundle.load('{tiny_artifact}')"
    for arguments in (("check", tiny_artifact), ("generate", tiny_artifact, "--prompt", "a")):
        refused(call(*arguments), "is a bundle, and no artifact folder", *told)


def test_a_file_of_onnx_or_nothing_in_the_place_of_a_folder(tiny_artifact: Path, tmp_path: Path) -> None:
    refused(call("check", tmp_path / "model.onnx"), "attnport export", "model.onnx -o OUT")
    refused(call("serve", tiny_artifact / "nowhere"), "nowhere is not a folder", "attnport export MODEL")


def test_an_encoder_does_not_generate_which_is_told_before_a_form_is_written(tiny_artifact: Path) -> None:
    before = contents(tiny_artifact)
    refused(call("generate", tiny_artifact, "--prompt", "a", "--runtime", "openvino.bf16"), "does not generate")
    assert contents(tiny_artifact) == before


def test_a_form_that_is_not_there_is_made_or_meant_otherwise(tiny_artifact: Path, tmp_path: Path) -> None:
    hints = {
        "ort_cup": "Is it ort_cpu?",
        "openvin.bf16": "Is it openvino",
        "ort_cpu.int8": "attnport tune",
        "tensorrt_rtx.bf16": "attnport build",
    }
    for form, said in hints.items():
        refused(call("bundle", tiny_artifact, "-o", tmp_path / "app", "--form", form), "has no form", said)


def test_names_that_are_given_with_commas_are_told_to_be_given_one_by_one(tiny_artifact: Path, tmp_path: Path) -> None:
    commands = {
        ("check", "--runtime"): ("openvino", "ort_cuda"),
        ("bench", "--runtime"): ("openvino.fp32", "ort_cpu"),
        ("fuse", "--target"): ("ort_cpu.fp32", "openvino"),
        ("bundle", "--form", "-o", tmp_path / "app"): ("ort_cpu", "openvino"),
        ("bundle", "--lang", "-o", tmp_path / "app"): ("python", "cpp"),
    }
    for (name, option, *more), names in commands.items():
        hint = " ".join(f"{option} {one}" for one in names)
        refused(call(name, tiny_artifact, option, ",".join(names), *more), "no name has a comma", hint)


def test_what_is_no_artifact_is_told_by_what_it_is(
    tiny_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (model := tmp_path / "model").mkdir()
    (model / "config.json").write_text("{}")
    for name in ("tune", "check", "verify", "inspect"):  # to export into that folder would be no help
        refused(call(name, Path("model")), "attnport export model -o OUT")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    refused(call("tune", Path("other")), "attnport export MODEL -o OUT")
    refused(call("tune", Path("none")), "attnport export MODEL -o none")
    part = f"It is a part of the artifact folder {tiny_artifact}; give that."
    for name, file in (("verify", "model.onnx"), ("inspect", "golden.npz"), ("check", "model.onnx")):
        (tiny_artifact / file).touch()
        refused(call(name, tiny_artifact / file), part)


def test_an_artifact_folder_that_is_given_as_a_model_is_told(
    tiny_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_artifact.parent)
    refused(
        call("ship", tiny_artifact.name, "-o", tmp_path / "out"),
        f"'{tiny_artifact.name}' names no model",
        f"an artifact folder, which was exported before: attnport inspect {tiny_artifact.name}",
    )


def test_a_form_that_is_named_by_its_file_or_precision_is_recognised(tiny_artifact: Path, tmp_path: Path) -> None:
    forms = open_folder(tiny_artifact).forms
    plain = " or ".join(name for name, form in forms.items() if form.plan == "fp32")
    for named, meant in ((forms["ort_cpu"].file, "ort_cpu"), ("fp32", plain)):
        refused(call("bundle", tiny_artifact, "-o", tmp_path / "app", "--form", named), f"Is it {meant}?")


def test_a_factory_with_arguments_says_how_to_call_it(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("class Net:\n    def __init__(self, width): pass\n")
    refused(call("export", f"{tmp_path / 'net.py'}:Net", "-o", tmp_path / "out"), "called without arguments")


def test_a_hint_is_a_note_of_the_error_in_python(tmp_path: Path) -> None:
    with pytest.raises(AttnportError) as caught:
        attnport.check(tmp_path)
    assert caught.value.__notes__[0] == f"hint: {caught.value.hint}"
    assert str(tmp_path) in caught.value.hint


def test_a_precision_of_another_target_is_said_to_be_its(tiny_artifact: Path) -> None:
    result = call("fuse", tiny_artifact, "--target", "ort_cpu", "--precision", "bf16")
    refused(result, "target ort_cpu: got precision 'bf16'; expected one of fp32", "bf16 is a precision of openvino")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("check", "--shape", "8x128"), ("--shape 8x128: cannot read",)),
        (("check", "--shape", "sequ=8"), ("got dim 'sequ'", "Is it seq?")),
        (("check", "--inputs", "{out}/none.npz"), ("none.npz cannot be read", "numpy.savez")),
        (("check", "--inputs", "{out}/one.npz"), ("input 'attention_mask' is missing",)),
        (("check", "--text", "{out}/none.txt"), ("none.txt cannot be read", "one sentence in each line")),
        (("bench", "--runtime", "openvino.bf16", "--shape", "8x128"), ("--shape 8x128: cannot read",)),
        (("tune", "--shape", "8x128"), ("--shape 8x128: cannot read",)),
        (("tune", "--lengths", "{out}/none.txt"), ("none.txt cannot be read",)),
        (("tune", "--text", "{out}/few.txt"), ("expected at least 20",)),
        (("tune", "--text", "{out}/some.txt", "--metric", "{out}/m.py:accurcy"), ("no 'accurcy'", "Is it accuracy?")),
        (("tune", "--max-drop", "five"), ("--max-drop: got five", "0.5%")),
        (("bundle", "-o", "{out}/app", "--lang", "rust"), ("language rust", "the C interface of cpp")),
        (("build", "--target", "tensorrt_rtx", "--profile", "sequ=1:2:3"), ("got dim 'sequ'", "Is it seq?")),
        (("verify", "--key", "{out}/no.pem"), ("no.pem: the key cannot be read", "from whoever signed")),
    ],
)
def test_what_is_misspelt_is_told_before_any_work(
    arguments: tuple[str, ...],
    told: tuple[str, ...],
    tiny_artifact: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def work(*given: Any, **options: Any) -> Any:
        raise AssertionError("it probes runtimes")

    for name in ("bench", "check", "tune"):
        monkeypatch.setattr(importlib.import_module(f"attnport.verbs.{name}"), "probe_all", work)
    out = tmp_path / "files"
    out.mkdir()
    (out / "few.txt").write_text("one\ntwo\n")
    (out / "some.txt").write_text("one two\n" * 50)
    (out / "m.py").write_text("def accuracy(model): return 1.0\n")
    np.savez(out / "one.npz", input_ids=np.zeros((1, 2), np.int64))
    before = contents(tiny_artifact)
    verb, *options = (argument.format(out=out) for argument in arguments)
    refused(call(verb, tiny_artifact, *options), *told)
    assert contents(tiny_artifact) == before


def test_reports_to_compare_that_are_not_there_say_what_writes_them(tmp_path: Path) -> None:
    result = call("bench", "--compare", tmp_path / "a.json", tmp_path / "b.json")
    refused(result, "a.json cannot be read", f"--save {tmp_path / 'a.json'}")


@pytest.mark.parametrize("text", ["m.py:make", "hf:./models/minilm", "hf:path/to/minilm", "onnx:theirs.onnx"])
def test_a_source_whose_path_is_of_another_folder_says_so(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match="the artifact was exported from it") as caught:
        reload(Source(text))
    assert "the folder in which export was run" in caught.value.hint
    assert str(tmp_path) in caught.value.hint


def test_a_file_that_is_misspelt_is_asked_about(tmp_path: Path) -> None:
    (tmp_path / "tagger.py").write_text("def make(): pass\n")
    refused(call("export", f"{tmp_path / 'tagge.py'}:make", "-o", tmp_path / "out"), "Is it tagger.py?")


def test_a_name_of_the_hub_that_may_be_a_folder_is_told_to_be_looked_for_there(tmp_path: Path) -> None:
    result = call("export", "nobody/no-such-model", "-o", tmp_path / "out")
    refused(result, "there is no folder nobody/no-such-model here")


def test_commands_of_a_result_are_for_its_folder_in_python(tmp_path: Path) -> None:
    @verb
    def find(folder: Folder) -> TuneReport:
        """Finds nothing."""
        chosen = Candidate("ort_cpu", "ort_cpu", "fp32", 1, "chosen", "", ms={"batch=1": 1.0})
        return TuneReport("", 0.1, (chosen,), {})

    folder = tmp_path / "my out"
    assert f"attnport bundle '{folder}' -o app/ --form ort_cpu" in str(find(folder))
    assert "FOLDER" not in str(find(folder))
