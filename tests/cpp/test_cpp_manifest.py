"""The C++ reader takes the manifests that Python's takes, as the same values, and refuses no others."""

from __future__ import annotations

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
from attnport_bundle.format.decoder import Decoder, Rules
from attnport_bundle.format.manifest import ENGINES, Form, Manifest, from_bytes

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
    yield "parity", form.parity.verdict, form.parity.runtime, form.parity.graph


def of_decoder(found: Decoder) -> Iterator[Row]:
    used = (found.ids, found.mask, found.mask_covers or "", found.positions, found.logits, found.output_holds != "new")
    yield "decoder", *used, found.stop, found.start, rules_set(found.rules or Rules())
    yield from (("cache", one.input, one.output, one.axis, one.holds == "window") for one in found.caches)
    if found.window:
        yield "window", found.window.mask, found.window.places


def rules_set(rules: Rules) -> list[str]:
    """The rules that change which tokens follow, in the order in which C++ looks at them."""
    lists = ("suppress", "suppress_first", "forced_first", "forced_last", "bad_words")
    numbers = ("min_length", "min_tokens", "no_repeat_ngram", "repetition_penalty", "beams")
    usual = Rules()
    return [name for name in (*lists, *numbers) if getattr(rules, name) != getattr(usual, name)]


def of_manifest(found: Manifest, data: bytes) -> Iterator[Row]:
    digest = hashlib.sha256(data).hexdigest()
    yield "manifest", found.name, found.unverified, found.order, digest
    if found.tokenizer:
        yield "tokenizer", found.tokenizer.file, found.tokenizer.chars
    yield from of_tensors("input", found.io.inputs)
    yield from of_tensors("output", found.io.outputs)
    yield from ranges(found.io.dims)
    for mask in found.io.masks:
        said = (mask.polarity, mask.alignment, mask.window, mask.carries, mask.keys)
        yield "mask", mask.kinds, mask.input, *said
    if found.io.decoder:
        yield from of_decoder(found.io.decoder)
    yield "text", dict(found.prompts.named), found.prompts.default, found.text_limit
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
    """What Python takes, C++ takes with the same rows. What C++ refuses, Python refuses too, each in words of its own.

    C++ does not read what only `attnport verify` needs. Its parser also refuses text and integers that Python's takes,
    which is refused then for another reason.
    """
    assert got[0] == 0 or wanted[0] != 0, (data, got, wanted)
    if wanted[0] == 0:
        assert json.loads(got[1]) == json.loads(wanted[1]), data
    elif got[0]:
        assert got[1].startswith("bundle.json"), (data, got)
        assert got[0] == wanted[0] or (got[0] == 6 and NOT_VALID in got[1]), (data, got, wanted)


def compare_manifests(build: Build, inputs: Sequence[bytes]) -> list[int]:
    """Compares every answer; how many C++ accepted, how many it refused, and how many of these as no JSON."""
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


UNREAD = {
    "no beam", "beams without end", "a penalty of 0", "rows below 0", "length below 0", "tokens below 0",
    "a word of nothing", "key with escapes", "reason too long",
}  # fmt: skip
"""What Python's reader refuses and C++ does not look for: rules of generation, which it does not keep to, and some
texts."""


def test_what_makes_sense_and_what_contradicts_itself(cpp_build: Build, made_bundle: Path) -> None:
    edits = {**FINE, **{name: edit for name, (edit, _) in WRONG.items()}}
    inputs = [told(made_bundle, edit) for edit in edits.values()]
    compare_manifests(cpp_build, inputs)
    codes = [answers(words)[0][0] for words in in_cpp(cpp_build, "manifest", inputs)]
    accepted = {name for name, code in zip(edits, codes, strict=True) if code == 0}
    assert accepted == set(FINE) | UNREAD


def seeds(folder: Path) -> list[bytes]:
    return [(CORPUS / "manifest" / "valid").read_bytes(), *(told(folder, edit) for edit in FINE.values())]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 9))])
def test_made_up_manifests(cpp_build: Build, made_bundle: Path, seed: int) -> None:
    inputs = list(made_up.manifests(seeds(made_bundle), seed, 600))
    accepted, refused, as_no_json = compare_manifests(cpp_build, inputs)
    assert accepted > 30
    assert refused > 300
    assert as_no_json > 20


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
    for got, wanted in ((refused, rows), *others):
        with pytest.raises(AssertionError):
            compare(b"", got, wanted)
    compare(b"", refused, (6, "bundle.json: in other words"))
    compare(b"", rows, refused)
    compare(b"", rows, rows)
