"""The reader that every bundle carries: stands alone, checks what goes in, and says what is wrong."""

from __future__ import annotations

import re
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_attention as tiny
from bundle_folders import program, python, tree

from attnport.bundling.readme import readme
from attnport_bundle import BundleError, IntegrityError, Model, RuntimeMissing, load
from attnport_bundle import __main__ as command
from attnport_bundle.format.contract import IO, Dim, MaskSpec, TensorSpec
from attnport_bundle.format.manifest import read
from attnport_bundle.goldens import GoldenCases


def test_it_runs_and_agrees_with_the_module(model: Model) -> None:
    import torch

    feeds = tiny.feeds([4, 6], 3)
    found = model.run(**feeds)
    with torch.no_grad():
        wanted = tiny.module()(**{name: torch.from_numpy(array) for name, array in feeds.items()})
    assert list(found) == ["hidden", "pooled"]
    np.testing.assert_allclose(found["pooled"], wanted[1].numpy(), rtol=0, atol=1e-6)


def test_it_stands_alone_and_leaves_the_folder_as_it_was(app: Path) -> None:
    before = tree(app)
    code = (
        "import sys, attnport_bundle as b; m = b.load(); m.close(); "
        "print(sorted({n.split('.')[0] for n in sys.modules} & {'attnport','torch','pydantic','onnx','rich','numpy'}))"
    )
    for _ in range(2):
        done = python(app / "python", "-c", code)
        assert done.stdout.strip() == "['numpy']", done.stderr
        assert python(app / "python", "-m", "attnport_bundle", "selftest").returncode == 0
    assert tree(app) == before


def test_importing_it_imports_nothing_heavy(app: Path) -> None:
    code = "import sys, attnport_bundle; print({'numpy', 'onnxruntime'} & set(sys.modules))"
    assert python(app / "python", "-c", code).stdout.strip() == "set()"


def test_it_may_be_used_from_several_threads(model: Model) -> None:
    feeds = [tiny.feeds([size, 2], size) for size in range(2, 10)]
    wanted = [model.run(**feed)["hidden"] for feed in feeds]
    found: list[Any] = [None] * len(feeds)

    def work(index: int) -> None:
        for _ in range(20):
            found[index] = model.run(**feeds[index])["hidden"]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(feeds))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_closed_model_says_so(made_bundle: Path) -> None:
    with load(made_bundle, threads=1) as model:
        model.run(**tiny.ones())
    model.close()
    with pytest.raises(BundleError, match="closed"):
        model.run(**tiny.ones())


def test_an_onnxruntime_that_is_too_old_or_missing_is_said(made_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "__version__", "1.27.9")
    with pytest.raises(RuntimeMissing, match=r"got onnxruntime 1\.27\.9; expected 1\.28 or later") as caught:
        load(made_bundle)
    assert caught.value.exit_code == 3
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(RuntimeMissing, match='pip install "onnxruntime'):
        load(made_bundle)


@pytest.mark.parametrize("version", ["1.28.0", "1.100", "2.0.0.dev20270101+cpu"])
def test_later_releases_are_taken(made_bundle: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "__version__", version)
    load(made_bundle).close()


def test_another_provider_than_the_stated_one_is_refused(made_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    monkeypatch.setattr(onnxruntime.InferenceSession, "get_providers", lambda self: ["SomewhereElse"])
    with pytest.raises(RuntimeMissing, match="got provider SomewhereElse; expected CPUExecutionProvider"):
        load(made_bundle)


def test_an_unknown_form_or_folder_is_said(made_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="form 'x': the bundle has ort_cpu"):
        load(made_bundle, form="x")
    for folder, words in ((tmp_path, "is no bundle"), (tmp_path / "none", "is not a folder")):
        with pytest.raises(BundleError, match=words) as caught:
            load(folder)
        assert caught.value.exit_code == 2


def test_trusting_the_disk_is_the_callers_choice(app: Path) -> None:
    (app / "README.md").write_text("changed")
    with pytest.raises(IntegrityError):
        load(app)
    load(app, check_files=False).run(**tiny.ones())


@pytest.mark.parametrize("name", ["model", "golden"])
def test_a_link_in_a_file_s_place_is_not_followed_even_unchecked(name: str, app: Path, tmp_path: Path) -> None:
    """The reader in C++ does not follow it either."""
    (path,) = (
        found for found in app.rglob("*") if found.name.startswith(name) and found.suffix in (".onnx", ".safetensors")
    )
    path.symlink_to(path.rename(tmp_path / "elsewhere"))
    with pytest.raises(IntegrityError, match=path.name), load(app, check_files=False) as model:
        list(GoldenCases(app, model.manifest).check(model.form, model.run))


def test_the_command_line(app: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["selftest", str(app)]) == 0
    assert "golden-2 pooled  PASS" in capsys.readouterr().out
    assert command.main(["selftest", str(app), "--json"]) == 0
    (app / "weights.bin").unlink()
    assert command.main(["selftest", str(app)]) == 6
    assert "weights.bin  FAIL     missing" in capsys.readouterr().out
    assert command.main(["selftest", str(app / "none")]) == 2
    assert "is not a folder" in capsys.readouterr().err


UNPRINTABLE = {"\udcff.txt": r"'\udcff.txt'", "\x1b[31mred": r"'\x1b[31mred'", "a\nb": r"'a\nb'"}


@pytest.mark.parametrize("name", UNPRINTABLE)
def test_an_added_name_that_no_terminal_should_see_is_escaped(
    app: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (app / name).write_text("added")
    assert command.main(["selftest", str(app)]) == 6
    printed = capsys.readouterr().out
    assert f"{UNPRINTABLE[name]}  FAIL     added" in printed
    assert name not in printed
    with pytest.raises(IntegrityError, match=re.escape(f"{UNPRINTABLE[name]}: added")):
        load(app)


def test_the_readme_program_runs_as_it_stands(app: Path) -> None:
    shown = program((app / "README.md").read_text())
    assert len(shown.splitlines()) <= 15
    done = python(app.parent, "-c", shown)
    assert done.stdout == "hidden (2, 5, 8)\npooled (2, 8)\n", done.stderr


def test_a_bundle_that_moved_still_works(app: Path, tmp_path: Path) -> None:
    moved = Path(shutil.move(app, tmp_path / "product with a space"))
    assert python(moved / "python", "-m", "attnport_bundle", "selftest").returncode == 0
    assert read(moved).name == "tiny"


def test_the_readme_program_for_text_runs_as_it_stands(tmp_path: Path) -> None:
    import tokenizers

    vocabulary = {"[UNK]": 0, "a": 1, "sentence": 2, "[PAD]": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    (tmp_path / "app").mkdir()
    tokenizer.save(str(tmp_path / "app" / "tokenizer.json"))
    inputs = tuple(TensorSpec(name, "int64", ("b", "t"), None) for name in ("input_ids", "attention_mask"))
    masks = (MaskSpec(("padding",), "attention_mask"),)
    contract = IO(inputs, (TensorSpec("y", "float32", ("b",), None),), (Dim("b", 1, 1, 4), Dim("t", 1, 2, 3)), masks)
    text = readme("m", contract, "tokenizer.json")
    stand_in = (
        "import attnport_bundle\nfrom attnport_bundle.format.contract import *\n"
        f"class load:\n    io = {contract!r}\n    def __init__(self, folder): pass\n"
        "    def __enter__(self): return self\n    def __exit__(self, *args): pass\n"
        "    def run(self, **feeds): return feeds\nattnport_bundle.load = load\n"
    )
    done = python(tmp_path, "-c", stand_in + program(text, "From text"))
    assert done.stdout == "{'input_ids': (2, 3), 'attention_mask': (2, 3)}\n", done.stderr
    assert "From text" not in readme("m", contract, None)
