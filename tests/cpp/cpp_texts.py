"""The program `tokenize`, which shows what the C++ tokenizer makes of texts, and files for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from cpp_builds import Build

from attnport.bundling.characters import character_table

TEXT = "input_ids,token_type_ids,mask int64 batch,seq"
"""The inputs that most texts are made into."""


def run(build: Build, program: str, *arguments: str | Path, texts: Iterable[str | bytes]) -> list[str]:
    """The lines that a program prints for texts."""
    given = (text if isinstance(text, bytes) else text.encode() for text in texts)
    done = build.run(program, *arguments, given="".join(f"{text.hex()}\n" for text in given))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def with_chars(folder: Path, tokenizer: str, otherwise: str = "") -> Path:
    """A `tokenizer.json`, with its `tokenizer.chars` beside it: `otherwise` for a file that is not of BERT's kind."""
    path = folder / "tokenizer.json"
    path.write_text(tokenizer, "utf-8")
    path.with_suffix(".chars").write_text(character_table(path) or otherwise, "ascii")
    return path


def changed(path: Path, folder: Path, change: Callable[[Any], None]) -> Path:
    value = json.loads(path.read_text("utf-8"))
    change(value)
    return with_chars(folder, json.dumps(value), path.with_suffix(".chars").read_text("ascii"))
