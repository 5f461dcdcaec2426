"""Runs one fuzz target: python tests/fuzz/runner.py manifest|external|goldens [libFuzzer's options and folders].

https://github.com/google/atheris, https://llvm.org/docs/LibFuzzer.html
"""

from __future__ import annotations

import importlib
import shlex
import sys
from typing import Any

import atheris


def main() -> None:
    """Instruments the reader, imports the target, and leaves the rest to libFuzzer."""
    name, *options = sys.argv[1:]
    with atheris.instrument_imports(include=["attnport_bundle", "attnport.onnx_walk"]):
        target: Any = importlib.import_module(f"fuzz_{name}")
    mutate = getattr(target, "mutate", None)

    def one(data: bytes) -> None:
        target.one(data)

    def custom(data: bytes, max_size: int, seed: int) -> bytes:
        mutated: bytes = mutate(data, max_size, seed, atheris.Mutate)
        return mutated

    # libFuzzer starts itself again to merge corpora, by a shell line that begins with the program's name.
    program = shlex.join([sys.executable, sys.argv[0], name])
    atheris.Setup([program, *options], one, **({"custom_mutator": custom} if mutate else {}))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
