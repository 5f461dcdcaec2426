"""Keeps the stack that signals run on where it was before a library took it.

OpenVINO's CPU plugin gives the thread that compiles a model a signal stack of the model's own, and takes it back when
the model goes. Two models that do not go in reverse order leave the thread with a stack that is freed: the next Ctrl-C
is then a segmentation fault (openvino 2026.4.1, seen in gdb; `sigaltstack` shows the stale address).
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
    """Gives the calling thread back, at the end, the signal stack that it has now; does nothing but on Linux."""
    # Elsewhere there is no such call, or `stack_t` has another order.
    swap = getattr(ctypes.CDLL(None), "sigaltstack", None) if sys.platform == "linux" else None
    before = _Stack()
    known = swap is not None and swap(None, ctypes.byref(before)) == 0
    try:
        yield
    finally:
        if swap is not None and known:
            before.flags &= _DISABLED
            swap(ctypes.byref(before), None)
