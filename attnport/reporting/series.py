"""The data of line charts: errors from layer to layer, time and memory against sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from attnport.artifacts import LatencyReport, LayerReport

BOUND = "bound"
_SHAPE = re.compile(r"\w+=\d+(?:,\w+=\d+)*")


@dataclass(frozen=True)
class Series:
    """Lines over shared places.

    Attributes:
        title: What is the same for all values.
        axis: The kind of places.
        places: Their names, in order.
        lines: Values by runtime; None for a missing value.
        sizes: The places as numbers if they are sizes; otherwise empty.
    """

    title: str
    axis: str
    places: tuple[str, ...]
    lines: Mapping[str, tuple[float | None, ...]]
    sizes: tuple[int, ...] = ()


def layer_errors(report: LayerReport) -> Series:
    """The RMS error of each runtime over the RMS of the reference, by layer, and the bound of each precision plan."""
    scales = [layer.reference_rms for layer in report.layers]

    def relative(values: list[float | None]) -> tuple[float | None, ...]:
        return tuple(
            value / scale if value is not None and scale > 0 else None
            for value, scale in zip(values, scales, strict=True)
        )

    measured = {name: errors for name, errors in report.runtimes.items() if errors.errors}
    lines = {name: relative([error.rms_error for error in errors.errors]) for name, errors in measured.items()}
    plans: dict[str, list[float | None]] = {}
    for errors in measured.values():
        plans.setdefault(errors.plan, [error.rms_bound for error in errors.errors])
    for plan, bounds in plans.items():
        lines[BOUND if len(plans) == 1 else f"{BOUND} {plan}"] = relative(bounds)
    return Series(f"case {report.case}", "layer", tuple(layer.name for layer in report.layers), lines)


def first_beyond(report: LayerReport) -> dict[str, str]:
    """The first layer that exceeds its bound, for each runtime with such a layer."""
    first = {}
    for name, series in report.runtimes.items():
        for layer, error in zip(report.layers, series.errors, strict=False):
            if error.verdict == "FAIL":
                first[name] = layer.name
                break
    return first


@dataclass(frozen=True)
class Scaling:
    """Medians in ns and peak memory in bytes for sizes of one dim, with the other dims fixed."""

    dim: str
    kept: str
    times: Series
    memory: Series


def scalings(report: LatencyReport) -> list[Scaling]:
    """The series over each dim with two sizes or more among the timed shapes, the other dims fixed."""
    shapes = {
        name: dict(part.split("=") for part in name.split(",")) for name in report.shapes if _SHAPE.fullmatch(name)
    }
    series = []
    for dim in dict.fromkeys(dim for sizes in shapes.values() for dim in sizes):
        groups: dict[str, dict[int, str]] = {}
        for name, sizes in shapes.items():
            if dim in sizes:
                kept = ", ".join(f"{other} {size}" for other, size in sizes.items() if other != dim)
                groups.setdefault(kept, {})[int(sizes[dim])] = name
        for kept, by_size in sorted(
            groups.items(), key=lambda group: [int(size) for size in re.findall(r"\d+", group[0])]
        ):
            if len(by_size) > 1:
                series.append(_scaling(report, dim, kept, dict(sorted(by_size.items()))))
    return series


def _scaling(report: LatencyReport, dim: str, kept: str, by_size: Mapping[int, str]) -> Scaling:
    timed = {
        runtime: [report.shapes[name].get(runtime) for name in by_size.values()]
        for runtime in dict.fromkeys(runtime for name in by_size.values() for runtime in report.shapes[name])
    }
    medians = {runtime: tuple(row.median_ns if row else None for row in rows) for runtime, rows in timed.items()}
    peaks = {
        runtime: tuple(float(row.peak_bytes) if row and row.peak_bytes is not None else None for row in rows)
        for runtime, rows in timed.items()
    }

    def series(lines: Mapping[str, tuple[float | None, ...]]) -> Series:
        known = {runtime: values for runtime, values in lines.items() if any(value is not None for value in values)}
        return Series(kept, dim, tuple(map(str, by_size)), known, tuple(by_size))

    return Scaling(dim, kept, series(medians), series(peaks))
