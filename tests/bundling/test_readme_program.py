"""The programs for text in a bundle's README, which run as they stand."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bundle_folders import program

from attnport.artifacts import Prompts
from attnport.bundling.characters import character_table
from attnport.bundling.readme import readme
from attnport.parity.golden import _FACTORS_OF_ITSELF
from attnport_bundle.format.contract import IO, Dim, MaskSpec, TensorSpec

IDS = "input_ids"
INPUTS = tuple(TensorSpec(name, "int64", ("b", "t"), None) for name in (IDS, "attention_mask", "token_type_ids"))
MASK = MaskSpec(("padding",), "attention_mask", "keep", "upper_left", 0, "mask", None)
CONTRACT = IO(INPUTS, (TensorSpec("y", "float32", ("b",), None),), (Dim("b", 1, 1, 4), Dim("t", 1, 2, 6)), (MASK,))
EMBEDDER = dataclasses.replace(CONTRACT, outputs=(TensorSpec("y", "float32", ("b", 8), None),))
VOCABULARY = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "a": 4, "sen": 5, "##tence": 6, ".": 7}


def bert(lowercase: bool = True) -> dict[str, object]:
    """A `tokenizer.json` of the least kind that the reader knows."""
    parts = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "added_tokens": [],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": parts,
            "pair": parts,
            "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}},
        },
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": VOCABULARY,
        },
    }


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A folder beside which a reader is installed: the real one, but a model that gives back what it is fed."""
    reader = Path(__file__).parents[2] / "attnport_bundle"
    package = tmp_path / "installed" / "attnport_bundle"
    (tmp_path / "app" / "python").mkdir(parents=True)
    for folder in ("", "format", "text", "runtimes"):
        shutil.copytree(reader / folder, package / folder, ignore=lambda at, _: {
            path.name for path in Path(at).iterdir() if path.suffix != ".py"}, dirs_exist_ok=True)  # fmt: skip
    echo = (
        "class load:\n    def __init__(self, folder): self.io = io\n    def __enter__(self): return self\n"
        "    def __exit__(self, *args): pass\n    def run(self, **feeds): return feeds\n"
    )
    contract = f"from .format.contract import IO, Dim, MaskSpec, TensorSpec\nio = {CONTRACT!r}\n"
    (package / "model.py").write_text(f"{contract}\n{echo}\nclass Model: pass\n")
    return tmp_path / "app"


def run(code: str, app: Path) -> subprocess.CompletedProcess[str]:
    installed = {**os.environ, "PYTHONPATH": str(app.parent / "installed")}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=app.parent, env=installed, capture_output=True, text=True, check=False
    )


def test_the_page_says_where_the_bounds_of_the_self_test_come_from(app: Path) -> None:
    plain = " ".join(readme("m", CONTRACT, None, app, plans={"ort_cpu": "fp32"}).split())
    assert "a few times what PyTorch itself was" in plain
    assert "1.5 times" not in plain
    both = " ".join(readme("m", CONTRACT, None, app, plans={"ort_cpu": "fp32", "ort_cpu.int8": "int8"}).split())
    assert "Of `ort_cpu.int8`, which computes in integers" in both
    assert "1.5 times what these are off from float64" in both
    assert _FACTORS_OF_ITSELF == (1.5, 1.5)
    alone = readme("m", CONTRACT, None, app, plans={"ort_cpu.int8": "int8"})
    assert "PyTorch itself" not in alone


def test_the_readers_own_tokenizer_is_shown_and_runs_as_it_stands(app: Path) -> None:
    (app / "tokenizer.json").write_text(json.dumps(bert()))
    (app / "tokenizer.chars").write_text(character_table(app / "tokenizer.json") or "")
    page = readme("m", CONTRACT, "tokenizer.json", app)
    assert "pip install tokenizers" not in page
    code = program(page, "From text")
    done = run(code, app)
    assert done.stdout == "{'input_ids': (2, 6), 'token_type_ids': (2, 6), 'attention_mask': (2, 6)}\n", done.stderr


def test_of_another_kind_the_package_is_named(app: Path) -> None:
    (app / "tokenizer.json").write_text(json.dumps({**bert(), "normalizer": {"type": "NFC"}}))
    page = readme("m", CONTRACT, "tokenizer.json", app)
    assert "From text (`pip install tokenizers`)" in page
    assert "from attnport_bundle import Tokenizer" in program(page, "From text")


@pytest.mark.parametrize("direction", ["Left", "Right"])
def test_the_program_cuts_where_the_file_says(app: Path, direction: str) -> None:
    pytest.importorskip("tokenizers")
    truncation = {"direction": direction, "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    other = {"version": "1.0", **bert(), "normalizer": {"type": "Lowercase"}, "truncation": truncation}
    (app / "tokenizer.json").write_text(json.dumps(other))
    page = readme("m", CONTRACT, "tokenizer.json", app)
    assert "longer than 6 tokens" in page
    code = program(page, "From text").replace('"A sentence.", "Another one, longer."', '"a . . . . . .", "a"')
    code += "\nprint(outputs['input_ids'].tolist())\n"
    done = run(code, app)
    cut = {"Left": [2, 7, 7, 7, 7, 7], "Right": [2, 4, 7, 7, 7, 7]}[direction]
    assert done.stdout.splitlines()[1:] == [f"{[cut, [2, 4, 0, 0, 0, 0]]}"], done.stderr


def test_the_program_pads_on_the_side_and_with_the_token_of_the_file(app: Path) -> None:
    pytest.importorskip("tokenizers")
    padding = {"strategy": {"Fixed": 20}, "direction": "Left", "pad_id": 5, "pad_type_id": 0, "pad_token": "[PAD]",
               "pad_to_multiple_of": None}  # fmt: skip
    (app / "tokenizer.json").write_text(json.dumps({"version": "1.0", **bert(), "padding": padding}))
    page = readme("m", CONTRACT, "tokenizer.json", app)
    code = program(page, "From text").replace('"A sentence.", "Another one, longer."', '"a .", "a"')
    code += "\nprint(outputs['input_ids'].tolist(), outputs['attention_mask'].tolist())\n"
    done = run(code, app)
    assert done.stdout.splitlines()[1:] == ["[[2, 4, 7], [5, 2, 4]] [[1, 1, 1], [0, 1, 1]]"], done.stderr


def test_prompts_are_shown_by_their_use(app: Path) -> None:
    (app / "tokenizer.json").write_text(json.dumps(bert()))
    prompts = Prompts({"query": "Find\nan answer: ", "document": "passage: "}, "query")
    page = readme("m", EMBEDDER, "tokenizer.json", app, prompts=prompts)
    assert '- `prompt="query"`: `"Find\\nan answer: "`\n- `prompt="document"`: `"passage: "`' in page
    assert "it is that of `query`" in page
    empty = readme("m", EMBEDDER, "tokenizer.json", app, prompts=Prompts({"query": "", "document": ""}))
    assert "prompt" not in empty
    assert "model.embed" in program(empty, "From text")
    assert "longer than 6 tokens, the model's limit," in empty
    limited = readme("m", EMBEDDER, "tokenizer.json", app, text_limit=4)
    assert "longer than 4 tokens, as in sentence-transformers," in limited


def test_types_of_tokens_are_those_of_one_text(app: Path) -> None:
    assert 'feeds["token_type_ids"] = np.zeros(' in program(readme("m", CONTRACT, None, app), "From arrays")


def test_a_model_of_other_inputs_has_no_program_for_text(app: Path) -> None:
    (app / "tokenizer.json").write_text(json.dumps(bert()))
    other = IO(
        (*INPUTS, TensorSpec("pixels", "float32", ("b",), None)), CONTRACT.outputs, CONTRACT.dims, CONTRACT.masks
    )
    assert "From text" not in readme("m", other, "tokenizer.json", app)
    assert "From text" not in readme("m", CONTRACT, None, app)


def test_nothing_in_a_bundle_stands_in_for_another_module(app: Path) -> None:
    (app / "tokenizer.json").write_text(json.dumps(bert()))
    for name in ("json", "numpy", "re"):
        (app / "python" / f"{name}.py").write_text("raise SystemExit('taken')")
        (app / f"{name}.py").write_text("raise SystemExit('taken')")
    code = program(readme("m", CONTRACT, "tokenizer.json", app), "From text")

    done = run(code, app)
    assert "input_ids" in done.stdout, done.stderr
    done = run(code.replace("sys.path.append(", "sys.path.insert(0, "), app)
    assert "taken" in done.stderr
