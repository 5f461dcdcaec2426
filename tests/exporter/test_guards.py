"""What torch cannot prove of all sizes: graphs that are right anyway, and the line of code where one is not."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import sympy  # type: ignore[import-untyped]  # sympy has no type hints
import torch
from torch import nn

import attnport
from attnport.artifacts import IOContract, ModelSpec, Source
from attnport.dims import Dim, TensorSpec
from attnport.errors import ExportError
from attnport.exporter import guards, storage
from attnport.exporter.capture import Capture, _exported, capture
from attnport.parity.sizes import check_dims
from attnport.verbs import export

X, Y = (TensorSpec(name, "float32", ("batch", "seq", 16)) for name in "xy")
IO = IOContract((X,), (Y,), (Dim("batch", 1, 8, 64), Dim("seq", 1, 128, 512)), positions="none")


class Of(nn.Module):
    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body, self.table = body, nn.Parameter(torch.ones(1, 512, 16))

    def forward(self, x: Any) -> Any:
        return self.body(self, x)


def padded(m: Any, x: Any) -> Any:
    """In blocks of 4, of which the last one is padded; torch guards against blocks that are one or none."""
    rest = (4 - x.shape[1] % 4) % 4
    blocks = nn.functional.pad(x, (0, 0, 0, rest)).view(x.shape[0], -1, 4, 16)
    return (blocks + blocks.mean(2, keepdim=True)).flatten(1, 2)[:, : x.shape[1]]


def padded_if_need_be(m: Any, x: Any) -> Any:
    """In blocks of 4, of which the first is padded by 4 less what is left over, if anything is."""
    size = x.shape[1]
    left_over = size % 4
    if left_over > 0:
        x = nn.functional.pad(x, (0, 0, 4 - left_over, 0))
    blocks = x.reshape(x.shape[0], 4, -(-size // 4), 16)
    return (blocks + blocks.mean(2, keepdim=True)).flatten(1, 2)[:, -size:]


def padded_behind(less_than_whole: Any) -> Any:
    """In blocks of 4, of which the last is padded, if need be, and the padding taken off behind it."""

    def body(m: Any, x: Any) -> Any:
        padding = less_than_whole(x.shape[1])
        if padding > 0:
            x = nn.functional.pad(x, (0, 0, 0, padding))
        blocks = x.reshape(x.shape[0], -1, 4, 16)
        x = (blocks + blocks.mean(2, keepdim=True)).flatten(1, 2)
        return x[:, :-padding] if padding > 0 else x

    return body


def rolled(m: Any, x: Any) -> Any:
    """Rolled by half of its length, backwards, and by 3 features, and back."""
    half = x.shape[1] // 2
    x = x.roll((-half, 3), dims=(1, 2))
    return torch.roll(x + x.cumsum(1), half, 1)


def the_rest_last(m: Any, x: Any) -> Any:
    """The sum of what is left over of whole blocks of 4, from the end, if anything is."""
    rest = x.shape[1] % 4
    return x + x[:, -rest:].sum(1, keepdim=True) if rest else x


def the_rest_or_all(m: Any, x: Any) -> Any:
    """The sum of what is left over of whole blocks of 4, and of all if nothing is, as -0 is the first place."""
    return x + x[:, -(x.shape[1] % 4) :].sum(1, keepdim=True)


def the_rest_apart(m: Any, x: Any) -> Any:
    """Whole blocks of 4, and what is left over in another way, if anything is."""
    left_over = x.shape[1] % 4
    whole = x[:, : x.shape[1] - left_over] * 2
    return torch.cat([whole, x[:, x.shape[1] - left_over :] + 1], 1) if left_over else whole


def below_the_diagonal(m: Any, x: Any) -> Any:
    """A causal mask by the indices of what is hidden."""
    scores = x @ x.mT
    above, beside = torch.triu_indices(x.shape[1], x.shape[1], 1)
    scores[:, above, beside] = float("-inf")
    return scores.softmax(-1) @ x


def a_part_at_a_time(m: Any, x: Any) -> Any:
    """Attention with 256 queries at a time, each to 300 keys at a time, as where memory is short."""
    rows = []
    for queries in x.split(256, dim=1):
        parts = [(scores.exp().sum(-1, keepdim=True), scores.exp() @ keys)
                 for keys in torch.split(x, 300, 1) for scores in (queries @ keys.mT / 16,)]  # fmt: skip
        rows.append(sum(weighted for _, weighted in parts) / sum(total for total, _ in parts))
    return torch.cat(rows, 1)


def each_part_from_the_one_before(m: Any, x: Any) -> Any:
    """A recurrence over parts of 4."""
    state, rows = x[:, :1], []
    for part in x.split(4, dim=1):
        rows.append(part + state)
        state = part.mean(1, keepdim=True)
    return torch.cat(rows, 1)


def in_chunks(m: Any, x: Any) -> Any:
    """In chunks of 256, each with the means of those before it, as Mamba 2 has it: one chunk is a special case."""
    rest = (256 - x.shape[1] % 256) % 256
    chunks = nn.functional.pad(x, (0, 0, 0, rest)).reshape(x.shape[0], -1, 256, 16)
    means = nn.functional.pad(chunks.mean(2), (0, 0, 1, 0))
    several = means[:, :, None].expand(-1, -1, means.shape[1], -1)
    before = torch.ones(means.shape[1], means.shape[1]).triu()
    return (chunks + (several * before[None, :, :, None]).sum(1)[:, :-1, None]).flatten(1, 2)[:, : x.shape[1]]


def short_and_long(m: Any, x: Any) -> Any:
    return x * 2 if x.shape[1] > 32 else x + 1


def but_for_one(m: Any, x: Any) -> Any:
    return x * 2 if x.shape[1] == 40 else x + 1


def the_same_either_way(m: Any, x: Any) -> Any:
    return x + x if x.shape[1] > 32 else x * 2


def check(body: Any, tmp_path: Path) -> Capture:
    """Exports a module and tries it at every size, as `attnport export` does."""
    captured = capture(Of(body).eval(), IO)
    storage.save_exported(captured.model, tmp_path / "model.onnx", "weights.bin")
    spec = ModelSpec("of", Source("of"), IO, lambda: Of(body).eval())
    reference, eager = export._Opened(spec, float64=True), export._Opened(spec)
    check_dims(IO, captured.guards, tmp_path / "model.onnx", reference.run, eager.run, lambda message: None)
    return captured


@pytest.mark.parametrize(
    "body",
    [
        padded,
        padded_if_need_be,
        padded_behind(lambda size: math.ceil(size / 4) * 4 - size),
        pytest.param(padded_behind(lambda size: (4 - size % 4) % 4), marks=pytest.mark.slow),
        pytest.param(padded_behind(lambda size: -(-size // 4) * 4 - size), marks=pytest.mark.slow),
        pytest.param(padded_behind(lambda size: 4 - size % 4 if size % 4 else 0), marks=pytest.mark.slow),
        the_rest_apart,
        the_rest_last,
        the_rest_or_all,
        rolled,
        below_the_diagonal,
        a_part_at_a_time,
        pytest.param(in_chunks, marks=pytest.mark.slow),
        the_same_either_way,
        lambda m, x: x + m.table[:, : x.shape[1]],
    ],
)
def test_a_graph_that_is_right_where_its_guards_are_false_is_taken(body: Any, tmp_path: Path) -> None:
    check(body, tmp_path)


def test_a_recurrence_over_parts_is_refused_with_what_to_declare(tmp_path: Path) -> None:
    module, args = Of(each_part_from_the_one_before), (torch.randn(2, 12, 16),)
    with pytest.raises(ExportError, match=r"not the module|froze") as caught:
        attnport.export(module, tmp_path / "many", args=args)
    assert "for part in x.split(4, dim=1)" in caught.value.hint
    assert "declare one size" in caught.value.hint
    attnport.export(module, tmp_path / "one", args=args, dims=["seq=12:12:12"])


def in_python_numbers(m: Any, x: Any) -> Any:
    """As many rows as a quotient says, as an encoder of speech works out how many frames it has."""
    return x + x[:, : int(x.shape[1] / 4 + 1)].mean(1, keepdim=True)


def in_windows(m: Any, x: Any) -> Any:
    """In windows of 4, whose length torch divides anew by how many there are."""
    x = nn.functional.pad(x, (0, 0, 0, (4 - x.shape[1] % 4) % 4))
    count = x.shape[1] // 4
    windows = x.unflatten(1, (count, x.shape[1] // count)).reshape(x.shape[0] * count, 4, 16)
    return windows.mean(1).unflatten(0, (x.shape[0], count))


def test_a_graph_is_tried_where_all_sizes_are_equal(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="the graph is that of different sizes, which the module's code decides"):
        check(lambda m, x: x * 2 if x.shape[0] == x.shape[1] else x, tmp_path)


@pytest.mark.parametrize(("body", "pinned"), [(in_windows, False), (in_python_numbers, True)])
def test_a_graph_is_of_one_number_only_if_the_code_computes_others_at_other_sizes(body: Any, pinned: bool) -> None:
    program = _exported(Of(body).eval(), {"x": torch.zeros(5, 521, 16)}, IO, chosen=True)
    assert guards.pinned(program, IO) == pinned


def test_a_quotient_that_the_code_turns_into_a_number_stays_a_size(tmp_path: Path) -> None:
    check(in_python_numbers, tmp_path)


@pytest.mark.parametrize(
    ("body", "text", "at", "line"),
    [
        (short_and_long, r"seq > 32|32 < seq|seq >= 33|33 <= seq", "seq=1 ", "return x * 2 if x.shape[1] > 32"),
        (but_for_one, r"Ne\(seq, 40\)", "seq=40 ", "return x * 2 if x.shape[1] == 40"),
    ],
)
def test_a_branch_on_a_size_is_named_with_its_line(body: Any, text: str, at: str, line: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=rf"dim 'seq' of input 'x' froze: the graph is that of ({text}), ") as caught:
        check(body, tmp_path)
    assert line in caught.value.message
    assert at in caught.value.message


def even(m: Any, x: Any) -> Any:
    """Rows in pairs; one more row where they are odd."""
    if x.shape[1] % 2:
        x = nn.functional.pad(x, (0, 0, 0, 1))
    return torch.cat([x[:, 0::2], x[:, 1::2]], -1)


def without_an_odd_row(m: Any, x: Any) -> Any:
    return x if x.shape[1] % 2 == 0 else x[:, :-1]


@pytest.mark.parametrize(
    ("body", "size", "span", "words", "condition"),
    [
        (short_and_long, 64, "33:128:512", "33 to 512", "x.shape[1] > 32"),
        (short_and_long, 12, "1:32:32", "32", "x.shape[1] > 32"),
        (but_for_one, 12, "1:39:39", "39", "x.shape[1] == 40"),
        (even, 12, "2:128:512:2", "2 to 512 in steps of 2", "Mod(seq, 2)"),
        (without_an_odd_row, 12, "2:128:512:2", "2 to 512 in steps of 2", "x.shape[1] % 2"),
    ],
)
def test_the_sizes_on_the_examples_side_of_a_branch_are_taken(
    body: Any, size: int, span: str, words: str, condition: str, tmp_path: Path
) -> None:
    told: list[str] = []
    artifact = attnport.export(Of(body), tmp_path / "x", args=(torch.randn(2, size, 16),), tell=told.append)
    assert str(artifact.manifest.io.dims[1]).partition("=")[2] == span
    (line,) = (line for line in told if "limited" in line)
    assert f"limited seq to {words} (" in line
    assert condition in line


def test_a_branch_that_has_no_range_with_the_example_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"Mod\(seq, 2\)") as caught:
        attnport.export(Of(without_an_odd_row), tmp_path / "x", args=(torch.randn(2, 13, 16),))
    assert "'seq=2:128:512:2'" in caught.value.hint


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (lambda m, x: x if x.sum() > 0 else x + 1, "torch.where"),
        (lambda m, x: x * sum(range(int(x.abs().sum().item()))), "keep it a tensor"),
        (lambda m, x: x.view(x.shape[0], 5, 2, 8), "Write -1 or x.shape[i]"),
    ],
)
def test_what_cannot_be_traced_is_named_with_its_line_and_what_to_write(body: Any, hint: str) -> None:
    with pytest.raises(ExportError, match=r"test_guards.py, line \d+: ") as caught:
        capture(Of(body).eval(), IO)
    assert hint in str(caught.value.hint)


def test_a_guard_is_computed_as_sympy_has_it() -> None:
    import sympy  # type: ignore[import-untyped]  # it has no types
    from torch.utils._sympy import functions

    a, b = (sympy.Symbol(name, integer=True, positive=True) for name in "ab")
    padding = functions.Mod(8 - functions.Mod(a, 8), 8)
    for condition in (
        sympy.Ne(functions.FloorDiv(a + padding, 8), 1),
        sympy.Eq(functions.Mod(a, b), 0),
        sympy.Min(a, b) < sympy.Max(3, b) / 2,
        functions.CeilToInt(functions.IntTrueDiv(a, 3)) > functions.FloorToInt(functions.ToFloat(b)),
        functions.RoundToInt(functions.IntTrueDiv(a, b)) > 2,
    ):
        holds = guards._as_function(condition, [a, b])
        for sizes in itertools.product(range(1, 20), range(1, 9)):
            assert holds(*sizes) == bool(condition.subs(dict(zip((a, b), sizes, strict=True)))), (condition, sizes)


def test_sizes_that_violate_a_guard_are_the_smallest_and_the_smallest_without_a_one() -> None:
    captured = capture(Of(short_and_long).eval(), IO)
    assert [dict(guard.sizes) for guard in captured.guards] == [{"seq": 1}, {"seq": 2}]


def test_a_bound_limits_its_dims_if_the_usual_sizes_and_the_smallest_are_on_one_side_of_it() -> None:
    new, past = sympy.symbols("new past", integer=True)
    ranges = [Dim("seq", 1, 1, 2048), Dim("past", 0, 128, 2047)]

    def below(condition: Any) -> list[str]:
        return [str(dim) for dim in guards._below(guards._as_function(condition, [new, past]), ranges)]

    assert below(new + past <= 2048) == ["seq=1:1:1024", "past=0:128:1023"]
    for other in (new + past <= 100, new + past >= 2, sympy.Ne(past, 0)):
        assert below(other) == []


@pytest.mark.parametrize(
    ("condition", "parts"),
    [
        (lambda seq: seq > 32, ["seq=33:128:512", "seq=1:32:32"]),
        (lambda seq: seq == 40, ["seq=41:128:512", "seq=1:39:39", "seq=3:126:510:3"]),
        (lambda seq: seq % 6 in (0, 2), ["seq=6:126:510:6"]),
        (lambda seq: seq == 512, ["seq=1:128:511"]),
    ],
)
def test_a_condition_has_one_answer_in_parts_of_a_range(condition: Any, parts: list[str]) -> None:
    assert [str(dim) for dim in guards._parts(condition, Dim("seq", 1, 128, 512))] == parts
