"""`--input` declarations: what each mark says, what follows from the shape, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from attnport.errors import UsageError
from attnport.masks import KINDS, MaskSpec
from attnport.sources.parsing import MARKS, parse_beside, parse_input, parse_leaf, text_of

DECLARED = {
    "m=int64[batch,seq]:padding": MaskSpec(("padding",), "m"),
    "m=bool[batch,seq]:padding:hide": MaskSpec(("padding",), "m", "hide"),
    "m=bool[batch,1,1,seq]:hide:padding": MaskSpec(("padding",), "m", "hide"),
    "m=float32[batch,1,1,seq]:padding:additive": MaskSpec(("padding",), "m", "additive"),
    "m=float32[batch,seq]:padding": MaskSpec(("padding",), "m"),
    "m=bool[seq]:padding": MaskSpec(("padding",), "m"),
    "m=int64[seq]:padding:mask": MaskSpec(("padding",), "m"),
    "lengths=int64[batch]:padding": MaskSpec(("padding",), "lengths", carries="lengths"),
    "n=int32[items]:padding:lengths:keys=mem": MaskSpec(("padding",), "n", carries="lengths", keys="mem"),
    "n=int32[batch]:padding:causal:lower_right": MaskSpec(
        ("padding", "causal"), "n", alignment="lower_right", carries="lengths"
    ),
    "segment_ids=int64[batch,seq]:documents": MaskSpec(("documents",), "segment_ids", carries="ids"),
    "ids=int32[batch,seq]:documents:padding": MaskSpec(("documents", "padding"), "ids", carries="ids"),
    "prefix=int64[batch]:prefix": MaskSpec(("prefix",), "prefix", carries="lengths"),
    "global_mask=int64[batch,seq]:global": MaskSpec(("global",), "global_mask", carries="marks"),
    "g=bool[batch,seq]:global:window=128": MaskSpec(("global", "window"), "g", window=128, carries="marks"),
    "bias=float32[batch,1,seq,seq]:bias": MaskSpec(("bias",), "bias", "additive"),
    "bias=float16[batch,1,seq,seq]:additive": MaskSpec(("bias",), "bias", "additive"),
    "m=bool[batch,1,seq,seq]:causal:padding": MaskSpec(("causal", "padding"), "m"),
    "m=bool[batch,1,seq,seq]:causal:window=3:hide": MaskSpec(("causal", "window"), "m", "hide", window=3),
    "m=bool[batch,1,seq,seq]:documents": MaskSpec(("documents",), "m"),
    "m=bool[seq,seq]:causal": MaskSpec(("causal",), "m"),
    "m=int64[batch,seq]:padding:causal": MaskSpec(("padding", "causal"), "m"),
    "m=float32[batch,1,seq,seq]:explicit:additive": MaskSpec(("explicit",), "m", "additive"),
}
REFUSED = {
    "m=int64[batch,seq]:paddling": "got mark 'paddling'; expected padding, causal",
    "m=int64[batch,seq]:window": r"got mark 'window'; expected .*window=N",
    "m=int64[batch,seq]:none": "got mark 'none'",
    "m=int64[batch,seq]:hide": "got hide without the kind of mask",
    "m=int64[batch,seq]:padding:keep:hide": "got keep and hide; expected one polarity",
    "m=int64[batch,seq]:window=1:window=2": "got 1 and 2; expected one window",
    "m=int64[batch,seq]:padding:padding": "a kind is named twice",
    "m=int64[seq]:padding": "either a length for each item, or a mask over the keys of all items",
    "m=int64[batch,seq]:padding:additive": "got dtype int64 for an additive mask; expected a float",
    "m=int64[batch,1,seq,seq]:bias": "got dtype int64 for an additive mask; expected a float",
    "m=float32[batch,1,seq,seq]:bias:keep": "got keep for a bias, which is added",
    "m=float32[batch]:prefix": "got dtype float32 for lengths; expected one of int32, int64",
    "m=float32[batch,seq]:documents": "got dtype float32 for ids; expected one of int32, int64",
    "m=int64[batch,seq]:padding:lengths": "got rank 2 for lengths; expected one for each item",
    "m=int64[batch]:documents:ids": "got rank 1 for ids; expected one for each position",
    "m=int64[batch,seq]:prefix": "got rank 2 for prefix; expected lengths",
    "m=float32[batch]:padding": "got dtype float32 for lengths; expected one of int32, int64",
    "m=int64[batch,seq]:global:hide": "got polarity hide for marks; only a mask has one",
    "m=int64[batch,seq]:padding:keys=seq": "only lengths count the keys of a dim",
    "m=int64[batch]:padding:prefix": "lengths cannot say padding, prefix",
    "m=int64[batch,seq]:high=1000:padding": "got high=1000 and padding; a mask has no limit of its values",
    "m=int64[batch,seq]:causal": "got causal, of queries and keys; its dims have no queries",
    "m=int64[batch,1,1,seq]:causal:window=3": "got causal and window, of queries and keys; its dims have no queries",
    "m=bool[a,b,c,d,e]:padding": "got rank 5 for a mask; expected 1 to 4",
}


@pytest.mark.parametrize("text", DECLARED)
def test_marks_declare_a_mask(text: str) -> None:
    spec, mask, *_ = parse_input(text)
    assert mask == DECLARED[text]
    assert text.startswith(str(spec))
    assert parse_leaf(text_of(parse_leaf(text))) == parse_leaf(text)


@pytest.mark.parametrize("text", REFUSED)
def test_marks_that_do_not_fit_are_refused_with_their_input(text: str) -> None:
    with pytest.raises(UsageError, match=REFUSED[text]) as caught:
        parse_input(text)
    assert "input m=" in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "x=uint8[batch,height,3]", "x=uint8[batch]:high=9", "past.0.key=float32[batch,0,4]", "s=float32[]",
        'held."k=1"."a:b[0]".""=bool[batch,past+seq]', "m=int64[batch,seq]:padding:example=eJw-_=",
        'mode="a[b]=\\"c"', "grid=[[1, 4]]", "off=null", "half=0.5", 'options={"a": [1]}',
    ],
)  # fmt: skip
def test_what_is_written_is_read_as_the_same(text: str) -> None:
    assert text_of(parse_leaf(text)) == text
    assert parse_leaf(text_of(parse_leaf(text))) == parse_leaf(text)


@pytest.mark.parametrize("text", ["1=float32[a]", 'x."a=float32[a]', 'x."\\q"=float32[a]', "x.=1", "=1", "x"])
def test_a_path_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        parse_leaf(text)


@pytest.mark.parametrize(
    ("read", "text", "hint"),
    [
        (parse_input, "ids=int64[batch,seq]:hgih=5000", "Is it :high=5000?"),
        (parse_input, "ids=int64[batch,seq]:high=5k", "Write it as :high=N."),
        (parse_input, "m=int64[batch,seq]:window", "Write it as :window=N."),
        (parse_input, "m=int64[batch,seq]:pading", "Is it :padding?"),
        (parse_input, "m=:padding", "Write them too, for example inputs=['m=int64[batch,seq]:padding']"),
        (parse_input, "m=padding:hide", "Write them too, for example inputs=['m=int64[batch,seq]:padding:hide']"),
        (lambda text: parse_beside([text]), "m=padding", "Write \":padding\", with a colon: inputs=['m=:padding']"),
    ],
)
def test_a_mark_that_is_misspelt_or_stands_alone_is_told_as_it_is_written(
    read: Callable[[str], object], text: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read(text)
    assert caught.value.hint == hint


def test_a_kind_that_is_missing_is_shown_in_place() -> None:
    with pytest.raises(UsageError) as caught:
        parse_input("m=int64[batch,seq]:hide")
    assert "m=int64[batch,seq]:padding:hide" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "polarity"),
    [
        ("attention_mask", "keep"),
        ("input_mask", "keep"),
        ("attention_mask_1", "keep"),
        ("key_padding_mask", "hide"),
        ("src_key_padding_mask", "hide"),
    ],
)
def test_what_a_mask_without_a_mark_hides_follows_from_its_name(name: str, polarity: str) -> None:
    mask = parse_input(f"{name}=bool[batch,seq]:padding").mask
    assert mask is not None
    assert mask.polarity == polarity


def test_an_input_without_marks_of_a_mask_is_none() -> None:
    assert parse_input("ids=int64[batch,seq]:high=99").mask is None
    assert parse_input("ids=int64[batch,seq]:documents:high=99").spec.high == 99


def test_every_kind_but_none_has_a_mark() -> None:
    assert {kind for kind in KINDS if kind in MARKS or f"{kind}=N" in MARKS} == set(KINDS) - {"none"}
    assert {kind for mask in DECLARED.values() for kind in mask.kinds} == set(KINDS) - {"none"}
