"""How a searched precision plan is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnport.console import cells

if TYPE_CHECKING:
    from rich.console import Console

    from attnport.artifacts import PrecisionPlan


def show_precision(console: Console, plan: PrecisionPlan) -> None:
    """What stays in float32, with the error with and without it."""
    count = f"{len(plan.islands)} of {plan.parts} parts" if plan.islands else f"none of {plan.parts} parts"
    if plan.islands:
        table = cells.table(
            f"{plan.half}, {count} in fp32",
            "part in fp32",
            "operators",
            "largest value",
            "without it",
            right=("largest value", "without it"),
            whole=("largest value", "without it"),
        )
        for island in plan.islands:
            without = "not measured" if plan.capped and island.without is None else _share(island.without)
            names = cells.plain(", ".join(island.operators))
            table.add_row(cells.plain(island.name), names, f"{island.largest:.3g}", without)
        console.print(table)
    else:
        console.print(f"{plan.half}: {count} needs fp32")
    console.print(
        f"error: {_share(plan.share)} of the bound at a budget of {plan.budget:g}x; in {plan.half} alone "
        f"{_share(plan.share_of_half)}"
    )
    if plan.islands:
        console.print("without it: the error with that part alone in half precision too, of the bound", style="dim")
    console.print(
        f"{plan.evaluations} graph{'' if plan.evaluations == 1 else 's'} run by {plan.evaluator} on {len(plan.cases)} "
        f"cases; tried on {plan.held_out} more",
        style="dim",
    )
    if plan.capped:
        console.print("the search ended at its limit: the bound is kept, but fewer parts in fp32 may do")


def _share(share: float | None) -> str:
    return "NaN or Inf" if share is None else f"{share:.2f}x"
