"""The C++ reader takes the manifests and ONNX files that Python's takes, as the same values, and says the same else."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import made_up
import pytest
from cpp_builds import Build

from attnport_bundle.contract import IO, Dim, TensorSpec
from attnport_bundle.errors import BundleError
from attnport_bundle.external import opset, references
from attnport_bundle.manifest import ENGINES, Form, Manifest, from_bytes
from attnport_bundle.printable import escaped

BUNDLING = Path(__file__).resolve().parents[1] / "bundling"
if str(BUNDLING) not in sys.path:
    sys.path.append(str(BUNDLING))  # where manifests are that contradict themselves

from test_manifest_rules import FINE, WRONG, told  # noqa: E402 - see above

CORPUS = made_up.FUZZ / "corpus"
NOT_VALID = "bundle.json is not valid: "
MANY_DIGITS = f"{NOT_VALID}an integer of more than 4300 digits"
"""What C++ says before it looks at anything else, and Python where it comes upon it."""
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


# --- what was kept, as read_many writes it ------------------------------------------------------------------------


def row(kind: str, *values: object) -> str:
    return " ".join([kind, *(repr(list(value) if isinstance(value, tuple) else value) for value in values)]) + "\n"


def ranges(dims: Iterable[Dim]) -> str:
    return row("profile") + "".join(row("dim", dim.name, dim.min, dim.opt, dim.max) for dim in dims)


def of_tensors(kind: str, tensors: Iterable[TensorSpec]) -> Iterator[str]:
    return (row(kind, spec.name, spec.dtype, spec.dims, spec.high) for spec in tensors)


def of_form(name: str, form: Form, io: IO) -> Iterator[str]:
    engine = form.runtime in ENGINES
    yield row("form", name, form.file, form.external, form.plan, form.runtime, form.provider, form.proof, engine)
    for tensor in dict.fromkeys(spec.name for spec in (*io.inputs, *io.outputs)):
        yield row("dtype", tensor, form.dtypes[tensor])
    yield from (ranges(profile.dims) for profile in form.profiles)
    yield row("requires", form.requires.runtime, form.requires.exact, form.requires.opset, form.requires.sm)
    yield row("parity", form.parity.verdict, form.parity.runtime, form.parity.graph, form.parity.reason)


def of_manifest(found: Manifest, data: bytes) -> Iterator[str]:
    digest = hashlib.sha256(data).hexdigest()
    yield row("manifest", found.name, found.unverified, found.order, found.tokenizer, digest)
    yield from of_tensors("input", found.io.inputs)
    yield from of_tensors("output", found.io.outputs)
    yield ranges(found.io.dims)
    for mask in found.io.masks:
        said = (mask.polarity, mask.alignment, mask.window, mask.carries, mask.keys)
        yield row("mask", mask.kinds, mask.input, *said)
    for name, form in found.forms.items():
        yield from of_form(name, form, found.io)
    yield row("goldens", found.goldens.file)
    for bound in found.goldens.bounds:
        yield row("bound", bound.case, bound.output, bound.plan, bound.rms_bound, bound.max_bound)
    yield from (row("file", name, file.bytes, file.sha256) for name, file in found.files.items())


def in_python(data: bytes) -> tuple[Answer, bool]:
    """Python's answer, and whether its words are those of a parser: of JSON, of UTF-8, of integers."""
    try:
        return (0, "".join(of_manifest(from_bytes(data, "bundle.json"), data))), False
    except BundleError as err:
        cause = err.__cause__
        parser = isinstance(cause, json.JSONDecodeError | UnicodeDecodeError) or "Exceeds the limit (4" in str(cause)
        return (err.exit_code, str(err)), parser


def compare(data: bytes, got: Answer, wanted: Answer, parser: bool) -> None:
    if parser or got[1] == MANY_DIGITS:
        assert got[1].startswith(NOT_VALID), (data, got, wanted)
        got, wanted = (got[0], NOT_VALID), (wanted[0], NOT_VALID)
    # The same answer, each reader in words of its own.
    assert got[0] == wanted[0], (data, got, wanted)
    assert bool(got[1]) == bool(wanted[1]), (data, got, wanted)


def compare_manifests(build: Build, inputs: Sequence[bytes]) -> list[int]:
    """Compares every answer; how many had exit code 0, how many another one, how many words of a parser."""
    counts = [0, 0, 0]
    for data, words in zip(inputs, in_cpp(build, "manifest", inputs), strict=True):
        wanted, parser = in_python(data)
        (got,) = answers(words)
        compare(data, got, wanted, parser)
        counts[2 if parser else bool(wanted[0])] += 1
    return counts


def test_what_the_fuzzer_found_and_what_parsers_differ_about(cpp_build_asan: Build) -> None:
    accepted, refused, _ = compare_manifests(cpp_build_asan, [*contents(CORPUS / "manifest"), *made_up.TRICKY])
    assert accepted
    assert refused > 40


def test_what_makes_sense_and_what_contradicts_itself(cpp_build_asan: Build, made_bundle: Path) -> None:
    edits = [*FINE.values(), *(edit for edit, _ in WRONG.values())]
    counts = compare_manifests(cpp_build_asan, [told(made_bundle, edit) for edit in edits])
    assert counts == [len(FINE), len(WRONG), 0]


def seeds(folder: Path) -> list[bytes]:
    return [(CORPUS / "manifest" / "valid").read_bytes(), *(told(folder, edit) for edit in FINE.values())]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 9))])
def test_made_up_manifests(cpp_build_asan: Build, made_bundle: Path, seed: int) -> None:
    inputs = list(made_up.manifests(seeds(made_bundle), seed, 600))
    accepted, refused, by_parser = compare_manifests(cpp_build_asan, inputs)
    assert accepted > 30
    assert refused > 300
    assert by_parser > 20


def test_a_manifest_of_many_plans_and_cases_is_refused_alike(cpp_build_asan: Build, made_bundle: Path) -> None:
    found = json.loads((made_bundle / "bundle.json").read_text())
    form, bound = found["forms"]["ort_cpu"], found["goldens"]["bounds"][0]
    found["forms"] = {str(number): {**form, "plan": str(number)} for number in range(400)}
    found["order"] = list(found["forms"])
    found["goldens"]["bounds"] = [{**bound, "case": str(number), "plan": "0"} for number in range(4000)]
    assert compare_manifests(cpp_build_asan, [json.dumps(found).encode()]) == [0, 1, 0]


def onnx_in_python(path: Path) -> list[Answer]:
    def references_of() -> str:
        return "".join(row("reference", one.location, one.offset, one.length) for one in references(path))

    found: list[Answer] = []
    # A larger opset than any is only shown: C++ stops counting where its integers end.
    for read in (references_of, lambda: row("opset", min(opset(path), 2**63 - 1))):
        try:
            found.append((0, read()))
        except UnicodeDecodeError:
            found.append((1, "text that is no UTF-8"))  # Python's decoder says where; C++ need not
        except ValueError as err:
            found.append((1, str(err)))
    return found


def compare_models(build: Build, inputs: Sequence[bytes], folder: Path) -> list[int]:
    counts = [0, 0]
    for data, words in zip(inputs, in_cpp(build, "external", inputs), strict=True):
        (folder / "model.onnx").write_bytes(data)
        wanted = onnx_in_python(folder / "model.onnx")
        assert answers(words) == wanted, data
        counts[wanted[0][0]] += 1
    return counts


def test_the_onnx_files_of_the_fuzzer(cpp_build_asan: Build, tmp_path: Path) -> None:
    accepted, refused = compare_models(cpp_build_asan, [*contents(CORPUS / "external"), *made_up.TRICKY_ONNX], tmp_path)
    assert accepted > 5
    assert refused > 5


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 9))])
def test_made_up_onnx_files(cpp_build_asan: Build, tmp_path: Path, seed: int) -> None:
    inputs = list(made_up.models(contents(CORPUS / "external"), seed, 500))
    accepted, refused = compare_models(cpp_build_asan, inputs, tmp_path)
    assert accepted > 100
    assert refused > 100


def test_what_others_said_is_escaped_alike(cpp_build_asan: Build) -> None:
    letters = [chr(code) for code in (*range(0x3000), *range(0xFD00, 0x10000), 0xE000, 0x1F600, 0xE0001, 0x10FFFF)]
    said = [b"", b" \n ", b"\xff\x1b[2J\xed\xa0\x80", b"\x85 a \x85", *("".join(letters[at : at + 64]).encode()
        for at in range(0, len(letters), 64))]  # fmt: skip
    wanted = [[(0, escaped(one.decode("utf-8", "surrogateescape")))] for one in said]
    assert [answers(words) for words in in_cpp(cpp_build_asan, "said", said)] == wanted


def test_the_comparison_notices_another_answer() -> None:
    for got in ((0, ""), (2, f"{NOT_VALID}x"), (6, "")):
        for parser in (False, True):
            with pytest.raises(AssertionError):
                compare(b"", got, (6, f"{NOT_VALID}y"), parser)
    compare(b"", (6, f"{NOT_VALID}x"), (6, f"{NOT_VALID}y"), True)
