"""The C interface of the reader, bound with ctypes and nothing else: what `attnport.h` says, in Python."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
DTYPES = ("float32", "float16", "float64", "int32", "int64", "bool")
OK, BUG, BAD_USE, RUNTIME_MISSING, NUMBERS_OFF, INTEGRITY = 0, 1, 2, 3, 4, 6


class Tensor(ctypes.Structure):
    """`attnport_tensor`."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int),
        ("place", ctypes.c_int),
        ("rank", ctypes.c_size_t),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
    ]


TOKENIZE = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int64), ctypes.c_int64
)
"""`attnport_tokenize`."""


class Options(ctypes.Structure):
    """`attnport_options`."""

    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("form", ctypes.c_char_p),
        ("threads", ctypes.c_int),
        ("trust_files", ctypes.c_int),
        ("public_key", ctypes.c_char_p),
        ("cache", ctypes.c_char_p),
        ("onnxruntime", ctypes.c_char_p),
        ("tokenize", TOKENIZE),
        ("tokenize_user", ctypes.c_void_p),
    ]


def options(**values: Any) -> Options:
    return Options(struct_bytes=ctypes.sizeof(Options), **values)


class Failed(Exception):
    """A call that did not end with ATTNPORT_OK: its status, and the message of this thread."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Library:
    """The shared library; `call` is its functions as they are, `open` a model with Python's own values."""

    def __init__(self, path: Path) -> None:
        self.call = ctypes.CDLL(str(path))
        handle, size = ctypes.c_void_p, ctypes.c_size_t
        tensors, given = ctypes.POINTER(Tensor), ctypes.POINTER(Options)
        out = ctypes.POINTER(handle)
        lengths, texts = ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_char_p)
        for name, result, arguments in (
            ("abi_version", ctypes.c_int, []),
            ("open", ctypes.c_int, [ctypes.c_char_p, given, out]),
            ("close", None, [handle]),
            ("run", ctypes.c_int, [handle, tensors, size, out]),
            ("run_device", ctypes.c_int, [handle, tensors, size, out]),
            ("map", ctypes.c_int, [handle, tensors, size, ctypes.c_int64, out]),
            ("embed", ctypes.c_int, [handle, texts, size, ctypes.c_char_p, ctypes.c_int64, out]),
            ("predict", ctypes.c_int, [handle, texts, texts, size, ctypes.c_char_p, ctypes.c_int64, out]),
            ("masks", ctypes.c_int, [handle, lengths, size, ctypes.c_int64, out]),
            ("outputs_count", size, [handle]),
            ("outputs_get", ctypes.c_int, [handle, size, tensors]),
            ("outputs_free", None, [handle]),
            ("form", ctypes.c_char_p, [handle]),
            ("provider", ctypes.c_char_p, [handle]),
            ("last_error", ctypes.c_char_p, []),
        ):
            function = getattr(self.call, f"attnport_{name}")
            function.restype, function.argtypes = result, arguments

    def check(self, status: int) -> None:
        if status != OK:
            raise Failed(status, self.last_error())

    def last_error(self) -> str:
        return str(self.call.attnport_last_error().decode())

    def open(self, folder: Path | str, **values: Any) -> Model:
        handle = ctypes.c_void_p()
        given = options(
            **{name: str(value).encode() if isinstance(value, Path) else value for name, value in values.items()}
        )
        self.check(self.call.attnport_open(str(folder).encode(), ctypes.byref(given), ctypes.byref(handle)))
        return Model(self, handle)


class Model:
    """A model that is open."""

    def __init__(self, library: Library, handle: ctypes.c_void_p) -> None:
        self.library, self.handle = library, handle

    @property
    def form(self) -> str:
        return str(self.library.call.attnport_form(self.handle).decode())

    @property
    def provider(self) -> str:
        return str(self.library.call.attnport_provider(self.handle).decode())

    def run(self, feeds: Mapping[str, Array], function: str = "attnport_run") -> dict[str, Array]:
        """Copies of the outputs by name; the inputs are read where they are."""
        inputs = tensors(feeds)
        found = ctypes.c_void_p()
        call = getattr(self.library.call, function)
        self.library.check(call(self.handle, inputs, len(feeds), ctypes.byref(found)))
        return self._taken(found)

    def map(self, feeds: Mapping[str, Array], tokens: int = 0) -> dict[str, Array]:
        found, call = ctypes.c_void_p(), self.library.call.attnport_map
        self.library.check(call(self.handle, tensors(feeds), len(feeds), tokens, ctypes.byref(found)))
        return self._taken(found)

    def embed(self, texts: Sequence[str | None], tokens: int = 0, prompt: str | None = None) -> dict[str, Array]:
        found, call = ctypes.c_void_p(), self.library.call.attnport_embed
        name = None if prompt is None else prompt.encode()
        self.library.check(call(self.handle, _texts(texts), len(texts), name, tokens, ctypes.byref(found)))
        return self._taken(found)

    def predict(self, texts: Sequence[str], others: Sequence[str] | None = None) -> dict[str, Array]:
        found, call = ctypes.c_void_p(), self.library.call.attnport_predict
        second = None if others is None else _texts(others)
        self.library.check(call(self.handle, _texts(texts), second, len(texts), None, 0, ctypes.byref(found)))
        return self._taken(found)

    def masks(self, lengths: Sequence[int], size: int = 0) -> dict[str, Array]:
        given, found = (ctypes.c_int64 * len(lengths))(*lengths), ctypes.c_void_p()
        call = self.library.call.attnport_masks
        self.library.check(call(self.handle, given, len(lengths), size, ctypes.byref(found)))
        return self._taken(found)

    def _taken(self, outputs: ctypes.c_void_p) -> dict[str, Array]:
        call, found = self.library.call, {}
        try:
            for index in range(call.attnport_outputs_count(outputs)):
                one = Tensor()
                self.library.check(call.attnport_outputs_get(outputs, index, ctypes.byref(one)))
                found[one.name.decode()] = _copied(one)
        finally:
            call.attnport_outputs_free(outputs)
        return found

    def close(self) -> None:
        handle, self.handle = self.handle, ctypes.c_void_p()
        self.library.call.attnport_close(handle)

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()


def _texts(texts: Sequence[str | None]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(texts))(*(text if text is None else text.encode() for text in texts))


def tensor(name: str, array: Array) -> Tensor:
    """A view of an array, which has to stay; so does its shape, which the view keeps."""
    assert array.flags.c_contiguous
    shape = (ctypes.c_int64 * array.ndim)(*array.shape)
    made = Tensor(name.encode(), DTYPES.index(str(array.dtype)), 0, array.ndim, shape, array.ctypes.data)
    made.kept = (shape, array)
    return made


def tensors(feeds: Mapping[str, Array]) -> Any:
    found = [tensor(name, array) for name, array in feeds.items()]
    made = (Tensor * len(found))(*found)
    made.kept = found
    return made


def _copied(one: Tensor) -> Array:
    dtype, shape = np.dtype(DTYPES[one.dtype]), one.shape[: one.rank]
    data = ctypes.string_at(one.data, int(np.prod(shape)) * dtype.itemsize)
    return np.frombuffer(data, dtype).reshape(shape)
