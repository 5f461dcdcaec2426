"""What `doctor` prints for each runtime: what it can do, the libraries it needs, the attention forms it supports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from attnport.reporting import document as doc

if TYPE_CHECKING:
    from attnport.artifacts import Capabilities

_SHORT: dict[str, doc.Line] = {
    "fused": doc.Verdict("fused", "pass"),
    "runs, not fused": "runs",
    "refused": doc.Verdict("refused", "miss"),
}


def able(runtime: Capabilities) -> str:
    """Devices, precision plans and the newest opset of an available runtime."""
    opset = f"opset {runtime.max_opset}" if runtime.max_opset else ""
    return "; ".join(filter(None, (", ".join(runtime.devices), ", ".join(runtime.plans), opset)))


def show_libraries(runtimes: Sequence[Capabilities]) -> Iterator[doc.Block]:
    """A line for each library that a runtime needs."""
    for runtime in runtimes:
        lines = (f"{runtime.runtime} wants {name}: {path or 'not found'}" for name, path in runtime.libraries.items())
        yield doc.Commands(tuple(lines))


def show_attention_forms(runtimes: Sequence[Capabilities]) -> Iterator[doc.Block]:
    """A row for each way to write an attention, a column for each runtime that was tried; then reasons of refusals."""
    tried = [runtime for runtime in runtimes if runtime.attention_forms]
    if not tried:
        return
    rows: list[tuple[doc.Line, ...]] = []
    refusals: dict[str, None] = {}
    for form in dict.fromkeys(form for runtime in tried for form in runtime.attention_forms):
        row: list[doc.Line] = [form]
        for runtime in tried:
            answer = runtime.attention_forms.get(form, "-")
            if answer.startswith("refused: "):
                refusals[f"{runtime.runtime}: {answer.removeprefix('refused: ')}"] = None
                answer = "refused"
            row.append(_SHORT.get(answer, answer))
        rows.append(tuple(row))
    columns = doc.words("form", *(runtime.runtime for runtime in tried))
    yield doc.Table("attention, as written in ONNX", columns, doc.rows(rows))
    for reason in refusals:
        yield doc.Text(f"refused by {reason}")
