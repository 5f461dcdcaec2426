"""Bad input through the real command line: a clear error, the right exit code, and nothing that was there is lost."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from attnport.artifacts import MANIFEST, digest_file
from attnport.cli import cli

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


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def refused(result: Result, *told: str, code: int = 2) -> None:
    """A run that had to fail cleanly: its exit code, all of `told` on stderr, nothing on stdout, no traceback."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert "bug of attnport" not in result.stderr
    for part in told:
        assert part in result.stderr, result.stderr


def contents(folder: Path) -> dict[str, str]:
    """Digest by name of everything below a folder."""
    return {str(path.relative_to(folder)): digest_file(path) for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def untouched(tiny_artifact: Path) -> Path:
    """An artifact that the command under test may not change; `intact` compares."""
    return tiny_artifact


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
    "no such package": ("", "no_such_package.module:factory", ("no module 'no_such_package'",)),
    "no such file": ("", "nowhere.py:factory", ("nowhere.py is not a file",)),
    "no such factory": ("def other(): pass", "{file}:factory", ("there is no 'factory'", "other")),
    "an empty factory": ("", "{file}:", ("expected a factory's name",)),
    "a file alone": ("", "{file}", ("names no factory", "model.py:factory")),
    "a folder alone": ("", "{folder}", ("names no factory", "hf:")),
    "nothing": ("", "", ("is no SPEC",)),
    "only a colon": ("", ":", ("is no SPEC",)),
    "hf alone": ("", "hf:", ("no folder behind the colon",)),
    "hf without a colon": ("", "hf", ("no folder behind the colon",)),
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
def test_a_spec_that_does_not_load(name: str, tmp_path: Path, untouched: Path) -> None:
    code, text, told = SPECS[name]
    file = tmp_path / "model.py"
    file.write_text(code)
    before = contents(untouched)
    refused(call("export", text.format(file=file, folder=tmp_path), "-o", untouched), *told)
    assert contents(untouched) == before


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        (["--input", "x"], ("--input 'x' cannot be read", "NAME=DTYPE[DIM,...]")),
        (["--input", "x=float32"], ("cannot be read",)),
        (["--input", "x=float33[batch,4]"], ("dtype 'float33'", "float32")),
        (["--input", "x=float32[batch,4]:paddding"], ("got mark 'paddding'",)),
        (["--input", "x=float32[batch,0]"], ("neither a name nor a size",)),
        (["--input", "x=float32[batch,4]", "--input", "x=float32[batch,4]"], ("declared twice",)),
        (["--input", "x=float32[batch,4]", "--dim", "seq=1:2:3"], ("no input has that dim", "batch")),
        (["--input", "x=float32[batch,4]", "--dim", "batch=3:2:1"], ("min=3, opt=2, max=1",)),
        (["--input", "x=float32[batch,4]", "--dim", "batch=0:2:3"], ("1 <= min",)),
        (["--input", "x=float32[batch,4]", "--dim", "batch"], ("cannot be read", "DIM=MIN:OPT:MAX")),
        (["--input", "x=float32[batch,4]", "--dim", "batch=1:2:3", "--dim", "batch=1:2:3"], ("given twice",)),
        (["--input", "y=float32[batch,4]"], ("forward raised TypeError", "'y'")),
        (["--input", "x=float32[batch,5]"], ("forward raised RuntimeError", "shapes")),
        (["--input", "x=int64[batch,4]"], ("forward raised RuntimeError", "dtype")),
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
        ("code", lambda home: (home / "my model.py").write_text(MODEL.replace("x * 0.5", "x * 0.25"))),
        ("weights", lambda home: np.save(home / "weights.npy", np.ones((12, 4), np.float32))),
    ],
)
def test_a_source_that_changed_since_export(verb: str, part: str, change: Callable[[Path], object], home: Path) -> None:
    before = contents(home / "out put")
    change(home)
    refused(call(verb, home / "out put"), f"the {part} of {home / 'my model.py'}:factory changed since export")
    assert contents(home / "out put") == before


def test_a_source_that_is_gone(home: Path) -> None:
    (home / "my model.py").unlink()
    refused(call("check", home / "out put"), "my model.py is not a file")


@pytest.mark.parametrize("verb", ["fuse", "check", "bench", "report", "verify", "inspect"])
def test_a_folder_that_is_no_artifact(verb: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    refused(call(verb, tmp_path), "attnport.json" if verb != "inspect" else str(tmp_path))
    refused(call(verb, tmp_path / "nowhere"), "nowhere")
    assert contents(tmp_path).keys() == {"notes.txt"}


@pytest.mark.parametrize("verb", ["fuse", "check", "bench", "report", "verify", "inspect"])
@pytest.mark.parametrize("damage", ["cut", "empty", "edited", "another version"])
def test_a_damaged_manifest(verb: str, damage: str, untouched: Path) -> None:
    path = untouched / MANIFEST
    text = path.read_text()
    if damage == "another version":
        text = text.replace('"format": 1', '"format": 99')
    path.write_text(
        {"cut": text[:300], "empty": "", "edited": text.replace('"opset": 23', '"opset": "many"')}.get(damage, text)
    )
    before = contents(untouched)
    refused(call(verb, untouched), MANIFEST)
    assert contents(untouched) == before


@pytest.mark.parametrize(
    ("verb", "file"),
    [
        ("fuse", "model.onnx"),
        ("check", "model.ort_cpu.onnx"),
        ("check", "tokenizer.json"),
        ("bundle", "model.ort_cpu.onnx"),
    ],
)
def test_a_file_that_was_cut_short(verb: str, file: str, untouched: Path, tmp_path: Path) -> None:
    path = untouched / file
    path.write_bytes(path.read_bytes()[:-20])
    before = contents(untouched)
    more = ["-o", tmp_path / "app", "--unverified"] if verb == "bundle" else []
    result = call(verb, untouched, *more)
    refused(result, file, "digest differs", code=6)
    assert contents(untouched) == before
    assert not (tmp_path / "app").exists()


def test_a_manifest_that_names_files_outside(untouched: Path) -> None:
    path = untouched / MANIFEST
    path.write_text(path.read_text().replace('"file": "model.ort_cpu.onnx"', '"file": "../../model.onnx"'))
    refused(call("check", untouched), "../../model.onnx", "outside", code=6)


def test_a_manifest_that_uses_a_file_without_a_digest(untouched: Path) -> None:
    manifest = json.loads((untouched / MANIFEST).read_text())
    del manifest["files"]["model.ort_cpu.onnx"]
    (untouched / MANIFEST).write_text(json.dumps(manifest))
    for verb in ("check", "bench", "fuse", "verify"):
        refused(call(verb, untouched), "model.ort_cpu.onnx", "no digest of it", code=6)


def test_external_data_outside_the_folder(untouched: Path) -> None:
    import onnx

    secret = untouched.parent / "secret.bin"
    secret.write_bytes(b"\0" * 65536)
    model = onnx.load(untouched / "model.onnx")
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret.bin")
    onnx.save(model, untouched / "model.onnx")
    manifest = json.loads((untouched / MANIFEST).read_text())
    manifest["files"]["model.onnx"] = digest_file(untouched / "model.onnx")
    (untouched / MANIFEST).write_text(json.dumps(manifest))
    result = call("fuse", untouched, "--target", "onnx")
    assert result.exit_code in (2, 6), result.output
    refused(result, "secret.bin", code=result.exit_code)


@pytest.mark.parametrize(
    ("profile", "told"),
    [
        ("seq=8:4:16", "min=8, opt=4, max=16"),
        ("seq=1:2", "cannot read 'seq=1:2'"),
        ("time=1:2:3", "got dim 'time'"),
        ("seq=1:16:49", "takes seq from 1 to 48"),
        ("seq=0:1:2", "1 <= min"),
        ("seq=1:2:3,seq=1:2:3", "given twice"),
        ("seq=1:2:99999999999999999999", "cannot read"),
    ],
)
def test_a_profile_that_does_not_fit(profile: str, told: str, untouched: Path) -> None:
    before = contents(untouched)
    refused(call("build", untouched, "--target", "tensorrt-rtx", "--profile", profile), told)
    assert contents(untouched) == before


def test_targets_and_plans_that_there_are_not(untouched: Path) -> None:
    refused(call("build", untouched, "--target", "tensorflow"), "tensorrt_rtx")
    refused(call("build", untouched, "--target", "tensorrt_rtx", "--dtype", "int3"), "int3", "fp16")
    refused(call("build", untouched, "--target", "tensorrt_rtx", "--sm", "12"), "12")
    refused(call("fuse", untouched, "--target", "tensorrt_rtx", "--dtype", "int3"), "int3", "fp16")
    refused(call("check", untouched, "--runtime", "ort"), "runtime 'ort'", "ort_cpu")
    refused(call("bench", untouched, "--shape", "batch=0"), "batch")
    refused(call("bench", untouched, "--shape", "batch=2,seq=49"), "1 to 48")
    refused(call("bench", untouched, "--threads", "0"), "--threads")


FEEDS = {
    "a wrong name": ({"ids": np.ones((2, 3), np.int64)}, ("'ids'", "input_ids, attention_mask")),
    "one missing": ({"input_ids": np.ones((2, 3), np.int64)}, ("'attention_mask' is missing",)),
    "a wrong dtype": (
        {"input_ids": np.ones((2, 3), np.int32), "attention_mask": np.ones((2, 3), np.int64)},
        ("'input_ids'", "got dtype int32", "expected int64"),
    ),
    "a wrong rank": (
        {"input_ids": np.ones(3, np.int64), "attention_mask": np.ones((2, 3), np.int64)},
        ("'input_ids'", "got rank 1", "expected rank 2"),
    ),
    "too long": (
        {"input_ids": np.ones((1, 49), np.int64), "attention_mask": np.ones((1, 49), np.int64)},
        ("'input_ids'", "got seq=49", "1 to 48"),
    ),
    "sizes that differ": (
        {"input_ids": np.ones((2, 3), np.int64), "attention_mask": np.ones((2, 4), np.int64)},
        ("'attention_mask'", "got seq=4", "expected seq=3"),
    ),
    "ids beyond the vocabulary": (
        {"input_ids": np.full((2, 3), 40), "attention_mask": np.ones((2, 3), np.int64)},
        ("'input_ids'", "got values from 40 to 40", "expected 0 to 39"),
    ),
    "objects": ({"input_ids": np.array([{}]), "attention_mask": np.array([{}])}, ("feeds.npz", "pickle")),
}


@pytest.mark.parametrize("name", FEEDS)
def test_feeds_that_do_not_fit(name: str, untouched: Path, tmp_path: Path) -> None:
    feeds, told = FEEDS[name]
    np.savez(tmp_path / "feeds.npz", **feeds)  # type: ignore[arg-type]
    before = contents(untouched)
    refused(call("check", untouched, "--inputs", tmp_path / "feeds.npz"), *told)
    assert contents(untouched) == before


@pytest.mark.parametrize("damage", ["missing", "empty", "text", "cut", "an .npy", "a folder"])
def test_a_file_of_feeds_that_is_none(damage: str, untouched: Path, tmp_path: Path) -> None:
    path = tmp_path / "feeds.npz"
    if damage == "empty":
        path.touch()
    elif damage == "text":
        path.write_text("input_ids = 3")
    elif damage == "cut":
        np.savez(path, input_ids=np.ones((2, 3), np.int64))
        path.write_bytes(path.read_bytes()[:-30])
    elif damage == "an .npy":
        with path.open("wb") as file:
            np.save(file, np.ones(3))
    elif damage == "a folder":
        path.mkdir()
    refused(call("check", untouched, "--inputs", path), "feeds.npz")


@pytest.mark.parametrize("damage", ["missing", "empty", "not text", "a folder"])
def test_a_file_of_sentences_that_is_none(damage: str, untouched: Path, tmp_path: Path) -> None:
    path = tmp_path / "sentences.txt"
    if damage == "empty":
        path.write_text("\n \n")
    elif damage == "not text":
        path.write_bytes(b"\xff\xfe\x00\xd8")
    elif damage == "a folder":
        path.mkdir()
    for verb in ("check", "bench", "report"):
        refused(call(verb, untouched, "--text", path), "sentences.txt")


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
        ("onnxruntime", ["check", "{folder}", "--runtime", "ort-cpu"], 'pip install "attnport[cpu]"'),
        ("openvino", ["check", "{folder}", "--runtime", "openvino"], 'pip install "attnport[openvino]"'),
        ("tensorrt_rtx", ["build", "{folder}", "--target", "tensorrt_rtx"], 'pip install "attnport[rtx]"'),
        ("tensorrt", ["build", "{folder}", "--target", "tensorrt"], 'pip install "attnport[tensorrt]"'),
    ],
)
def test_a_missing_extra_is_named_with_its_pip_line(
    module: str, arguments: list[str], told: str, untouched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    result = call(*(argument.format(folder=untouched) for argument in arguments))
    assert result.exit_code == 3, result.output
    assert told in result.stderr
    assert "Traceback" not in result.stderr


def small_files() -> None:
    """The kernel's own disk that is full: no file may grow beyond 4 KiB, and the process is told, not killed."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


@pytest.mark.parametrize("verb", ["export", "fuse"])
def test_a_full_disk_leaves_what_was_there(verb: str, untouched: Path) -> None:
    spec = f"{Path(__file__).parent / 'tiny_model.py'}:spec"
    arguments = ["export", spec, "-o", str(untouched), "--force"] if verb == "export" else ["fuse", str(untouched)]
    before = contents(untouched)
    done = subprocess.run(
        [sys.executable, "-B", "-c", "from attnport.cli import main; main()", *arguments],
        capture_output=True, text=True, timeout=120, check=False, preexec_fn=small_files,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "untouched" in done.stderr
    assert "Traceback" not in done.stderr
    assert contents(untouched) == before
    assert {path.name for path in untouched.iterdir()} == {name.partition("/")[0] for name in before}


def test_the_check_for_a_clean_refusal_sees_what_is_not_one(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        refused(call("list", "models"))
    with pytest.raises(AssertionError):
        refused(call("check", tmp_path), "not what it says")
    with pytest.raises(AssertionError):
        refused(call("check", tmp_path, "--traceback"))
    shutil.copy(__file__, tmp_path / "copy")
    assert contents(tmp_path) != {}
