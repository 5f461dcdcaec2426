"""What the doctor shows of each runtime: what it can do, the libraries that it asks for, the attention it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnport.console import cells

if TYPE_CHECKING:
    from rich.console import Console

    from attnport.artifacts import Capabilities

_SHORT = {"fused": "[green]fused[/]", "runs, not fused": "runs"}


def able(runtime: Capabilities) -> str:
    """Devices, precision plans and the newest opset of a runtime that is there."""
    opset = f"opset {runtime.max_opset}" if runtime.max_opset else ""
    return "; ".join(filter(None, (", ".join(runtime.devices), ", ".join(runtime.plans), opset)))


def show_libraries(console: Console, runtimes: Sequence[Capabilities]) -> None:
    """One line a library that a runtime asks for by name."""
    for runtime in runtimes:
        for name, path in runtime.libraries.items():
            where = cells.plain(path) if path else "[yellow]not found[/]"
            console.print(f"{runtime.runtime} wants {cells.plain(name)}: {where}", soft_wrap=True)


def show_attention_forms(console: Console, runtimes: Sequence[Capabilities]) -> None:
    """A row for each way to write an attention, a column for each runtime that was asked; then why some are refused."""
    asked = [runtime for runtime in runtimes if runtime.attention_forms]
    if not asked:
        return
    table = cells.table("attention, as written in ONNX", "form", *(runtime.runtime for runtime in asked))
    refusals: dict[str, list[str]] = {}
    for form in dict.fromkeys(form for runtime in asked for form in runtime.attention_forms):
        row = []
        for runtime in asked:
            answer = runtime.attention_forms.get(form, "-")
            if answer.startswith("refused: "):
                refusals.setdefault(f"{runtime.runtime}: {answer.removeprefix('refused: ')}", []).append(form)
                answer = "refused"
            row.append(_SHORT.get(answer, f"[yellow]{answer}[/]" if answer == "refused" else cells.plain(answer)))
        table.add_row(cells.plain(form), *row)
    console.print(table)
    for reason in refusals:
        console.print(f"refused by {cells.plain(reason)}")
