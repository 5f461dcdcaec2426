"""The program that is stored for a module in memory: it computes what the module does, in every type."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structured_modules as modules
import torch
from torch import nn

import attnport
from attnport.artifacts import ModelSpec
from attnport.errors import ExportError, IntegrityError
from attnport.exporter.capture import Trace, capture
from attnport.exporter.patching import traceable
from attnport.exporter.program import write_program
from attnport.folder.given import Given
from attnport.jsonfile import digest_file
from attnport.sources.program import CODE, WEIGHTS, Stored, note, program_spec


class Mixed(nn.Module):
    """Casts that follow the module's type, casts that do not, and a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.out = nn.Embedding(40, 16), nn.Linear(16, 16, bias=False)
        self.register_buffer("ramp", torch.arange(64.0), persistent=False)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, ids: torch.Tensor, key_padding_mask: torch.Tensor) -> Any:
        x = self.words(ids) + self.ramp[: ids.shape[1], None]
        x = x * (~key_padding_mask)[..., None].to(x.dtype)
        x = self.layer(x, src_key_padding_mask=key_padding_mask)
        rough = x.float().square().mean(-1, keepdim=True).sqrt().to(self.out.weight.dtype)
        return {"hidden": self.out(x) / rough, "tied": x @ self.words.weight.T}


EXAMPLES = (torch.randint(0, 40, (2, 5)), torch.zeros(2, 5, dtype=torch.bool))


def traced(spec: ModelSpec) -> Trace:
    found = capture(spec.make(), spec.io, observed=True).trace
    assert found is not None
    return found


def stored(spec: ModelSpec, folder: Path) -> ModelSpec:
    program = write_program(spec.name, spec.make(), traced(spec))
    (folder / "source").mkdir()
    (folder / CODE).write_text(program.text)
    np.savez(folder / WEIGHTS, **program.arrays)
    files = {name: digest_file(folder / name) for name in (CODE, WEIGHTS)}
    note(spec.source, Stored(folder, spec.name, spec.io, files))
    found = program_spec(spec.source)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return Given(Mixed(), EXAMPLES, dims="seq=1:8:32").spec()


def test_a_stored_program_computes_what_the_module_does_in_every_type(spec: ModelSpec, tmp_path: Path) -> None:
    again = stored(spec, tmp_path)
    ids = torch.randint(0, 40, (3, 9))
    mask = torch.arange(9)[None].expand(3, 9) >= torch.tensor([[9], [4], [7]])
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        mine, theirs = (copy.deepcopy(each.make()).to(dtype) for each in (again, spec))
        # Without torch's own kernel for the whole layer, which rounds otherwise and which no trace has.
        with traceable(mine), torch.no_grad():
            got, expected = mine(ids=ids, key_padding_mask=mask), theirs(ids=ids, key_padding_mask=mask)
        assert [tensor.dtype for tensor in got] == [tensor.dtype for tensor in expected] == [dtype] * 2
        torch.testing.assert_close(got, expected)


class Limits(nn.Module):
    """Numbers of the module's type, as masks and norms of published modules have them."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        small = torch.finfo(x.dtype)
        scores = x.masked_fill(mask[..., None] == 0, small.min) + (1 - mask)[..., None].to(x.dtype) * (small.min / 4)
        return scores.softmax(1) / (x.norm() + small.eps)


def test_the_limits_of_a_type_are_those_of_the_type_that_a_program_computes_in(tmp_path: Path) -> None:
    x, mask = torch.randn(2, 3, 8), torch.tensor([[1, 1, 0], [1, 0, 0]])
    again = stored(Given(Limits(), (x, mask)).spec(), tmp_path)
    for dtype in (torch.float32, torch.float64):
        with torch.no_grad():
            (got,), expected = again.make().to(dtype)(x=x.to(dtype), mask=mask), Limits()(x.to(dtype), mask)
        torch.testing.assert_close(got, expected)


def test_a_changed_program_is_not_run(spec: ModelSpec, tmp_path: Path) -> None:
    source = dataclasses.replace(spec.source, code_digest="another")
    stored(dataclasses.replace(spec, source=source), tmp_path)
    (tmp_path / CODE).write_text("raise SystemExit")
    with pytest.raises(IntegrityError, match=r"program.py is missing, or is not the file that was written"):
        program_spec(source)


class Depends(modules.Attend):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x.float()) if x.dtype == torch.float32 else self.out(x) + 1


class DependsSilently(modules.Attend):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x) if x.dtype == torch.float32 else self.out(x) + 1


def test_a_module_whose_graph_depends_on_its_type_is_not_stored() -> None:
    spec = Given(Depends(), (torch.randn(2, 3, 16),)).spec()
    with pytest.raises(ExportError, match="its graph depends on the type"):
        write_program("Depends", spec.make(), traced(spec))


@pytest.mark.parametrize("kind", [Depends, DependsSilently])
def test_what_is_not_the_module_in_float64_is_not_kept(kind: type[nn.Module], tmp_path: Path) -> None:
    notes: list[str] = []
    attnport.export(kind(), tmp_path / "out", args=(torch.randn(2, 3, 16),), tell=notes.append)
    assert any("cannot be written as a program" in note for note in notes)
    assert not (tmp_path / "out" / CODE).exists()


class Undefined(modules.Attend):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x) * torch.nan


def test_a_module_that_gives_nan_as_its_program_does_is_kept(tmp_path: Path) -> None:
    notes: list[str] = []
    attnport.export(Undefined(), tmp_path / "out", args=(torch.randn(2, 3, 16),), tell=notes.append)
    assert not any("cannot be written as a program" in note for note in notes)
    assert (tmp_path / "out" / CODE).exists()


class WithSparseBuffer(nn.Module):
    """As Whisper, which keeps the heads that align words in a buffer that its forward does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 4)
        self.register_buffer("heads", torch.eye(3, dtype=torch.bool).to_sparse(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x)


def test_a_buffer_that_is_not_used_is_no_part_of_a_program(tmp_path: Path) -> None:
    exported = attnport.export(WithSparseBuffer(), tmp_path / "out", args=(torch.randn(2, 3, 16),))
    assert exported.manifest.notes == () or not any("as a program" in note for note in exported.manifest.notes)
    with np.load(tmp_path / "out" / WEIGHTS) as arrays:
        assert sorted(arrays.files) == ["p_out_bias", "p_out_weight"]


class Plain(modules.Attend):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x)


def test_a_graph_without_types_is_not_traced_in_float64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal made
        made += 1
        return export(*args, **options)

    export = torch.export.export
    spec = Given(Plain(), (torch.randn(2, 3, 16),)).spec()
    trace = traced(spec)
    monkeypatch.setattr(torch.export, "export", counted)
    write_program("Plain", spec.make(), trace)
    assert made == 0
    mixed = Given(Mixed(), EXAMPLES, dims="seq=1:8:32").spec()
    made = 0
    write_program("Mixed", mixed.make(), traced(mixed))
    assert made > 1


class InRegions(nn.Module):
    """Parts without gradients and with autocast off, one in the other, and attention weights beside the output."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.out = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        with torch.no_grad():
            with torch.autocast("cpu", enabled=False):
                y = self.out(x.float()).type_as(x)
            y = y + 1
        mixed, weights = self.attention(y, y, y)
        return mixed, (weights, y)


def test_a_module_with_regions_and_weights_that_are_left_out_is_stored(tmp_path: Path) -> None:
    module, x, notes = InRegions().eval(), torch.randn(2, 5, 16), list[str]()
    attnport.export(module, tmp_path / "out", args=(x,), tell=notes.append)
    assert any("weights were left out" in note for note in notes)
    assert not any("as a program" in note for note in notes)
    again = attnport.open(tmp_path / "out").manifest
    spec = program_spec(again.source)
    assert spec is not None
    with torch.no_grad():
        got, (mixed, (_, y)) = spec.make()(x=x), module(x)
    torch.testing.assert_close(got, (mixed, y))
