"""What a text gives away is found, and what only looks like it is not."""

from __future__ import annotations

import getpass
import socket
from pathlib import Path

import pytest

from attnport.auditing.text import MOST, Builder, first_of_each, leaks, shown, this_builder

BUILDER = Builder(("alice",), ("workstation7",))


@pytest.mark.parametrize(
    ("text", "kind", "evidence"),
    [
        ("made in /" + "home/alice/model.py today", "path", "/" + "home/alice/model.py"),
        ("/" + "Users/bob/x", "user", "bob"),
        ("see file:" + "///" + "home/alice/y", "path", "file:" + "///" + "home/alice/y"),
        ("/" + "work/model", "path", "/" + "work/model"),
        ("loaded /data/runs/best.ckpt", "path", "/data/runs/best.ckpt"),
        (r"C:\Users\carol\net.py", "path", r"C:\Users\carol\net.py"),
        (r"C:\Users\carol\net.py", "user", "carol"),
        ('{"at": "D:\\\\models\\\\a.onnx"}', "path", "D:\\\\models\\\\a.onnx"),
        ("C:/builds/net/a", "path", "C:/builds/net/a"),
        (r"from \\server\share\weights", "path", r"\\server\share\weights"),
        ('  File "net.py", line 12, in forward\n    y = self.secret(x)\n', "source_line", "y = self.secret(x)"),
        ('  File "net.py", line 12, in forward', "stack_trace", 'File "net.py", line 12, in forward'),
        ("Traceback (most recent call last):", "stack_trace", "Traceback (most recent call last)"),
        ("layers/net.py(77): forward", "source_line", "layers/net.py(77): forward"),
        ("by alice-2", "user", "alice"),
        ("mail a.b@example.org", "user", "a.b@example.org"),
        ("on workstation7.local", "environment", "workstation7"),
        ("with HF_TOKEN=abc set", "environment", "HF_TOKEN=abc"),
        ("PATH=/bin", "environment", "PATH=/bin"),
        ("key hf_" + "a" * 34, "environment", "hf_" + "a" * 34),
    ],
)
def test_what_a_text_gives_away(text: str, kind: str, evidence: str) -> None:
    assert first_of_each(text, BUILDER).get(kind) == evidence  # type: ignore[call-overload]  # plain str in the table


@pytest.mark.parametrize(
    "text",
    [
        "/encoder/layer.0/attention/MatMul_output_0",  # a TorchScript export's own names
        "/scratch/layer1/Conv",
        "/level2/" + "root/conv",
        "https://example.org/home/page.html#x",
        "aten::view",
        "['', 'encoder', 'encoder.layer.0']",
        "malice and alices, alice1",
        "a:\\n b",
        "N/A and/or batch=8,seq=128",
        "num_heads=12 TOKENS==3",
        "onnx::MatMul_116",
    ],
)
def test_what_only_looks_like_it(text: str) -> None:
    assert first_of_each(text, BUILDER) == {}


def test_an_account_of_nobody_is_no_word_to_look_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "root")
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "dana")
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    assert this_builder() == Builder(("dana",), ())
    monkeypatch.setattr(socket, "gethostname", lambda: "buildbox.example.org")
    assert this_builder().hosts == ("buildbox",)


def test_a_name_is_found_as_a_word_only() -> None:
    builder = Builder(("root",))
    assert first_of_each("rooted, uproot", builder) == {}
    assert first_of_each("by root.", builder) == {"user": "root"}


def test_in_a_vocabulary_names_are_words_of_the_language() -> None:
    assert list(leaks("alice", BUILDER, words=False)) == []
    assert "path" in dict(leaks("/" + "home/alice/x", BUILDER, words=False))


def test_evidence_is_short_and_harmless_to_a_terminal() -> None:
    assert shown("a\x1b[31mb\nc") == "a\\x1b[31mb\\nc"
    assert shown("\ud800é") == "\\ud800é"
    for text in ("x" * 1000, "\x1b" * 1000, "y" * MOST):
        assert len(shown(text)) <= MOST
    assert shown("x" * 81).endswith("…")
    assert shown("y" * MOST) == "y" * MOST
