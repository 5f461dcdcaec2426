"""What `attnport verify` refuses in a bundle, and a reader inside of an application leaves out: FORMAT.md, Verify."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

from attnport.onnx_walk import opset, references
from attnport.precisions import INTEGERS
from attnport_bundle.errors import escaped
from attnport_bundle.format import files
from attnport_bundle.format.files import FileProblem
from attnport_bundle.format.manifest import DIGEST, ENGINES, MANIFEST, Form, Goldens, Manifest

_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9]) *(\..*)?", re.IGNORECASE | re.ASCII)
"""Windows opens a device for these, in any case and with any ending: `nul.txt` is no file there."""


def check(folder: Path, manifest: Manifest) -> list[FileProblem]:
    """The problems of a bundle, at most `files.MAX_PROBLEMS`: of its files, or what only `verify` looks for.

    A model is looked into only once it is known to be the bundled one.
    """
    problems = files.check(folder, manifest) or itertools.chain(
        (FileProblem(MANIFEST, problem) for problem in contradictions(manifest)),
        *(_model(folder, manifest, form) for form in manifest.forms.values() if form.runtime not in ENGINES),
        _tokenizer(folder, manifest),
    )
    return list(itertools.islice(problems, files.MAX_PROBLEMS))


def contradictions(manifest: Manifest) -> Iterator[str]:
    """What the manifest says that is not so, whatever the files hold."""
    for name in manifest.files:
        if any(_DEVICE.fullmatch(part) for part in name.split("/")):
            yield f"{name!r} is not a plain path: Windows has a device of that name"
    provenance = manifest.provenance
    if not (DIGEST.fullmatch(provenance.code_sha256) and DIGEST.fullmatch(provenance.weights_sha256)):
        yield "provenance: a digest of code or weights is not 64 lower-case hex digits"
    if provenance.opset < 1:
        yield f"provenance: got opset {provenance.opset}; expected 1 or more"
    for name, form in manifest.forms.items():
        yield from (f"form {name}: {problem}" for problem in _claims(form))
    outputs = {spec.name for spec in manifest.io.outputs}
    yield from bounds(manifest.goldens, outputs, {form.plan for form in manifest.forms.values()})


def _claims(form: Form) -> Iterator[str]:
    """What a form's parity and fusion say that cannot be."""
    parity, fusion = form.parity, form.fusion
    for one in parity.results:
        if not (0 <= one.rms_error <= one.rms_bound and 0 <= one.max_error <= one.max_bound):
            yield f"case {one.case!r}, output {one.output!r}: an error is below zero or over its bound"
    if parity.verdict == "NOT_RUN" and (parity.results or parity.ran):
        yield "parity was not run, and yet has results"
    if fusion is None:
        return
    if fusion.attentions != len(fusion.items) or fusion.fused != sum(item.fused for item in fusion.items):
        yield f"got {fusion.fused} of {fusion.attentions} fused, which is not what the items say"
    if fusion.fused and fusion.proved_by is None:
        yield "an attention is fused, and nothing proved it"


def bounds(goldens: Goldens, outputs: set[str], plans: set[str]) -> Iterator[str]:
    """The first bound that is missing, or too much, for some case, output and plan; and whether one is there twice.

    A plan may have cases of its own, as integers have.
    """
    places = sorted((bound.plan, bound.case, bound.output) for bound in goldens.bounds)
    if len(set(places)) != len(places):
        yield "goldens: a bound is there twice"
        return
    # Both sides are compared in sorted order up to the first difference: the whole product may not fit into memory.
    of_plan: dict[str, set[str]] = {plan: set() for plan in plans}
    for plan, case, _ in places:
        of_plan.setdefault(plan if plan in INTEGERS else "", set()).add(case)
    wanted = (
        place
        for plan in sorted(plans)
        for place in itertools.product([plan], sorted(of_plan[plan] or of_plan.get("", {""})), sorted(outputs))
    )
    for sides in itertools.zip_longest(wanted, places):
        if sides[0] != sides[1]:
            plan, case, output = min(place for place in sides if place is not None)
            yield (
                f"goldens: the bound of case {case!r}, output {output!r}, plan {plan} is on one side only of the "
                "forms' outputs and plans and the list of bounds"
            )
            return


def _tokenizer(folder: Path, manifest: Manifest) -> Iterator[FileProblem]:
    """A tokenizer that was cut short. One of a kind that the package `tokenizers` does not know may be for others."""
    if manifest.tokenizer is None:
        return
    try:
        json.loads((folder / manifest.tokenizer.file).read_bytes())
    except (ValueError, RecursionError) as err:
        yield FileProblem(manifest.tokenizer.file, f"not a tokenizer that can be read: {escaped(str(err))}")


def _model(folder: Path, manifest: Manifest, form: Form) -> Iterator[FileProblem]:
    """The first problem of an ONNX file: what it is, its opset, or where its external data lies."""
    try:
        got, found = opset(folder / form.file), references(folder / form.file)
    except (OSError, ValueError) as err:
        yield FileProblem(form.file, f"not a model that can be read: {err}")
        return
    if got != form.requires.opset:
        yield FileProblem(form.file, f"got opset {got}; the manifest says {form.requires.opset}")
        return
    ranges = set()
    for location, offset, stated in found:
        if location not in form.external:
            known = ", ".join(form.external) or "none"
            yield FileProblem(form.file, f"takes weights from {location!r}; its weights files are {known}")
            return
        size = manifest.files[location].bytes
        end = size if stated is None else offset + stated
        if offset > end or end > size:
            yield FileProblem(form.file, f"takes weights from bytes {offset} to {end} of {location}, which has {size}")
            return
        ranges |= {(location, offset, end)} if end > offset else set()
    for (before, _, end), (location, offset, _) in itertools.pairwise(sorted(ranges)):
        if location == before and offset < end:
            yield FileProblem(form.file, f"takes overlapping weights from {location} at byte {offset}")
            return
