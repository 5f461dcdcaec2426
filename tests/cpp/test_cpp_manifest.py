"""The C++ reader takes the manifests and ONNX files that Python's takes, as the same values, and refuses the same."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import made_up
import pytest
from cpp_builds import Build

from attnport_bundle.errors import BundleError, is_printable
from attnport_bundle.format.contract import Dim, TensorSpec
from attnport_bundle.format.decoder import Rules
from attnport_bundle.format.manifest import ENGINES, Form, Manifest, from_bytes
from attnport_bundle.format.onnx_file import opset, references

BUNDLING = Path(__file__).resolve().parents[1] / "bundling"
if str(BUNDLING) not in sys.path:
    sys.path.append(str(BUNDLING))  # where manifests are that contradict themselves

from test_manifest_rules import FINE, WRONG, told  # noqa: E402 - see above

CORPUS = made_up.FUZZ / "corpus"
NOT_VALID = "bundle.json is not valid: "
"""What a reader says of what its parser refuses."""
Answer = tuple[int, str]


def contents(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.iterdir())]


def in_cpp(build: Build, kind: str, inputs: Iterable[bytes]) -> list[list[str]]:
    """The words of the answer to each input."""
    done = build.run("read_many", given="".join(f"{kind} {data.hex()}\n" for data in inputs))
    assert (done.returncode, done.stderr) == (0, "")
    return [line.split(" ") for line in done.stdout.splitlines()]


def answers(words: Sequence[str]) -> list[Answer]:
    """Pairs of a code and a text in hexadecimal digits."""
    return [(int(code), bytes.fromhex(text).decode()) for code, text in zip(words[::2], words[1::2], strict=True)]


# --- what was kept, as read_many writes it: rows, each with its kind first ------------------------------------------


Row = tuple[object, ...]


def ranges(dims: Iterable[Dim]) -> list[Row]:
    return [("profile",), *(("dim", dim.name, dim.min, dim.opt, dim.max, dim.step) for dim in dims)]


def of_tensors(kind: str, tensors: Iterable[TensorSpec]) -> list[Row]:
    return [(kind, spec.name, spec.dtype, spec.dims, spec.high) for spec in tensors]


def of_form(name: str, form: Form) -> Iterator[Row]:
    engine = form.runtime in ENGINES
    yield "form", name, form.file, form.external, form.plan, form.runtime, form.provider, form.proof, engine
    yield from (("dtype", *one) for one in sorted(form.dtypes.items()))
    for profile in form.profiles:
        yield from ranges(profile.dims)
    yield "requires", form.requires.runtime, form.requires.exact, form.requires.opset, form.requires.sm
    yield "parity", form.parity.verdict, form.parity.runtime, form.parity.graph, form.parity.reason


def of_manifest(found: Manifest, data: bytes) -> Iterator[Row]:
    digest = hashlib.sha256(data).hexdigest()
    yield "manifest", found.name, found.unverified, found.order, found.tokenizer, digest
    yield from of_tensors("input", found.io.inputs)
    yield from of_tensors("output", found.io.outputs)
    yield from ranges(found.io.dims)
    for mask in found.io.masks:
        said = (mask.polarity, mask.alignment, mask.window, mask.carries, mask.keys)
        yield "mask", mask.kinds, mask.input, *said
    yield "decoder", found.io.stop, found.io.start, *dataclasses.astuple(found.io.rules or Rules())
    yield "text", dict(found.prompts.named), found.prompts.default, found.text_limit
    if found.io.window:
        yield "window", *dataclasses.astuple(found.io.window)
    for name, form in sorted(found.forms.items()):
        yield from of_form(name, form)
    yield "goldens", found.goldens.file
    for bound in found.goldens.bounds:
        yield "bound", bound.case, bound.output, bound.plan, bound.rms_bound, bound.max_bound
    yield from (("file", name, file.bytes, file.sha256) for name, file in sorted(found.files.items()))


def written(rows: Iterable[Row]) -> str:
    """Rows as JSON writes them, in which a tuple is a list."""
    return json.dumps(list(rows))


def in_python(data: bytes) -> Answer:
    try:
        return 0, written(of_manifest(from_bytes(data, "bundle.json"), data))
    except BundleError as err:
        return err.exit_code, str(err)


def compare(data: bytes, got: Answer, wanted: Answer) -> None:
    """What both readers take has the same rows. What one refuses so does the other, each in words of its own.

    The parser of C++ also refuses text and integers that Python's takes, which is refused then for another reason.
    """
    assert (got[0] == 0) == (wanted[0] == 0), (data, got, wanted)
    if got[0] == 0:
        assert json.loads(got[1]) == json.loads(wanted[1]), data
    else:
        assert got[1].startswith("bundle.json"), (data, got)
        assert got[0] == wanted[0] or (got[0] == 6 and NOT_VALID in got[1]), (data, got, wanted)


def compare_manifests(build: Build, inputs: Sequence[bytes]) -> list[int]:
    """Compares every answer; how many were accepted, how many refused, and how many of these as no JSON."""
    counts = [0, 0, 0]
    for data, words in zip(inputs, in_cpp(build, "manifest", inputs), strict=True):
        (got,) = answers(words)
        compare(data, got, in_python(data))
        counts[0 if got[0] == 0 else 2 if NOT_VALID in got[1] else 1] += 1
    return counts


def test_what_the_fuzzer_found_and_what_parsers_differ_about(cpp_build: Build) -> None:
    accepted, refused, as_no_json = compare_manifests(cpp_build, [*contents(CORPUS / "manifest"), *made_up.TRICKY])
    assert accepted
    assert refused > 40
    assert as_no_json > 40


def test_what_makes_sense_and_what_contradicts_itself(cpp_build: Build, made_bundle: Path) -> None:
    edits = [*FINE.values(), *(edit for edit, _ in WRONG.values())]
    counts = compare_manifests(cpp_build, [told(made_bundle, edit) for edit in edits])
    assert (counts[0], sum(counts[1:])) == (len(FINE), len(WRONG))


def seeds(folder: Path) -> list[bytes]:
    return [(CORPUS / "manifest" / "valid").read_bytes(), *(told(folder, edit) for edit in FINE.values())]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 9))])
def test_made_up_manifests(cpp_build: Build, made_bundle: Path, seed: int) -> None:
    inputs = list(made_up.manifests(seeds(made_bundle), seed, 600))
    accepted, refused, as_no_json = compare_manifests(cpp_build, inputs)
    assert accepted > 30
    assert refused > 300
    assert as_no_json > 20


def test_a_manifest_of_many_plans_and_cases_is_refused_alike(cpp_build: Build, made_bundle: Path) -> None:
    found = json.loads((made_bundle / "bundle.json").read_text())
    form, bound = found["forms"]["ort_cpu"], found["goldens"]["bounds"][0]
    found["forms"] = {str(number): {**form, "plan": str(number)} for number in range(400)}
    found["order"] = list(found["forms"])
    found["goldens"]["bounds"] = [{**bound, "case": str(number), "plan": "0"} for number in range(4000)]
    assert compare_manifests(cpp_build, [json.dumps(found).encode()]) == [0, 1, 0]


def onnx_in_python(path: Path) -> list[Answer]:
    def references_of() -> str:
        return written(("reference", one.location, one.offset, one.length) for one in references(path))

    found: list[Answer] = []
    # A larger opset than any is only shown: C++ stops counting where its integers end.
    for read in (references_of, lambda: written([("opset", min(opset(path), 2**63 - 1))])):
        try:
            found.append((0, read()))
        except ValueError as err:  # a UnicodeDecodeError is one
            found.append((1, str(err)))
    return found


def compare_models(build: Build, inputs: Sequence[bytes], folder: Path) -> list[int]:
    """Compares codes, and the rows of what was accepted; how many were accepted, and how many refused."""
    counts = [0, 0]
    for data, words in zip(inputs, in_cpp(build, "external", inputs), strict=True):
        (folder / "model.onnx").write_bytes(data)
        wanted = onnx_in_python(folder / "model.onnx")
        for (code, text), (wanted_code, wanted_text) in zip(answers(words), wanted, strict=True):
            assert (code, bool(text)) == (wanted_code, True), data
            assert code or json.loads(text) == json.loads(wanted_text), data
        counts[wanted[0][0]] += 1
    return counts


def test_the_onnx_files_of_the_fuzzer(cpp_build: Build, tmp_path: Path) -> None:
    accepted, refused = compare_models(cpp_build, [*contents(CORPUS / "external"), *made_up.TRICKY_ONNX], tmp_path)
    assert accepted > 5
    assert refused > 5


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 9))])
def test_made_up_onnx_files(cpp_build: Build, tmp_path: Path, seed: int) -> None:
    inputs = list(made_up.models(contents(CORPUS / "external"), seed, 500))
    accepted, refused = compare_models(cpp_build, inputs, tmp_path)
    assert accepted > 100
    assert refused > 100


def test_what_others_said_cannot_change_a_terminal(cpp_build: Build) -> None:
    letters = [chr(code) for code in (*range(0x3000), *range(0xFD00, 0x10000), 0xE000, 0x1F600, 0xE0001, 0x10FFFF)]
    said = ["", " \n ", "\x1b[2J", " a\nb\t\n", *("|" + "".join(letters[at : at + 64]) + "|"
        for at in range(0, len(letters), 64) if not 0xD800 <= ord(letters[at]) <= 0xDFFF)]  # fmt: skip
    got = [answers(words)[0] for words in in_cpp(cpp_build, "said", [one.encode() for one in said])]
    assert got == [(0, as_a_terminal_may_see_it(one)) for one in said]
    (invalid,) = in_cpp(cpp_build, "said", [b"\xff\x1b[2J\xed\xa0\x80"])
    assert answers(invalid) == [(0, r"\xff\x1b[2J\xed\xa0\x80")]


def as_a_terminal_may_see_it(text: str) -> str:
    """Without blanks around it, and with each byte of what cannot be printed in hexadecimal digits."""
    return "".join(
        letter if is_printable(letter) else r"\n" if letter == "\n" else "".join(rf"\x{x:02x}" for x in letter.encode())
        for letter in text.strip(" \t\r\n\v\f")
    )


def test_the_comparison_notices_another_answer() -> None:
    refused, rows = (6, "bundle.json: no"), (0, '[["manifest", 1]]')
    others = ((0, '[["manifest", 2]]'), rows), ((2, "bundle.json: no"), refused), ((6, ""), refused)
    for got, wanted in ((rows, refused), (refused, rows), *others):
        with pytest.raises(AssertionError):
            compare(b"", got, wanted)
    compare(b"", refused, (6, "bundle.json: in other words"))
    compare(b"", rows, rows)
