"""What ONNX Runtime prints about the kernels of attention on CUDA, and how it is caught."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnport.runtimes._ort import VARIABLE, kernels_in, printed_kernels

OPTIONS = "\x1b[36mAttentionKernelOptions: FLASH_ATTENTION=1 EFFICIENT_ATTENTION=1 MATH=1\x1b[0m\n"
PRINTED = f"{OPTIONS}\x1b[36mOperator=Attention Node=att DataType=fp16 SdpaKernel=FLASH_ATTENTION\x1b[0m\n"


def said(node: str, kernel: str, operator: str = "MultiHeadAttention") -> str:
    return f"\x1b[36mOperator={operator} Node={node} DataType=bf16 SdpaKernel={kernel}\x1b[0m\n"


def test_a_line_tells_the_kernel_of_a_node() -> None:
    assert kernels_in(PRINTED) == {"att": ("FLASH_ATTENTION",)}


@pytest.mark.parametrize("name", ["/layers.0/attention/MultiHeadAttention", "att/many", "a b", "Node=x DataType"])
def test_the_name_of_a_node_may_hold_slashes_dots_and_spaces(name: str) -> None:
    assert kernels_in(said(name, "CUDNN_FLASH_ATTENTION")) == {name: ("CUDNN_FLASH_ATTENTION",)}


def test_each_kernel_of_each_node_is_found_once() -> None:
    lines = [said("a", "MATH"), "something else\n", said("b", "EFFICIENT_ATTENTION"), said("a", "FLASH_ATTENTION")]
    assert kernels_in("".join([OPTIONS, *lines, *lines])) == {
        "a": ("MATH", "FLASH_ATTENTION"),
        "b": ("EFFICIENT_ATTENTION",),
    }


@pytest.mark.parametrize("printed", ["", OPTIONS, said("a", ""), "Operator=Attention DataType=fp16 SdpaKernel=MATH"])
def test_a_node_without_a_line_of_its_own_is_missing(printed: str) -> None:
    assert kernels_in(printed) == {}


@pytest.mark.parametrize("before", [None, "0"])
def test_what_is_printed_in_the_block_is_read_and_all_is_as_before_afterwards(
    before: str | None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(VARIABLE, before)
    buffered = open(1, "w", closefd=False)  # noqa: SIM115  # closed by the test
    monkeypatch.setattr(sys, "stdout", buffered)
    print("before", end=" ")
    with printed_kernels() as kernels:
        print("inside")
        subprocess.run([sys.executable, "-c", f"print({PRINTED!r})"], check=True)
        assert os.environ[VARIABLE] == "1"
        assert kernels == {}
    assert kernels == {"att": ("FLASH_ATTENTION",)}
    print("after")
    buffered.close()
    assert capfd.readouterr().out == "before after\n"
    assert os.environ.get(VARIABLE) == before


def test_an_error_in_the_block_leaves_the_output_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(ValueError, match="the model"), printed_kernels():
        raise ValueError("the model")
    assert VARIABLE not in os.environ
    os.write(1, b"here")
    assert capfd.readouterr().out == "here"
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before
