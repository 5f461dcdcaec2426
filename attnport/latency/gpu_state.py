"""The state of the GPU: its clocks, temperature and power, and what slows it down. NVML tells, through `pynvml`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from attnport.errors import MissingDependency
from attnport.optional import require
from attnport_bundle.runtimes.cuda import Device

_SLOWED = {
    0x002: "clocks set by an application",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "heat, by software",
    0x040: "heat, by hardware",
    0x080: "power brake",
    0x100: "clocks set for a display",
}
"""The bits nvmlClocksEventReason* of nvml.h; 1, an idle GPU, says nothing here."""
_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
"""The function's name, and the one that drivers before 535 know."""


def gpu_state() -> tuple[str, str]:
    """The state of the GPU that CUDA lists first, which runtimes compute on; or why it is not known.

    If the driver does not tell which one that is, the first GPU of NVML's list is taken; NVML ignores
    CUDA_VISIBLE_DEVICES.

    Returns:
        `1980 MHz, memory 3201 MHz, 45 C, 320 W, slowed down by: power cap`, as far as NVML tells, or ""; and a note,
        "" where there is a state. Never raises.
    """
    unknown = "the clocks of the GPU are not known: "
    try:
        nvml: Any = require("pynvml")
        nvml.nvmlInit()
        try:
            state = ", ".join(_parts(nvml, _first(nvml)))
        finally:
            nvml.nvmlShutdown()
    except MissingDependency as err:
        return "", f"{unknown}{err.message.rstrip('.')}; {err.hint}"
    except Exception as err:  # NVML's own errors, and what a damaged installation raises: nothing depends on it
        return "", f"{unknown}NVML says {type(err).__name__}: {err}"
    return state, "" if state else f"{unknown}NVML tells nothing of this one"


def _first(nvml: Any) -> Any:
    """The handle of the GPU that CUDA lists first."""
    with suppress(Exception):
        uuid = Device().uuid
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            if nvml.nvmlDeviceGetUUID(handle).removeprefix("GPU-").replace("-", "") == uuid:
                return handle
    return nvml.nvmlDeviceGetHandleByIndex(0)


def _parts(nvml: Any, handle: Any) -> list[str]:
    """What NVML tells; some GPUs have no reading of their power, for example."""
    reads: tuple[Callable[[], str], ...] = (
        lambda: f"{nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)} MHz",
        lambda: f"memory {nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)} MHz",
        lambda: f"{nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)} C",
        lambda: f"{nvml.nvmlDeviceGetPowerUsage(handle) / 1000:.0f} W",
    )
    found = []
    for read in reads:
        with suppress(Exception):
            found.append(read())
    for name in _REASONS:
        with suppress(Exception):
            bits = getattr(nvml, name)(handle)
            slowed = [reason for bit, reason in _SLOWED.items() if bits & bit]
            return [*found, f"slowed down by: {', '.join(slowed)}"] if slowed else found
    return found
