"""The reader that every bundle carries: stands alone, checks what goes in, and says what is wrong."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import tiny_attention as tiny

from attnport.bundling.python import BundleError, FeedError, IntegrityError, Model, RuntimeMissing, load
from attnport.bundling.python import __main__ as command
from attnport.bundling.python.feeds import check, padding_masks
from attnport.bundling.python.goldens import Goldens
from attnport.bundling.python.manifest import (
    IO,
    KINDS,
    Alignment,
    Content,
    Dim,
    Mask,
    Polarity,
    Tensor,
    read,
)
from attnport.bundling.readme import readme
from attnport.masks.spec import ALIGNMENTS, CARRIES, POLARITIES, MaskSpec
from attnport.masks.spec import KINDS as CONTRACT_KINDS


@pytest.fixture
def model(made_bundle: Path) -> Model:
    return load(made_bundle)


def given(batch: int = 2, size: int = 5) -> dict[str, np.ndarray[Any, Any]]:
    return {"ids": np.ones((batch, size), np.int64), "attention_mask": np.ones((batch, size), np.int64)}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)


def test_it_runs_and_agrees_with_the_module(model: Model) -> None:
    import torch

    feeds = tiny.feeds([4, 6], 3)
    found = model.run(**feeds)
    with torch.no_grad():
        wanted = tiny.module()(**{name: torch.from_numpy(array) for name, array in feeds.items()})
    assert list(found) == ["hidden", "pooled"]
    np.testing.assert_allclose(found["pooled"], wanted[1].numpy(), rtol=0, atol=1e-6)


def test_it_stands_alone_and_leaves_the_folder_as_it_was(app: Path) -> None:
    before = {path: path.read_bytes() for path in app.rglob("*") if path.is_file()}
    program = (
        "import sys, attnport_bundle as b; m = b.load(); m.close(); "
        "print(sorted({n.split('.')[0] for n in sys.modules} & {'attnport','torch','pydantic','onnx','rich','numpy'}))"
    )
    for _ in range(2):
        done = run(app / "python", "-c", program)
        assert done.stdout.strip() == "['numpy']", done.stderr
        assert run(app / "python", "-m", "attnport_bundle", "selftest").returncode == 0
    assert {path: path.read_bytes() for path in app.rglob("*") if path.is_file()} == before


def test_importing_it_imports_nothing_heavy(app: Path) -> None:
    program = "import sys, attnport_bundle; print({'numpy', 'onnxruntime'} & set(sys.modules))"
    assert run(app / "python", "-c", program).stdout.strip() == "set()"


def test_padding_masks_from_lengths(model: Model) -> None:
    masks = model.masks([1, 3])
    assert masks["attention_mask"].tolist() == [[1, 0, 0], [1, 1, 1]]
    assert masks["attention_mask"].dtype == np.int64
    assert model.masks([2], size=4)["attention_mask"].tolist() == [[1, 1, 0, 0]]
    for lengths, size in (([], None), ([-1], None), ([5], 4), ([0], None)):
        with pytest.raises(FeedError, match="lengths"):
            model.masks(lengths, size)


def test_lengths_are_integers_in_a_list_or_an_array(model: Model) -> None:
    for lengths in (np.array([1, 3]), [np.int64(1), 3], np.array([1, 3], np.uint8)):
        assert model.masks(lengths)["attention_mask"].tolist() == [[1, 0, 0], [1, 1, 1]]  # type: ignore[arg-type]  # as from NumPy
    for wrong in ([5.5, 3.0], np.array([5.0]), np.array([[1, 3]]), ["2"], 3):
        with pytest.raises(FeedError, match=r"lengths: got .*; expected integers"):
            model.masks(wrong)  # type: ignore[arg-type]  # as a caller may have it
    with pytest.raises(FeedError, match=r"size: got \[4\.5\]; expected integers"):
        model.masks([2], size=4.5)  # type: ignore[arg-type]  # as a caller may have it


@pytest.mark.parametrize(
    ("polarity", "dtype", "dims", "expected"),
    [
        ("hide", "bool", ("b", "t"), [[False, True]]),
        ("additive", "float32", ("b", 1, 1, "t"), [[[[0.0, -np.inf]]]]),
        ("keep", "bool", ("b", 1, "t", "t"), [[[[True, False], [True, False]]]]),
    ],
)
def test_padding_masks_of_other_meanings_and_shapes(polarity: Any, dtype: str, dims: Any, expected: Any) -> None:
    contract = IO(
        (Tensor("m", dtype, dims, None),),
        (Tensor("y", "float32", ("b",), None),),
        (Dim("b", 1, 1, 4), Dim("t", 1, 2, 9)),
        (Mask(("padding",), "m", polarity, "upper_left", 0),),
    )
    mask = padding_masks(contract, [1], 2)["m"]
    assert mask.tolist() == expected
    assert check(contract, {"m": mask}) == {"b": 1, "t": 2}


def carried(tensor: Tensor, mask: Mask) -> IO:
    hidden = Tensor("x", "float32", ("b", "t"), None)
    return IO((tensor, hidden), (hidden,), (Dim("b", 1, 1, 4), Dim("t", 1, 2, 9)), (mask,))


def test_lengths_go_in_as_they_are() -> None:
    mask = Mask(("padding", "causal"), "n", "keep", "upper_left", 0, "lengths", "t")
    contract = carried(Tensor("n", "int32", ("b",), None), mask)
    made = padding_masks(contract, [1, 3], 4)["n"]
    assert (made.tolist(), made.dtype) == ([1, 3], np.int32)
    assert "`n` is padding and causal, a number of positions of `t` for each item" in readme("m", contract, None)
    assert "model.masks([2])  # the length of each item" in readme("m", contract, None)
    with pytest.raises(FeedError, match="lengths"):
        padding_masks(contract, [5], 4)


def test_ids_of_documents_are_one_document_an_item_with_zero_behind_it() -> None:
    mask = Mask(("documents", "padding"), "ids", "keep", "upper_left", 0, "ids")
    contract = carried(Tensor("ids", "int64", ("b", "t"), None), mask)
    assert padding_masks(contract, [1, 3])["ids"].tolist() == [[1, 0, 0], [1, 1, 1]]
    assert "equal within a document, 0 for padding" in readme("m", contract, None)


def test_a_mask_that_says_more_than_padding_is_not_made_from_lengths() -> None:
    mask = Mask(("padding", "causal"), "m", "keep", "upper_left", 0)
    contract = carried(Tensor("m", "bool", ("b", 1, "t", "t"), None), mask)
    with pytest.raises(FeedError, match="'m' is to say causal as well as padding; make it for your items"):
        padding_masks(contract, [1], 2)
    assert "model.masks" not in readme("m", contract, None)


def test_a_mask_that_hides_is_all_zeros_in_the_readme_program() -> None:
    mask = Mask(("explicit",), "m", "hide", "upper_left", 0)
    assert 'np.zeros((1, 2, 2), dtype="bool")' in readme(
        "m", carried(Tensor("m", "bool", ("b", "t", "t"), None), mask), None
    )


WRONG_MASKS = {
    "kind": ({"kinds": ("padding", "magic")}, "mask kind magic is not one of none, padding"),
    "no kind": ({"kinds": ()}, "mask kind missing"),
    "window": ({"window": -1}, "got window -1"),
    "lengths of nothing": ({"carries": "lengths"}, "carries lengths has keys None"),
    "keys of a mask": ({"keys": "t"}, "carries mask has keys 't'"),
    "an unknown dim": ({"carries": "lengths", "keys": "u"}, "'n' counts 'u', which is no dim"),
    "a rank": ({"kinds": ("documents",), "carries": "ids"}, "carries ids, which have rank 2"),
    "no input": ({"kinds": ("global",), "carries": "marks", "input": None}, "carried by None, which is no input"),
    "another input": ({"input": "y"}, "carried by 'y', which is no input"),
}


@pytest.mark.parametrize("name", WRONG_MASKS)
def test_masks_that_make_no_sense_are_refused(name: str) -> None:
    change, words = WRONG_MASKS[name]
    right = {"kinds": ("padding",), "input": "n", "polarity": "keep", "alignment": "upper_left", "window": 0}
    with pytest.raises(ValueError, match=re.escape(words)):
        carried(Tensor("n", "int64", ("b",), None), Mask(**{**right, **change}))  # type: ignore[arg-type]


def test_no_key_of_a_mask_may_be_left_out(app: Path) -> None:
    manifest = json.loads((app / "bundle.json").read_text())
    for key in ("carries", "keys", "window"):
        changed = json.loads(json.dumps(manifest))
        del changed["io"]["masks"][0][key]
        (app / "bundle.json").write_text(json.dumps(changed))
        with pytest.raises(IntegrityError, match=f"key '{key}' is missing"):
            read(app)


def test_a_model_without_a_padding_mask_says_so(model: Model) -> None:
    contract = dataclasses.replace(model.io, masks=())
    with pytest.raises(FeedError, match="takes no padding mask"):
        padding_masks(contract, [1])


def test_what_a_bundle_knows_of_masks_is_the_mask_contract() -> None:
    assert get_args(Polarity) == POLARITIES
    assert get_args(Alignment) == ALIGNMENTS
    assert get_args(Content) == tuple(CARRIES)
    assert KINDS == CONTRACT_KINDS
    assert [field.name for field in dataclasses.fields(Mask)] == [field.name for field in dataclasses.fields(MaskSpec)]


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
        model.run(**given())
    model.close()
    with pytest.raises(BundleError, match="closed"):
        model.run(**given())


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
    load(app, check_files=False).run(**given())


@pytest.mark.parametrize("name", ["model", "golden"])
def test_a_link_in_a_file_s_place_is_not_followed_even_unchecked(name: str, app: Path, tmp_path: Path) -> None:
    """The reader in C++ does not follow it either."""
    (path,) = (found for found in app.rglob("*") if found.name.startswith(name) and found.suffix in (".onnx", ".npz"))
    path.symlink_to(path.rename(tmp_path / "elsewhere"))
    with pytest.raises(IntegrityError, match=path.name), load(app, check_files=False) as model:
        list(Goldens(app, model.manifest).check(model))


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
    text = (app / "README.md").read_text()
    start = text.index("    import sys")
    program = "\n".join(line[4:] for line in text[start : text.index("## What goes in")].splitlines())
    assert len(program.splitlines()) <= 15
    done = run(app.parent, "-c", program)
    assert done.stdout == "hidden (2, 5, 8)\npooled (2, 8)\n", done.stderr


def test_a_bundle_that_moved_still_works(app: Path, tmp_path: Path) -> None:
    moved = Path(shutil.move(app, tmp_path / "product with a space"))
    assert run(moved / "python", "-m", "attnport_bundle", "selftest").returncode == 0
    assert read(moved).name == "tiny"


def test_the_readme_program_for_text_runs_as_it_stands(tmp_path: Path) -> None:
    import tokenizers

    vocabulary = {"[UNK]": 0, "a": 1, "sentence": 2, "[PAD]": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    (tmp_path / "app" / "python").mkdir(parents=True)
    tokenizer.save(str(tmp_path / "app" / "tokenizer.json"))
    stand_in = (
        "class load:\n    def __init__(self, folder): pass\n    def __enter__(self): return self\n"
        "    def __exit__(self, *args): pass\n    def run(self, **feeds): return feeds\n"
    )
    (tmp_path / "app" / "python" / "attnport_bundle.py").write_text(stand_in)
    inputs = tuple(Tensor(name, "int64", ("b", "t"), None) for name in ("input_ids", "attention_mask"))
    contract = IO(inputs, (Tensor("y", "float32", ("b",), None),), (Dim("b", 1, 1, 4), Dim("t", 1, 2, 3)), ())
    text = readme("m", contract, "tokenizer.json")
    start = text.index("    import sys", text.index("From text"))
    program = "\n".join(line[4:] for line in text[start : text.index("## What goes in")].splitlines())
    done = run(tmp_path, "-c", program)
    assert done.stdout == "{'input_ids': (2, 3), 'attention_mask': (2, 3)}\n", done.stderr
    assert "From text" not in readme("m", contract, None)
