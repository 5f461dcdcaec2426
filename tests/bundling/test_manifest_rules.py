"""What a manifest may not say, because it contradicts itself or no reader could act on it."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import time
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundle_folders import python
from bundle_forms import UNRUN
from manifest_decoders import FINE_DECODERS, WRONG_DECODERS, decoder, rules

from attnport.bundling import write as writing
from attnport_bundle import BundleError, IntegrityError
from attnport_bundle.format.contract import CARRIES, IO, RANKS, Dim, MaskSpec, TensorSpec
from attnport_bundle.format.manifest import BundleIO, Manifest, from_bytes

Edit = Callable[[dict[str, Any]], Any]
PROFILE = {
    "dims": [
        {"name": "batch", "min": 1, "opt": 2, "max": 8, "step": 1},
        {"name": "seq", "min": 1, "opt": 5, "max": 16, "step": 1},
    ]
}


def form(found: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = found["forms"]["ort_cpu"]
    return made


def engine(found: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Makes the form one of TensorRT-RTX, as far as the manifest goes."""
    form(found).update(runtime="tensorrt_rtx", provider=None, external=[], profiles=[copy.deepcopy(PROFILE)])
    form(found)["requires"] = {"runtime": "1.7.1.116", "exact": True, "opset": None, "sm": [86, 89]}
    form(found).update(changes)
    return form(found)


def mask(found: dict[str, Any], **changes: Any) -> None:
    """Changes the mask of `attention_mask`."""
    found["io"]["masks"][0].update(changes)


def additive(found: dict[str, Any]) -> dict[str, Any]:
    """Makes `attention_mask` an input of floats."""
    found["io"]["inputs"][1].update(dtype="float32")
    form(found)["dtypes"].update(attention_mask="float32")
    return found


def said(content: str, kind: str) -> Edit:
    """Makes `attention_mask` hold a content that says a kind, with the rank that it has."""

    def edit(found: dict[str, Any]) -> None:
        found["io"]["inputs"][1].update(dims=["batch", "seq"][: RANKS.get(content)])
        mask(found, kinds=[kind], carries=content, keys="seq" if content == "lengths" else None)

    return edit


def listed(found: dict[str, Any], name: str) -> None:
    """One more name among the files."""
    found["files"][name] = found["files"]["weights.bin"]


def tokenizer(found: dict[str, Any], chars: str | None) -> str:
    """A tokenizer of these files."""
    found["tokenizer"] = {"file": "tokenizer.json", "chars": chars}
    for name in ("tokenizer.json", *([chars] if chars else [])):
        listed(found, name)
    return "tokenizer.chars"


def unverified(found: dict[str, Any], **changes: Any) -> dict[str, Any]:
    found["unverified"] = True
    form(found)["proof"] = "graph-only"
    form(found)["parity"] = UNRUN | {"verdict": "NOT_RUN", "graph": "NOT_RUN"} | changes
    return form(found)


SECONDS = {"min": 2, "opt": 4, "max": 16, "step": 2}


def stepped(found: dict[str, Any], step: int) -> None:
    """Another step of the dim `seq`, from 2 to 16."""
    found["io"]["dims"][1].update(SECONDS | {"step": step})


def prompts(default: str = "query", **named: object) -> dict[str, Any]:
    """What a manifest says of prompts."""
    return {"named": named, "default": default}


FINE: dict[str, Edit] = {
    "as it was made": lambda m: None,
    "an engine": lambda m: engine(m),
    "an engine that does not say for which devices": lambda m: engine(
        m, requires={"runtime": "1", "exact": True, "opset": None, "sm": []}
    ),
    "openvino": lambda m: form(m).update(runtime="openvino", provider=None),
    "outputs in bfloat16": lambda m: form(m)["dtypes"].update(hidden="bfloat16"),
    "unverified": lambda m: unverified(m),
    "graph alone": lambda m: (form(m).update(proof="graph-only"), form(m)["parity"].update(runtime="NOT_RUN")),
    "a bound of zero": lambda m: m["goldens"]["bounds"][0].update(rms_bound=0),
    "a window": lambda m: mask(m, kinds=["padding", "window"], window=7),
    **{f"{content} of {kind}": said(content, kind) for content, kinds in CARRIES.items() for kind in kinds},
    "an additive mask of floats": lambda m: mask(additive(m), polarity="additive"),
    "without a reader for Python": lambda m: m.update(files={n: f for n, f in m["files"].items() if "python" not in n}),
    "a step": lambda m: stepped(m, 2),
    "a step of an engine": lambda m: (engine(m), stepped(m, 2), form(m)["profiles"][0]["dims"][1].update(SECONDS)),
    **FINE_DECODERS,
    "prompts": lambda m: m.update(prompts=prompts(query="Find\nan answer:\t\u3000", document="")),
    "a limit of texts": lambda m: m.update(text_limit=256),
    "a tokenizer without characters": lambda m: tokenizer(m, None),
    "a tokenizer with its characters": lambda m: tokenizer(m, "tokenizer.chars"),
    "an output of a size that nothing tells": lambda m: m["io"]["outputs"][0].update(dims=["batch", "?", 16]),
    "the largest integer": lambda m: m["io"]["inputs"][0].update(high=2**53 - 1),
}
WRONG: dict[str, tuple[Edit, str]] = {
    "an input of a size that nothing tells": (
        lambda m: m["io"]["inputs"][0].update(dims=["batch", "?"]),
        "got dim '?' (no input has ?)",
    ),
    "runtime": (lambda m: form(m).update(runtime="caffe"), "runtime: got 'caffe'"),
    "no provider": (lambda m: form(m).update(provider=None), "got provider None for onnxruntime"),
    "provider of another": (lambda m: form(m).update(runtime="openvino"), "got provider 'CPUExecutionProvider'"),
    "profiles of an ONNX file": (lambda m: form(m).update(profiles=[PROFILE]), "has profiles and an exact release"),
    "an engine without": (lambda m: engine(m, profiles=[]), "has profiles and an exact release"),
    "an exact ONNX file": (lambda m: form(m)["requires"].update(exact=True), "has profiles and an exact release"),
    "an engine of any release": (lambda m: (engine(m), form(m)["requires"].update(exact=False)), "an exact release"),
    "an engine with an opset": (lambda m: (engine(m), form(m)["requires"].update(opset=23)), "an engine has none"),
    "an engine with weights": (lambda m: engine(m, external=["weights.bin"]), "no external data"),
    "an ONNX file without opset": (lambda m: form(m)["requires"].update(opset=None), "an ONNX file has an opset"),
    "devices of an ONNX file": (lambda m: form(m)["requires"].update(sm=[86]), "an ONNX file has an opset"),
    "devices twice": (lambda m: (engine(m), form(m)["requires"].update(sm=[86, 86])), "increasing"),
    "devices below zero": (lambda m: (engine(m), form(m)["requires"].update(sm=[-1])), "increasing"),
    "opset 0": (lambda m: form(m)["requires"].update(opset=0), "got opset 0"),
    "release": (lambda m: form(m)["requires"].update(runtime="1.x"), "is not a release"),
    "release in other digits": (lambda m: form(m)["requires"].update(runtime="١.٢"), "is not a release"),
    "dims of a profile": (lambda m: engine(m, profiles=[{"dims": PROFILE["dims"][:1]}]), "a profile has dims"),
    "size of a profile": (
        lambda m: (engine(m), form(m)["profiles"][0]["dims"][1].update(max=17)),
        "seq from 1 to 17; the model takes 1 to 16",
    ),
    **WRONG_DECODERS,
    "a tokenizer by its name": (lambda m: (listed(m, "a.json"), m.update(tokenizer="a.json")), "got 'a.json'"),
    "a tokenizer without its characters' name": (lambda m: m.update(tokenizer={"file": "a.json"}), "is missing"),
    "characters of another file": (lambda m: tokenizer(m, "model.chars"), "expected 'tokenizer.chars'"),
    "characters that are no file": (lambda m: m["files"].pop(tokenizer(m, "tokenizer.chars")), "not among the files"),
    "a prompt that is a number": (lambda m: m.update(prompts=prompts(query=1)), "named.query: got 1; expected str"),
    "a prompt that is too long": (lambda m: m.update(prompts=prompts(query="x" * 1001)), "text of at most 1000"),
    "a prompt of half a pair": (lambda m: m.update(prompts=prompts(query="\ud800")), "half of a surrogate pair"),
    "a prompt's name with escapes": (lambda m: m.update(prompts=prompts("", **{"a\x1b": ""})), "expected printable"),
    "no prompt of the default's name": (lambda m: m.update(prompts=prompts(document="")), "got default 'query'"),
    "no labels, as before there were any": (lambda m: m["io"]["inputs"][0].pop("labels"), "of another release"),
    "prompts without a default": (lambda m: m.update(prompts={"named": {}}), "key 'default' is missing"),
    "prompts of nothing": (lambda m: m.update(prompts=None), "prompts: got None"),
    "a limit of no token": (lambda m: m.update(text_limit=0), "got text_limit 0"),
    "step of a profile": (
        lambda m: (engine(m), stepped(m, 2), form(m)["profiles"][0]["dims"][1].update(min=2, opt=5, max=16)),
        "seq from 2 to 16; the model takes 2 to 16 in steps of 2",
    ),
    "step of 0": (lambda m: stepped(m, 0), "seq"),
    "sizes that are no multiples": (lambda m: stepped(m, 3), "multiples of a step of 1 or more"),
    "dtype missing": (lambda m: form(m)["dtypes"].pop("hidden"), "'hidden' is None in the file"),
    "dtype of nothing": (lambda m: form(m)["dtypes"].update(more="int64"), "has a name that is no input or output"),
    "dtype of another kind": (lambda m: form(m)["dtypes"].update(ids="int32"), "'ids' is int32 in the file"),
    "dtype unheard of": (lambda m: form(m)["dtypes"].update(hidden="float8"), "'hidden' is float8 in the file"),
    "a model of another format": (
        lambda m: (listed(m, "model.ort"), form(m).update(file="model.ort")),
        "got file 'model.ort' for onnxruntime; expected a name that ends in .onnx",
    ),
    "proof not shown": (lambda m: form(m)["parity"].update(runtime="NOT_RUN"), "got proof device"),
    "proof too modest": (lambda m: form(m).update(proof="graph-only"), "got proof graph-only"),
    "verdict FAIL": (lambda m: form(m)["parity"].update(verdict="FAIL"), "parity failed"),
    "graph FAIL": (lambda m: form(m)["parity"].update(graph="FAIL"), "parity failed"),
    "verdict of nothing": (lambda m: unverified(m, verdict="PASS"), "got verdict PASS of runtime NOT_RUN"),
    "unverified for nothing": (lambda m: m.update(unverified=True), "got unverified True"),
    "verified by nobody": (lambda m: (unverified(m), m.update(unverified=False)), "got unverified False"),
    "bound below zero": (lambda m: m["goldens"]["bounds"][0].update(max_bound=-1e-9), "a bound is below zero"),
    "no bounds": (lambda m: m["goldens"].update(bounds=[]), "no golden case"),
    "high below 1": (lambda m: m["io"]["inputs"][0].update(high=0), "got high 0 for int64"),
    "high of floats": (lambda m: additive(m)["io"]["inputs"][1].update(high=2), "got high 2 for float32"),
    "high of an output": (
        lambda m: (m["io"]["outputs"][0].update(dtype="int64", high=9), form(m)["dtypes"].update(hidden="int64")),
        "output 'hidden': got high 9",
    ),
    "window without the kind": (lambda m: mask(m, window=7), "got window 7"),
    "none and padding": (lambda m: mask(m, kinds=["none", "padding"]), "none is alone"),
    "a kind twice": (lambda m: mask(m, kinds=["padding", "padding"]), "each is there once"),
    "marks of padding": (lambda m: mask(m, carries="marks"), "marks cannot say padding"),
    "lengths of two kinds": (
        lambda m: mask(m, kinds=["padding", "prefix"], carries="lengths", keys="seq"),
        "lengths cannot say padding, prefix",
    ),
    "marks that hide": (
        lambda m: mask(m, kinds=["global", "window"], carries="marks", polarity="hide"),
        "got polarity hide for marks",
    ),
    "ids of floats": (lambda m: mask(additive(m), kinds=["documents"], carries="ids"), "which are integers"),
    "additive of integers": (lambda m: mask(m, polarity="additive"), "which is of floats"),
    "code beside the reader": (lambda m: listed(m, "python/numpy.py"), "'python/numpy.py' is not of the reader"),
    "code beside it in other case": (lambda m: listed(m, "Python/numpy.py"), "is not of the reader"),
    "another package": (lambda m: listed(m, "python/numpy/__init__.py"), "is not of the reader"),
    "a reader with bytecode": (
        lambda m: m["files"].pop("python/attnport_bundle/__pycache__"),
        "is not among the files of the reader",
    ),
    "version that is long": (lambda m: m.update(version="9" * 10**5), "this reader knows version 1"),
    "name with escapes": (lambda m: m.update(name="a\x1b[2J"), "expected printable text"),
    "key with escapes": (lambda m: m["provenance"]["versions"].update({"a\x1b": "1"}), "expected printable text"),
    "reason too long": (lambda m: form(m)["parity"].update(reason="x" * 1001), "at most 1000 characters"),
    "integer": (lambda m: m["io"]["inputs"][0].update(high=2**53), "high: got 9007199254740992"),
    "integer of many digits": (lambda m: m["files"]["weights.bin"].update(bytes=10**400), "bytes: got 1000"),
    "signature": (lambda m: m["files"].update({"Bundle.SIG": m["files"]["weights.bin"]}), "may be one file"),
}


def told(folder: Path, edit: Edit) -> bytes:
    found = json.loads((folder / "bundle.json").read_text())
    edit(found)
    return json.dumps(found).encode()


@pytest.mark.parametrize("name", FINE)
def test_what_makes_sense_is_read(made_bundle: Path, name: str) -> None:
    assert from_bytes(told(made_bundle, FINE[name]), "here").name == "tiny"


@pytest.mark.parametrize("name", WRONG)
def test_what_makes_no_sense_is_refused_by_its_place(made_bundle: Path, name: str) -> None:
    edit, words = WRONG[name]
    with pytest.raises(BundleError) as caught:
        from_bytes(told(made_bundle, edit), "here")
    assert isinstance(caught.value, IntegrityError) is not name.startswith("version")
    assert len(str(caught.value)) < 1000
    assert words in str(caught.value)
    assert str(caught.value).isprintable(), "a message goes to a terminal"


def test_many_masks_and_inputs_are_not_compared_pair_by_pair() -> None:
    numbers = range(5000)
    inputs = tuple(TensorSpec(f"lengths{number}", "int64", (f"d{number}",), None) for number in numbers)
    dims = tuple(Dim(f"d{number}", 1, 1, 1) for number in numbers)
    mask = MaskSpec(("padding",), "lengths4999", "keep", "upper_left", 0, "lengths", "d4999")
    start = time.process_time()
    IO(inputs, inputs, dims, (mask,) * 5000).check()
    assert time.process_time() - start < 0.5  # pair by pair: several seconds


def test_what_is_expected_is_said_without_the_names_of_modules(made_bundle: Path) -> None:
    for place, words in {
        "inputs": "tuple[TensorSpec, ...]",
        "dims": "tuple[Dim, ...]",
    }.items():
        found = json.loads((made_bundle / "bundle.json").read_text())
        found["io"][place] = 1
        with pytest.raises(IntegrityError, match=re.escape(f"io.{place}: got 1; expected {words}.")):
            from_bytes(json.dumps(found).encode(), "bundle.json")


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("forms", "Mapping[str, Form]"),
        ("requires", "Requires"),
        ("fusion", "Fusion | None"),
        ("proof", "Literal['device', 'graph-only']"),
        ("provider", "str | None"),
    ],
)
def test_the_copied_reader_says_what_is_expected_in_the_same_words(app: Path, key: str, words: str) -> None:
    found = json.loads((app / "bundle.json").read_text())
    (found if key in found else form(found))[key] = 1.5
    (app / "bundle.json").write_text(json.dumps(found))
    done = python(app / "python", "-B", "-m", "attnport_bundle", "selftest", str(app))
    assert f"{key}: got 1.5; expected {words}." in done.stderr
    with pytest.raises(IntegrityError, match=re.escape(f"{key}: got 1.5; expected {words}.")):
        from_bytes(json.dumps(found).encode(), "bundle.json")


def test_the_format_names_every_key() -> None:
    text = (Path(writing.__file__).parent / "FORMAT.md").read_text()
    keys: set[str] = set()

    def walk(kind: Any) -> None:
        if dataclasses.is_dataclass(kind):
            hints = typing.get_type_hints(kind)
            for field in dataclasses.fields(kind):
                keys.add(field.name)
                walk(hints[field.name])
        for argument in typing.get_args(kind):
            walk(argument)

    walk(Manifest)
    assert {"window", "places", "positions", "provenance"} <= keys
    named = set(re.findall(r"`([^`]+)`", text))
    words = {part for name in named for part in re.split(r"[^A-Za-z0-9_]+", name)}
    assert sorted(keys - words) == []
    assert sorted({f"io.{field.name}" for field in dataclasses.fields(BundleIO)} - named) == []


def test_every_key_of_the_manifest_must_be_there(made_bundle: Path) -> None:
    whole = json.loads((made_bundle / "bundle.json").read_text())
    decoder(whole, rules=rules())
    tokenizer(whole, "tokenizer.chars")
    from_bytes(json.dumps(whole).encode(), "here")
    tried = 0

    def without(value: Any) -> None:
        nonlocal tried
        for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            inner = value[key]
            may_miss = value is whole["files"] or value is whole["provenance"]["versions"]
            if isinstance(value, dict) and not may_miss:
                del value[key]
                with pytest.raises(BundleError):
                    from_bytes(json.dumps(whole).encode(), "here")
                value[key], tried = inner, tried + 1
            if key != "files":
                without(inner)

    without(whole)
    assert tried > 110
