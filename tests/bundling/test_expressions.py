"""Sizes of outputs as expressions: their values, what is refused, and that no text or size does more than that."""

from __future__ import annotations

import numpy as np
import pytest

from attnport_bundle.errors import BundleError, FeedError, UsageError
from attnport_bundle.feeds import check_feeds, check_outputs
from attnport_bundle.format.contract import IO, LARGEST, MAX_DEPTH, MAX_LETTERS, Dim, TensorSpec, dims_in, evaluate

SIZES = {"past": 3, "seq": 4, "height": 33, "width": 17, "empty": 0, "max": 9, "huge": LARGEST}
VALUES = {
    "past+seq": 7,
    "2*seq-1": 7,
    "(height//8)*(width//8)": 8,
    " ( seq + 1 ) // 2 ": 2,
    "seq-past-1": 0,
    "8-4-seq": 0,
    "width-width//2*2": 1,
    "(past-seq)//2+2": 1,  # rounds down
    "(past-seq)%4": 3,
    "min(past,max(seq,2))": 3,
    "max+max(max,12)": 21,
    "empty*huge": 0,
    "huge-1": LARGEST - 1,
    "0-0*seq": 0,
}
NO_VALUE = {
    "past-seq": "the size is -1",
    "seq//empty": "divides by 0",
    "seq%(past-seq)": "divides by -1",
    "huge+1-1": "beyond 2",
    "huge*huge//huge": "beyond 2",
    "0-huge-1+2": "beyond 2",
    "other+1": "other has no size",
}
NO_EXPRESSION = {
    "": "ends too early",
    "7": "names no dim",
    "seq+": "ends too early",
    "past seq": "not expected",
    "-seq": "where a name or a number",
    "seq/2": "not part",
    "seq**2": "where a name or a number",
    "seq.real": "not part",
    "seq()": "not expected",
    "min(seq)": "missing",
    "max(seq,2,3)": "missing",
    "(seq": "missing",
    "seq)": "not expected",
    "sëq": "not part",
    "seq+1e3": "not expected",
    "seq\n+1": "not part",
    f"seq*{2**53}": "beyond 2",
    "9" * 300 + "*seq": "beyond 2",
    "(" * (MAX_DEPTH + 1) + "seq" + ")" * (MAX_DEPTH + 1): "nested deeper",
    "+".join(["seq"] * MAX_LETTERS): "more than 400 letters",
}


@pytest.mark.parametrize("text", VALUES)
def test_an_expression_has_the_value_that_python_gives_it(text: str) -> None:
    assert evaluate(text, SIZES) == VALUES[text] == eval(text.strip(), {"min": min}, SIZES | {"max": Maximum(9)})


class Maximum(int):
    """A dim that is called like the function."""

    def __call__(self, *values: int) -> int:
        return max(values)


@pytest.mark.parametrize("text", NO_VALUE)
def test_a_size_below_zero_beyond_2_to_the_53_or_divided_by_zero_is_refused(text: str) -> None:
    assert dims_in(text)
    with pytest.raises(ValueError, match=NO_VALUE[text]):
        evaluate(text, SIZES)


@pytest.mark.parametrize("text", NO_EXPRESSION)
def test_text_that_is_no_expression_is_refused_with_the_place(text: str) -> None:
    with pytest.raises(ValueError, match=NO_EXPRESSION[text]):
        dims_in(text)


def test_the_deepest_and_the_longest_expression_are_read() -> None:
    assert evaluate("(" * MAX_DEPTH + "seq" + ")" * MAX_DEPTH, SIZES) == 4
    assert evaluate("+".join(["seq"] * (MAX_LETTERS // 4)), SIZES) == MAX_LETTERS


def contract(*dims: str | int) -> IO:
    x = TensorSpec("x", "float32", ("batch", "seq"))
    return IO((x,), (TensorSpec("y", "float32", dims),), (Dim("batch", 0, 2, 8), Dim("seq", 1, 4, 9)))


def test_outputs_take_expressions_of_dims_that_inputs_have() -> None:
    io = contract("batch*seq", "2*seq-1", 3)
    io.check()
    assert io.outputs[0].shape({"batch": 2, "seq": 5}) == (10, 9, 3)
    assert str(io.outputs[0]) == "y=float32[batch*seq,2*seq-1,3]"
    for dim, said in (("seq+width", "no input has width"), ("seq+", "it ends too early"), ("width", "'width'")):
        with pytest.raises(UsageError, match=said):
            contract(dim).check()


def masked(size: str) -> IO:
    """`contract` with a second input, of a size that follows from those of the first."""
    io = contract("batch", "seq")
    return IO((TensorSpec("mask", "bool", ("batch", size)), *io.inputs), io.outputs, io.dims)


def test_an_input_takes_expressions_of_dims_that_inputs_have_alone() -> None:
    masked("2*seq+1").check()
    with pytest.raises(UsageError, match=r"'mask': got dim 'seq\+width' \(no input has width\); known"):
        masked("seq+width").check()
    io = masked("seq+1")
    with pytest.raises(UsageError, match=r"'mask': got dim 'seq\+1' \(no input has seq\); known"):
        IO((io.inputs[0], TensorSpec("x", "float32", ("batch",))), io.outputs, io.dims).check()


def test_an_input_of_a_call_is_compared_with_the_expression() -> None:
    x = np.ones((2, 4), np.float32)
    assert check_feeds(masked("seq+1"), {"mask": np.ones((2, 5), bool), "x": x}) == {"batch": 2, "seq": 4}
    said = r"input 'mask': got size 4 on axis 1; expected seq\+1 with batch=2, seq=4"
    with pytest.raises(FeedError, match=said):
        check_feeds(masked("seq+1"), {"mask": np.ones((2, 4), bool), "x": x})
    with pytest.raises(FeedError, match=r"input 'mask': mask: the size 'seq-6' has no value"):
        check_feeds(masked("seq-6"), {"mask": np.ones((2, 4), bool), "x": x})


def test_a_size_without_a_value_names_the_output_and_the_sizes() -> None:
    with pytest.raises(UsageError, match=r"y: the size 'seq-3' has no value at batch=2, seq=1: the size is -2"):
        contract("seq-3").outputs[0].shape({"batch": 2, "seq": 1})


def test_an_output_of_a_call_is_compared_with_the_expression() -> None:
    io = contract("batch", "2*seq-1")
    check_outputs(io, {"batch": 2, "seq": 5}, {"y": (2, 9)})
    for dims, shape in ((("batch", "2*seq-1"), (2, 8)), (("batch", "seq-6"), (2, 0)), (("batch*seq",), (2, 5))):
        with pytest.raises(BundleError, match=r"output 'y': got shape .*; expected y=.* with batch=2, seq=5"):
            check_outputs(contract(*dims), {"batch": 2, "seq": 5}, {"y": shape})


def test_only_the_smallest_size_of_a_models_dim_may_be_zero() -> None:
    io = contract("seq")
    with pytest.raises(UsageError, match="usual size 0"):
        IO(io.inputs, io.outputs, (io.dims[0], Dim("seq", 0, 0, 5))).check()
