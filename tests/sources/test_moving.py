"""Dims of examples: dynamic where the module takes other sizes, fixed where it does not, refused where they froze."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

import attnport
from attnport.artifacts import ModelSpec
from attnport.dims import Symbol
from attnport.errors import ExportError, SpecError
from attnport.folder.given import Given
from attnport.sources.moving import Trials, grown, in_truth, joined

X = torch.randn(3, 9, 32)


class Layer(nn.Module):
    """A linear layer, for modules that differ in how they read sizes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(32, 32)
        self.table: torch.Tensor | None = None
        self.length = 0

    def heads(self, x: torch.Tensor, *sizes: int) -> torch.Tensor:
        q: torch.Tensor = self.layer(x).reshape(*sizes, 4, 8).transpose(1, 2)
        return functional.scaled_dot_product_attention(q, q, q)


class OfLen(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.heads(x, len(x), -1)


class OfInt(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.heads(x, int(x.shape[0]), int(x.size(1)))


class OfMask(Layer):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.heads(x, len(mask), -1) * mask[:, None, :, None]


@functools.lru_cache
def places(length: int) -> torch.Tensor:
    return torch.arange(length).float()[:, None]


class OfCache(Layer):
    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x) + places(x.shape[1])


class OfOwnTable(Layer):
    def forward(self, x: torch.Tensor) -> Any:
        if self.length != x.shape[1]:
            self.length = x.shape[1]
            self.table = torch.arange(x.shape[1]).float()[:, None]
        return self.layer(x) + self.table


def inputs_of(spec: ModelSpec) -> list[str]:
    return [str(each) for each in spec.io.inputs]


@pytest.mark.parametrize("kind", [OfLen, OfInt, OfCache, OfOwnTable])
def test_what_python_makes_of_a_size_stays_dynamic(kind: type[Layer]) -> None:
    assert inputs_of(Given(kind().eval(), (X,)).spec()) == ["x=float32[batch,seq,32]"]


class OfTwo(Layer):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.heads(x, 3, x.shape[1]) * mask[:, None, :, None]


def test_the_note_of_a_size_that_is_written_in_the_module_has_the_line_and_comes_before_the_width() -> None:
    (note,) = Given(OfTwo().eval(), (X, torch.ones(3, 9))).spec().notes
    batch, width = note.split("; ")
    assert batch.startswith("fixed, as the module takes no other size: axis 0 of x and mask at 3: shape '[3, 9, 4, 8]'")
    assert "(test_moving.py, line" in batch
    assert "self.layer(x).reshape" in batch
    assert width.startswith("axis 2 of x at 32: mat1 and mat2")


def test_axes_that_have_to_be_equal_move_together_and_others_do_not() -> None:
    spec = Given(OfMask().eval(), (X, torch.ones(3, 9))).spec()
    assert inputs_of(spec) == ["x=float32[batch,seq,32]", "mask=float32[batch,seq]"]


def test_an_axis_that_is_fixed_by_what_is_declared_of_another_is_told_so() -> None:
    spec = Given(OfMask().eval(), inputs={"x": "float32[batch,9,32]"}, args=(X, torch.ones(3, 9))).spec()
    assert inputs_of(spec) == ["x=float32[batch,9,32]", "mask=float32[batch,9]"]
    assert "axis 1 of mask at 9: it is as long as axis 1 of x, which is declared so" in " ".join(spec.notes)


class Unmasked(Layer):
    """As transformers: a mask that hides nothing is not looked at, and of others each item reads a row of its own."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q = self.layer(x).reshape(x.shape[0], -1, 4, 8).transpose(1, 2)
        looked_at = isinstance(mask, FakeTensor) or not mask.all()
        hidden = mask[torch.arange(x.shape[0])][:, None, None] > 0 if looked_at else None
        out: torch.Tensor = functional.scaled_dot_product_attention(q, q, q, hidden)
        return out


class AnyLength(Layer):
    """As transformers' decoders: a mask is cut off, or made longer, to what is needed."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q = self.layer(x).reshape(x.shape[0], -1, 4, 8).transpose(1, 2)
        cut = functional.pad(mask, (0, x.shape[1]))[:, None, None, : x.shape[1]] > 0
        out: torch.Tensor = functional.scaled_dot_product_attention(q, q, q, cut)
        return out


@pytest.mark.parametrize("kind", [Unmasked, AnyLength])
@pytest.mark.parametrize("declared", [{}, {"mask": ":padding"}])
def test_a_mask_is_as_large_as_what_it_is_for(kind: type[Layer], declared: dict[str, str]) -> None:
    mask = torch.ones(3, 9, dtype=torch.int64)
    spec = Given(kind().eval(), inputs=declared, args=(X, mask)).spec()
    assert [each.dims for each in spec.io.inputs] == [("batch", "seq", 32), ("batch", "seq")]


def test_a_graph_of_such_a_module_is_right_at_other_sizes(tmp_path: Path) -> None:
    module = OfLen().eval()
    with attnport.export(module, tmp_path / "out", args=X).open("onnx_reference") as running, torch.no_grad():
        got = running.run(x=X[:2, :5])["output"]
        torch.testing.assert_close(torch.from_numpy(got), module(X[:2, :5]), rtol=1e-4, atol=1e-5)


class Unrolled(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x[:, 0]
        for at in range(1, x.shape[1]):
            h = torch.tanh(self.layer(h) + x[:, at])
        return h


def test_a_dim_that_no_trace_keeps_is_refused_by_its_name_and_may_be_declared_fixed() -> None:
    with pytest.raises(ExportError, match=r"dim 'seq' of input 'x' \(axis 1\) froze .*test_moving.py, line") as caught:
        Given(Unrolled().eval(), (X,)).spec()
    assert "dims=['seq=9:9:9']" in str(caught.value.hint)
    spec = Given(Unrolled().eval(), (X,), dims="seq=9").spec()
    assert [dim.max for dim in spec.io.dims if dim.name == "seq"] == [9]
    assert inputs_of(Given(Unrolled().eval(), (X,), inputs={"x": "float32[batch,9,32]"}).spec()) == [
        "x=float32[batch,9,32]"
    ]


class OfWholeTable(Layer):
    """As Linformer, whose table is cut where there are fewer rows; the example has as many as there can be."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(9, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        assert length <= 9
        rows = self.rows[:length] if length < 9 else self.rows
        return self.heads(torch.einsum("bnd,nk->bkd", self.layer(x), rows), x.shape[0], -1)


def test_an_example_of_the_largest_size_fixes_no_dim(tmp_path: Path) -> None:
    exported = attnport.export(OfWholeTable().eval(), tmp_path / "out", args=(X,))
    assert [str(dim) for dim in exported.manifest.io.dims if dim.name == "seq"] == ["seq=1:9:9"]


class TwoPictures(nn.Module):
    """As the mask decoder of segment-anything: of a picture and of its positions, the numbers of pixels alone count."""

    def forward(self, picture: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        x = picture.flatten(2).mT + places.flatten(2).mT
        return functional.scaled_dot_product_attention(x, x, x)


def test_each_side_of_a_picture_goes_with_one_side_of_another() -> None:
    x, module = torch.randn(2, 8, 6, 6), TwoPictures()
    trials = Trials({"picture": x, "places": x}, lambda **feeds: {"y": module(**feeds)})
    dims = {name: (2, 8, Symbol(f"{name}_high"), Symbol(f"{name}_wide")) for name in trials.tensors}
    found = joined(dims, trials)
    assert found["picture"] == found["places"] == dims["picture"]


class Clip(nn.Module):
    """Patches of 2 of the pictures of a clip, with a mask of its pixels, as Allegro of diffusers."""

    def forward(self, clip: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool3d(clip, (1, 2, 2)).flatten(2).mT
        keep = functional.max_pool3d(mask[:, None], (1, 2, 2)).flatten(2)
        return functional.scaled_dot_product_attention(x, x, x, attn_mask=(1 - keep) * -1e4)


def test_each_side_of_a_mask_goes_with_its_own_side_where_their_product_alone_counts() -> None:
    spec = Given(Clip(), (torch.randn(2, 6, 4, 8, 8), torch.ones(2, 4, 8, 8))).spec()
    clip, mask = (each.dims for each in spec.io.inputs)
    assert (*clip[:1], *clip[2:]) == mask
    assert len(set(mask)) == 4


class Pixels(nn.Module):
    """Patches of 8, with a table of 64 positions, over rows and columns or flat."""

    def __init__(self, flat: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches, self.flat = nn.Conv2d(3, 16, 8, 8), flat
        self.places = nn.Parameter(torch.randn(1, 64, 16) if flat else torch.randn(1, 8, 8, 16))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        h = self.patches(image)
        h = h.flatten(2).mT + self.places if self.flat else (h.permute(0, 2, 3, 1) + self.places).flatten(1, 2)
        return functional.scaled_dot_product_attention(h, h, h)


class AnyPixels(nn.Module):
    """Patches of 8 of a picture of any number of them."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = image.shape
        return image.view(batch, channels, height // 8, 8, width // 8, 8).mean((3, 5))


@pytest.mark.parametrize("flat", [True, False])
def test_an_axis_of_which_more_is_cut_off_is_fixed_and_told(flat: bool) -> None:
    spec = Given(Pixels(flat).eval(), (torch.randn(2, 3, 64, 64),)).spec()
    assert inputs_of(spec) == ["image=float32[batch,3,64,64]"]
    assert "axis 2 of image at 64: The size of tensor a" in " ".join(spec.notes)


def test_an_axis_that_takes_multiples_of_a_number_is_found_to_do_so() -> None:
    spec = Given(AnyPixels(), (torch.randn(2, 3, 64, 48),)).spec()
    assert [(dim.min, dim.step) for dim in spec.io.dims if dim.name.startswith("image_") and dim.name != "image_1"] == [
        (8, 8),
        (8, 8),
    ]
    assert "runs at multiples of 8" in " ".join(spec.notes)


class Deciding(Layer):
    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x) if x.shape[1] > 5 else self.layer(x) * 2


def test_sizes_that_the_module_takes_and_the_trace_does_not_are_tried_and_left_out_where_the_graph_is_wrong(
    tmp_path: Path,
) -> None:
    notes: list[str] = []
    artifact = attnport.export(Deciding().eval(), tmp_path / "out", args=(X,), tell=notes.append)
    assert [str(dim) for dim in artifact.manifest.io.dims if dim.name == "seq"] == ["seq=6:128:512"]
    assert "limited seq to 6 to 512" in " ".join(notes)


class Cut(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x[:, :256] if x.shape[1] > 256 else x
        return self.heads(x, len(x), -1).sum(2)


def test_a_text_that_the_module_cuts_off_is_limited_to_the_sizes_before(tmp_path: Path) -> None:
    notes: list[str] = []
    artifact = attnport.export(Cut().eval(), tmp_path / "out", args=(X,), tell=notes.append)
    assert [str(dim) for dim in artifact.manifest.io.dims if dim.name == "seq"] == ["seq=1:128:256"]
    assert "the graph is that of seq > 256" in " ".join(notes)
    with pytest.raises(ExportError, match="the graph is that of seq > 256") as caught:
        attnport.export(Cut().eval(), tmp_path / "other", inputs=["x=float32[batch,seq,32]"])
    assert "dims=['seq=1:128:256']" in caught.value.hint


class LabelledRows(Layer):
    """TabPFN's idiom: the first rows of a table have labels, and all attend to these."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        unlabelled = y.new_zeros(len(y), x.shape[1] - y.shape[1])
        q = self.layer(x) + torch.cat([y, unlabelled], 1)[..., None]
        k = q[:, : y.shape[1]]
        return functional.scaled_dot_product_attention(q, k, k)


@pytest.mark.parametrize(
    ("given", "dims"),
    [
        ({"args": (X, torch.randn(3, 5))}, ["seq=9:128:512", "y_1=1:9:9"]),
        (
            {"inputs": ["x=float32[batch,rows,32]", "y=float32[batch,labels]"]},
            ["rows=128:128:512", "labels=1:128:128"],
        ),
    ],
)
def test_a_length_that_another_one_must_not_exceed(given: dict[str, Any], dims: list[str]) -> None:
    kept = Given(LabelledRows().eval(), **given).spec().io.dims
    assert [str(dim) for dim in kept if dim.name != "batch"] == dims


class Halved(nn.Module):
    """Pixels, half as many in each of three layers, of which one is left in a small picture."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Conv2d(3, 3, 3, 2, 1) for _ in range(3)))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.layers(image).flatten(2).mT
        return functional.scaled_dot_product_attention(x, x, x)


def test_a_small_example_limits_no_dim() -> None:
    spec = Given(Halved().eval(), (torch.randn(2, 3, 8, 8),)).spec()
    assert [str(dim) for dim in spec.io.dims] == ["batch=1:8:64", "image_2=1:128:512", "image_3=1:128:512"]
    assert not [note for note in spec.notes if "image_2" in note]


class Cached(nn.Module):
    """Attention over what was before and what is new, with a mask of both."""

    def forward(self, x: torch.Tensor, past: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        k = torch.cat([past, x], 1)
        hide = torch.where(mask[:, None] != 0, 0.0, float("-inf"))
        return functional.scaled_dot_product_attention(x, k, k, attn_mask=hide)


def test_an_empty_cache_is_an_input_that_may_be_empty() -> None:
    spec = Given(Cached(), (torch.randn(2, 3, 8), torch.zeros(2, 0, 8), torch.ones(2, 3, dtype=torch.int64))).spec()
    x, past, mask = (each.dims for each in spec.io.inputs)
    assert x[:2] == ("batch", "seq")
    assert past == ("batch", "past_1", x[2])
    assert mask == ("batch", "past_1+seq")
    assert spec.io.dim("past_1").min == 0


def test_an_example_without_elements_that_the_module_takes_no_other_of_is_refused() -> None:
    class Nothing(nn.Module):
        def forward(self, x: torch.Tensor, none: torch.Tensor) -> torch.Tensor:
            if none.numel():
                raise ValueError("there has to be nothing")
            return x + 1

    with pytest.raises(SpecError, match=r"input none has no elements: its axis 0 is 0 long.*there has to be nothing"):
        Given(Nothing(), (X, torch.zeros(0))).spec()


def test_a_mask_that_is_broadcast_over_heads_stays_so() -> None:
    tensors = {"q": torch.randn(1, 3, 5, 8), "mask": torch.zeros(1, 1, 5, 5)}
    trials = Trials(tensors, lambda q, mask: {"y": functional.scaled_dot_product_attention(q, q, q, mask)})
    assert {name: tuple(one.shape) for name, one in grown(trials, ()).items()} == {
        "q": (2, 3, 5, 8),
        "mask": (2, 1, 5, 5),
    }


def test_what_is_fixed_goes_out_of_the_sums_that_it_is_in() -> None:
    def call(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        if len(a) != 4:
            raise ValueError("four")
        return {"y": b + torch.cat([a, c])}

    trials = Trials({"a": torch.ones(4), "b": torch.ones(9), "c": torch.ones(5)}, call)
    found, _, notes = in_truth({"a": (Symbol("s"),), "b": (Symbol("s + t"),), "c": (Symbol("t"),)}, trials, ())
    assert found["a"] == (4,)
    assert found["b"][0].name == "4 + t"
    assert found["c"][0].name == "t"
    assert "axis 0 of a at 4: four" in notes[0]


class Pairs(nn.Module):
    """Pairs of neighbours, of which there is an even number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1] // 2, 2, -1).sum(2)


def test_an_even_number_is_found_where_no_axis_is_half_of_it() -> None:
    spec = Given(Pairs(), (torch.randn(3, 8, 4),)).spec()
    assert [(dim.name, dim.min, dim.step) for dim in spec.io.dims if dim.name == "seq"] == [("seq", 2, 2)]


def test_runs_do_not_change_the_module_that_is_exported() -> None:
    module = OfOwnTable().eval()
    spec = Given(module, (X,)).spec()
    made = spec.make()
    assert isinstance(made, OfOwnTable)
    assert (module.length, made.length) == (0, 0)
    assert next(made.parameters()) is next(spec.make().parameters())  # weights are shared


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_torchs_encoder_takes_one_token_with_a_mask_that_hides_nothing(tmp_path: Path) -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2).eval()
    hidden = torch.zeros(3, 9, dtype=torch.bool)
    hidden[0, 6:] = True  # it computes nested tensors, and none of a batch without a token
    artifact = attnport.export(encoder, tmp_path / "e", args=(X,), kwargs={"src_key_padding_mask": hidden})
    assert [str(dim) for dim in artifact.manifest.io.dims] == ["batch=1:8:64", "seq=1:128:512"]
    assert [(mask.input, mask.polarity) for mask in artifact.manifest.io.masks] == [("src_key_padding_mask", "hide")]
