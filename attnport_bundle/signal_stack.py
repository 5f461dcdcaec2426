"""Restores the alternate signal stack of a thread after a library has changed it.

When OpenVINO's CPU plugin compiles a model, it gives the thread a signal stack that belongs to the model, and restores
the previous one when the model is destroyed. If two models are not destroyed in reverse order, the thread keeps a stack
that was freed, and the next Ctrl-C is a segmentation fault (openvino 2026.4.1, seen in gdb; `sigaltstack` shows the
stale address).
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator

_DISABLED = 2  # SS_DISABLE: no such stack


class _Stack(ctypes.Structure):
    """`stack_t` of Linux."""

    _fields_ = (("pointer", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextlib.contextmanager
def signal_stack_kept() -> Iterator[None]:
    """Restores the calling thread's signal stack at the end of the block; does nothing outside Linux."""
    # Other systems have no such call, or another order of fields in `stack_t`.
    swap = getattr(ctypes.CDLL(None), "sigaltstack", None) if sys.platform == "linux" else None
    before = _Stack()
    known = swap is not None and swap(None, ctypes.byref(before)) == 0
    try:
        yield
    finally:
        if swap is not None and known:
            before.flags &= _DISABLED
            swap(ctypes.byref(before), None)
