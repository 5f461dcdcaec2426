"""What of an `hf:` place is read: links that lead out, pickles, adapters and a model's own code are refused by name."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import hf_folders
import pytest
from loaded import load

from attnport.artifacts import FORMAT, Manifest
from attnport.errors import SpecError, UsageError
from attnport.folder import loading
from attnport.folder.workspace import load_spec
from attnport.sources.hf.files import describing_files

ROOT = Path(__file__).parents[2]
OWN_CODE = """
import os, pathlib
pathlib.Path(os.environ["ATTNPORT_TEST_RAN"]).write_text("ran")
from transformers import BertConfig, BertForSequenceClassification, BertModel
class OwnConfig(BertConfig):
    model_type = "own"
class OwnModel(BertModel):
    config_class = OwnConfig
class OwnForSequenceClassification(BertForSequenceClassification):
    config_class = OwnConfig
def generate(model, **kwargs):
    return None
"""
LLAVA = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "text_config": hf_folders.TEXT}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = hf_folders.save("bert", tmp_path_factory.mktemp("hf") / "bert")
    hf_folders.add_pooling(folder, "mean", normalise=True)
    (folder / "tokenizer.json").write_text("{ }")
    (folder / "generation_config.json").write_text("{}")
    (folder / "README.md").write_text("# a-model\n")
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "bert"))


def configure(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "tokenizer.json",
        "model.safetensors",
        "generation_config.json",
        "README.md",
        "modules.json",
        "1_Pooling/config.json",
        "1_Pooling",
    ],
)
def test_a_link_out_of_the_folder_is_refused_by_name(name: str, folder: Path, tmp_path: Path) -> None:
    (folder / name).rename(tmp_path / "outside")
    (folder / name).symlink_to(tmp_path / "outside", target_is_directory=(tmp_path / "outside").is_dir())
    with pytest.raises(SpecError, match=rf"{name}.* links to .*outside.*, outside the folder") as told:
        load(f"hf:{folder}")
    assert "hub cache" in told.value.hint


def test_a_link_of_a_link_is_followed_to_its_end(folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer.json").rename(tmp_path / "outside")
    (folder / "inner").symlink_to(tmp_path / "outside")
    (folder / "tokenizer.json").symlink_to("inner")
    with pytest.raises(SpecError, match=r"tokenizer\.json' links to"):
        load(f"hf:{folder}")


def test_links_that_stay_inside_the_folder_and_to_the_folder_are_followed(folder: Path, tmp_path: Path) -> None:
    (folder / "files").mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).rename(folder / "files" / name)
        (folder / name).symlink_to(Path("files") / name)
    (folder / "data").symlink_to(tmp_path)  # nothing of it is read
    (tmp_path / "link").symlink_to(folder)
    assert load(f"hf:{tmp_path / 'link'}").tokenizer == tmp_path / "link" / "tokenizer.json"


@pytest.mark.parametrize("shared", [False, True])
def test_a_hub_caches_links_to_its_blobs_are_followed(shared: bool, saved: Path, tmp_path: Path) -> None:
    load(f"hf:{cached(saved, tmp_path / 'hub', shared)}")


def cached(saved: Path, cache: Path, shared: bool) -> Path:
    """A snapshot in the hub cache's layout; `shared`: its blobs are links to those of the whole cache."""
    repository = cache / "models--owner--name"
    snapshot = repository / "snapshots" / ("0" * 40)
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    (repository / "blobs").mkdir()
    for path in (path for path in saved.rglob("*") if path.is_file()):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        blob = repository / "blobs" / digest
        target = cache / "blobs" / digest[:2] / digest if shared else blob
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
        link = snapshot / path.relative_to(saved)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
        if shared and not blob.is_symlink():
            blob.symlink_to(os.path.relpath(target, blob.parent))
    return snapshot


def test_a_blob_that_leads_out_of_the_cache_is_refused(saved: Path, tmp_path: Path) -> None:
    snapshot = cached(saved, tmp_path / "hub", shared=False)
    blob = (snapshot / "tokenizer.json").resolve()
    blob.rename(tmp_path / "outside")
    blob.symlink_to(tmp_path / "outside")
    with pytest.raises(SpecError, match=r"tokenizer\.json' links to"):
        load(f"hf:{snapshot}")


def test_a_hub_id_is_read_from_the_cache(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    snapshot = cached(saved, tmp_path / "hub", shared=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    spec = load("hf:owner/name")
    assert (spec.name, spec.tokenizer) == ("name", snapshot / "tokenizer.json")
    (snapshot / "adapter_config.json").write_text("{}")
    with pytest.raises(SpecError, match=r"adapter_config\.json"):
        load("hf:owner/name")


def test_a_hub_id_has_the_steps_of_sentence_transformers_too(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    folder = tmp_path / "folder"
    shutil.copytree(saved, folder)
    (folder / "config_sentence_transformers.json").write_text('{"prompts": {"query": "q: "}}')
    cached(folder, tmp_path / "hub", shared=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    spec = load("hf:owner/name")
    assert [output.name for output in spec.io.outputs] == ["last_hidden_state", "sentence_embedding"]
    assert dict(spec.prompts.named) == {"query": "q: "}


@pytest.mark.parametrize(
    "shard", ["../outside.safetensors", "/outside.safetensors", "sub/one.safetensors", "one.bin", 3]
)
def test_an_index_names_only_safetensors_files_beside_it(shard: object, folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.rename(folder / "one.safetensors")
    index: dict[str, Any] = {"metadata": {"total_size": 1}, "weight_map": {"a": "one.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    load(f"hf:{folder}")
    index["weight_map"]["b"] = shard
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(SpecError, match=r"index\.json names .*; expected \.safetensors files beside it"):
        load(f"hf:{folder}")


@pytest.mark.parametrize("name", ["../outside.safetensors", "adapter_model.bin", "sub/model.safetensors"])
def test_a_config_names_only_safetensors_files_beside_it(name: str, folder: Path) -> None:
    shutil.copy(folder / "model.safetensors", folder.parent / "outside.safetensors")
    configure(folder, transformers_weights=name)
    with pytest.raises(SpecError, match="names weights"):
        load(f"hf:{folder}")
    configure(folder, transformers_weights=None, text_config={"transformers_weights": name})
    with pytest.raises(SpecError, match="names weights"):
        load(f"hf:{folder}")


def test_pickled_weights_are_not_read_and_the_way_out_is_told(folder: Path) -> None:
    import safetensors.torch
    import torch

    torch.save(safetensors.torch.load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    load(f"hf:{folder}")  # beside others they do no harm
    (folder / "model.safetensors").unlink()
    with pytest.raises(
        SpecError, match=r"it has no model\.safetensors; pickled weights \(\.bin\) are not read"
    ) as told:
        load(f"hf:{folder}")
    assert "save_pretrained" in told.value.hint


@pytest.mark.parametrize(
    "values",
    [
        {"backbone": "owner/name"},
        {"architecture": "hf-hub:owner/name"},
        {"vision_config": {"model_args": {"checkpoint_path": "x.bin"}}},
        {"parts": [{"backbone": "local-dir:../x"}]},
    ],
)
def test_a_config_that_names_a_model_elsewhere_is_refused(values: dict[str, Any], folder: Path) -> None:
    configure(folder, **values)
    with pytest.raises(SpecError, match="would be loaded from elsewhere"):
        load(f"hf:{folder}")
    configure(folder, **{**dict.fromkeys(values), "backbone": "resnet50", "attn_implementation": "owner/kernel"})
    load(f"hf:{folder}")  # plain names are architectures; which attention runs is not the folder's to say


def own(folder: Path, case: str) -> None:
    """Makes a model with Python code of its own, named where the auto class of `case` looks for it."""
    for name in ("own_code.py", "custom_generate/generate.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(OWN_CODE)
    named = {"AutoConfig": "own_code.OwnConfig", "AutoModel": "own_code.OwnModel"}
    named["AutoModelForSequenceClassification"] = "own_code.OwnForSequenceClassification"
    if case == "AutoConfig":
        configure(folder, model_type="own", architectures=["OwnModel"], auto_map=named)
    elif case == "AutoModel":
        configure(folder, model_type="trocr", architectures=["OwnModel"], auto_map={"AutoModel": named["AutoModel"]})
    elif case == "AutoModelForSequenceClassification":
        configure(folder, model_type="trocr", architectures=[case], auto_map={case: named[case]})
    elif case == "config inside the config":
        inner = {"model_type": "trocr", "auto_map": {"AutoModel": "own_code.OwnModel"}}
        (folder / "config.json").write_text(json.dumps({**LLAVA, "vision_config": inner}))
    else:
        shutil.rmtree(folder)
        hf_folders.save("gpt2", folder)
        configure(folder, architectures=["GPT2LMHeadModel"])
        (folder / "custom_generate").mkdir()
        (folder / "custom_generate" / "generate.py").write_text(OWN_CODE)


CASES = ["AutoConfig", "AutoModel", "AutoModelForSequenceClassification", "config inside the config", "custom_generate"]


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that OWN_CODE writes when it is run; what transformers copies of it goes to a folder of the test."""
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("ATTNPORT_TEST_RAN", str(tmp_path / "ran"))
    return tmp_path / "ran"


@pytest.mark.parametrize("case", CASES)
def test_nothing_asks_whether_to_run_code_and_a_yes_changes_nothing(
    case: str, folder: Path, ran: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(builtins, "input", lambda question="": asked.append(question) or "y")
    own(folder, case)
    if case == "custom_generate":
        load(f"hf:{folder}")  # its own way to generate is not what is exported
    else:
        with pytest.raises(
            SpecError, match=r"this Python code would be run: 'own_code\.py'\.|execute custom code"
        ) as told:
            load(f"hf:{folder}")
        assert "--trust-remote-code" in told.value.hint or case == "config inside the config"
    assert not asked
    assert not ran.exists()


def test_a_yes_on_stdin_is_not_read(folder: Path, ran: Path, tmp_path: Path) -> None:
    own(folder, "AutoConfig")
    done = subprocess.run(
        [sys.executable, "-m", "attnport.cli", "export", f"hf:{folder}", "-o", str(tmp_path / "out")],
        input="y\ny\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 2, done.stderr
    assert "this Python code would be run: 'own_code.py'." in done.stderr
    assert not ran.exists()
    assert not (tmp_path / "out").exists()


def test_with_trust_the_folders_code_is_run_and_the_source_says_so(folder: Path, ran: Path) -> None:
    shutil.rmtree(folder)
    hf_folders.save("bert_classes", folder)
    own(folder, "AutoConfig")
    configure(folder, architectures=["OwnForSequenceClassification"])
    spec = load(f"hf:{folder}", trust_remote_code=True)
    assert ran.exists()
    assert spec.source.trust_remote_code
    assert [one.name for one in spec.io.outputs] == ["logits"]
    manifest = Manifest(FORMAT, "0", spec.name, spec.source, spec.io, 23, (), None, {}, {})
    ran.unlink()
    loading.require(spec.source, given=True)
    assert load_spec(manifest).source == spec.source  # a later verb reloads it as it was exported
    untrusted = dataclasses.replace(spec.source, trust_remote_code=False)
    with pytest.raises(SpecError, match="would be run"):
        load_spec(dataclasses.replace(manifest, source=untrusted))


def test_code_of_another_repository_is_named(folder: Path) -> None:
    configure(folder, model_type="own", auto_map={"AutoConfig": "owner/name--some.Own", "AutoTokenizer": ["a.B", None]})
    with pytest.raises(SpecError, match=r"would be run: 'a\.py', 'some\.py' of the hub's 'owner/name'\."):
        load(f"hf:{folder}")


def test_trust_in_code_of_no_hf_model_is_told() -> None:
    with pytest.raises(UsageError, match="--trust-remote-code does not apply"):
        load("bert_encoder", trust_remote_code=True)


def calls(text: str) -> list[tuple[int, bool]]:
    """The line of each `from_pretrained` call, and whether it says what of remote code."""
    return [
        (node.lineno, any(keyword.arg == "trust_remote_code" for keyword in node.keywords))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "from_pretrained"
    ]


def test_every_call_of_from_pretrained_says_what_of_remote_code() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}": says
        for part in ("attnport", "benchmarks", "docs", "examples", "tests", "tools")
        for path in (ROOT / part).rglob("*.py")
        for line, says in calls(path.read_text(encoding="utf-8"))
    }
    assert len(found) >= 2
    assert [place for place, says in found.items() if not says] == []
    assert calls("a.from_pretrained(b)\nA.from_pretrained(b, trust_remote_code=False)") == [(1, False), (2, True)]


@pytest.fixture
def described(tmp_path: Path) -> Path:
    place = tmp_path / "model"
    place.mkdir()
    for name in ("config.json", "tokenizer.json", "vocab.txt", "model.safetensors", "notes.json", "README.md"):
        (place / name).write_text("{}")
    return hf_folders.add_pooling(place, "mean", normalise=True, further=("Dense",))


def test_config_tokenizer_card_and_steps_are_found_and_the_models_weights_are_not(described: Path) -> None:
    (described / "3_Dense").mkdir()
    for name in ("config.json", "model.safetensors"):
        (described / "3_Dense" / name).write_text("{}")
    assert set(describing_files(str(described))) == {
        "config.json",
        "tokenizer.json",
        "vocab.txt",
        "README.md",
        "modules.json",
        "1_Pooling/config.json",
        "3_Dense/config.json",
        "3_Dense/model.safetensors",
    }


def test_what_leads_out_of_a_described_folder_is_refused(described: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    (described / "LICENSE").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(SpecError, match="'LICENSE' links to"):
        describing_files(str(described))
    (described / "LICENSE").unlink()
    modules = json.loads((described / "modules.json").read_text())
    modules[1]["path"] = "../elsewhere"
    (described / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(SpecError, match="outside the folder"):
        describing_files(str(described))


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SpecError, match="has no config"):
        describing_files(str(tmp_path))
