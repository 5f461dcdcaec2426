from __future__ import annotations

import numpy as np
import pytest

from attnport.artifacts import IOContract
from attnport.cases import inputs
from attnport.cases.inputs import untried
from attnport.cases.mask_cases import layouts_of
from attnport.dims import Dim, TensorSpec
from attnport.errors import FeedError, UsageError
from attnport.masks import CARRIES, KINDS, MaskSpec
from attnport.masks.numpy_builders import build, prefix
from attnport_bundle.feeds import check_feeds

BATCH, SEQ = Dim("batch", 1, 8, 64), Dim("seq", 1, 128, 512)
IDS = TensorSpec("input_ids", "int64", ("batch", "seq"), 100)
HIDDEN = TensorSpec("hidden", "float32", ("batch", "seq", 8))
POOLED = TensorSpec("pooled", "float32", ("batch", 8))


def text(mask: TensorSpec, spec: MaskSpec) -> IOContract:
    return IOContract((IDS, mask), (HIDDEN, POOLED), (BATCH, SEQ), (spec,))


CONTRACTS = {
    "keep": text(TensorSpec("mask", "int64", ("batch", "seq")), MaskSpec(("padding",), "mask")),
    "hide": text(TensorSpec("mask", "bool", ("batch", "seq")), MaskSpec(("padding",), "mask", "hide")),
    "additive": text(TensorSpec("mask", "float32", ("batch", 1, 1, "seq")), MaskSpec(("padding",), "mask", "additive")),
    "half": text(TensorSpec("mask", "bfloat16", ("batch", 1, 1, "seq")), MaskSpec(("padding",), "mask", "additive")),
    "square": text(
        TensorSpec("mask", "bool", ("batch", 1, "seq", "seq")), MaskSpec(("padding", "causal"), "mask", "keep")
    ),
    "explicit": text(TensorSpec("mask", "bool", ("batch", 1, "seq", "seq")), MaskSpec(("explicit",), "mask")),
    "bias": text(
        TensorSpec("mask", "float32", ("batch", 4, "seq", "seq")), MaskSpec(("bias", "padding"), "mask", "additive")
    ),
    "lengths": text(TensorSpec("mask", "int32", ("batch",)), MaskSpec(("padding",), "mask", carries="lengths")),
    "prefix": text(TensorSpec("mask", "int64", ("batch",)), MaskSpec(("causal", "prefix"), "mask", carries="lengths")),
    "ids": text(
        TensorSpec("mask", "int64", ("batch", "seq")), MaskSpec(("documents", "padding"), "mask", carries="ids")
    ),
    "marks": text(
        TensorSpec("mask", "bool", ("batch", "seq")),
        MaskSpec(("window", "global"), "mask", window=16, carries="marks"),
    ),
    "square prefix": text(
        TensorSpec("mask", "bool", ("batch", 1, "seq", "seq")), MaskSpec(("prefix", "padding"), "mask", "hide")
    ),
    "square documents": text(
        TensorSpec("mask", "float32", ("batch", "seq", "seq")), MaskSpec(("documents", "causal"), "mask", "additive")
    ),
    "square global": text(
        TensorSpec("mask", "int32", ("batch", 4, "seq", "seq")), MaskSpec(("window", "global"), "mask", window=2)
    ),
    "no mask": IOContract((TensorSpec("x", "float16", ("batch", "seq", 8)),), (HIDDEN,), (BATCH, SEQ)),
    "one dim": IOContract((TensorSpec("x", "float32", ("seq", 8)),), (TensorSpec("y", "float32", ("seq", 8)),), (SEQ,)),
    "at least two": IOContract((IDS,), (HIDDEN,), (Dim("batch", 2, 2, 2), Dim("seq", 20, 21, 22))),
    "steps": IOContract(
        (IDS, TensorSpec("mask", "int64", ("batch", "seq"))),
        (HIDDEN,),
        (Dim("batch", 2, 4, 16, 2), Dim("seq", 8, 32, 64, 8)),
        (MaskSpec(("padding",), "mask"),),
    ),
    "cross": IOContract(
        (
            TensorSpec("src", "float32", ("batch", "mem", 8)),
            TensorSpec("src_mask", "int64", ("batch", "mem")),
            IDS,
            TensorSpec("mask", "int64", ("batch", "seq")),
        ),
        (HIDDEN, TensorSpec("memory", "float32", ("batch", "mem", 8))),
        (BATCH, SEQ, Dim("mem", 1, 100, 300)),
        (MaskSpec(("padding",), "src_mask"), MaskSpec(("padding",), "mask")),
    ),
}


@pytest.fixture(params=CONTRACTS)
def io(request: pytest.FixtureRequest) -> IOContract:
    return CONTRACTS[request.param]


def named(io: IOContract, name: str) -> inputs.Case:
    return next(case for case in inputs.cases(io) if case.name == name)


def test_every_kind_and_content_of_a_mask_is_tried_here() -> None:
    masks = [mask for io in CONTRACTS.values() for mask in io.masks]
    assert {kind for mask in masks for kind in mask.kinds} == set(KINDS) - {"none"}
    assert {mask.carries for mask in masks} == set(CARRIES)


def test_every_case_fits_its_contract_and_says_what_is_compared(io: IOContract) -> None:
    for case in inputs.cases(io):
        sizes = check_feeds(io, case.feeds)
        for output in io.outputs:
            shape, valid = output.shape(sizes), case.valid[output.name]
            assert valid.dtype == bool
            assert valid.shape == shape[: valid.ndim]
            assert valid.any()


def test_models_with_a_mask_get_every_layout_of_it_and_others_only_sizes(io: IOContract) -> None:
    names = {case.name for case in inputs.cases(io)}
    groups = {case.name for case in inputs.cases(io) if case.group == "masks"}
    assert groups == {layout for mask in io.masks for layout in layouts_of(mask)}
    assert len(groups) >= 3 if io.masks else not groups
    assert {"longest", "primes"} <= names
    assert len(names) == len(inputs.cases(io))


def test_layouts_are_what_their_names_say() -> None:
    io = CONTRACTS["keep"]
    right, left = named(io, "right padding").feeds["mask"], named(io, "left padding").feeds["mask"]
    assert (np.diff(right, axis=1) <= 0).all()
    assert (np.diff(left, axis=1) >= 0).all()
    assert (right.sum(1) == left.sum(1)).all()
    assert right[0].all()
    assert not right[1:].all(axis=1).any()
    interior = named(io, "interior padding").feeds["mask"]
    assert interior[:, [0, -1]].all()
    assert not interior.all(axis=1).any()
    assert named(io, "no padding").feeds["mask"].all()
    masked = named(io, "one row fully masked").feeds["mask"]
    assert not masked[-1].any()
    assert masked[:-1].any(axis=1).all()


def test_sizes_are_one_the_maximum_and_primes() -> None:
    io = CONTRACTS["keep"]
    assert named(io, "sequence 1").feeds["input_ids"].shape == (2, 1)
    assert named(io, "longest").feeds["input_ids"].shape == (1, 512)
    assert named(io, "primes").feeds["input_ids"].shape == (3, 37)
    cross = named(CONTRACTS["cross"], "primes").feeds
    assert cross["src"].shape[1] != cross["input_ids"].shape[1]
    assert named(CONTRACTS["one dim"], "longest").feeds["x"].shape == (512, 8)
    assert all(named(CONTRACTS[name], "longest").valid["hidden"][0, -1] for name in ("keep", "cross", "lengths"))
    assert not named(io, "longest").feeds["mask"].all()


def test_one_item_alone_is_a_size_of_its_own() -> None:
    feeds = named(CONTRACTS["cross"], "one item").feeds
    assert {array.shape[0] for array in feeds.values()} == {1}
    assert min(array.shape[1] for array in feeds.values()) > 1
    assert named(CONTRACTS["at least two"], "shortest").feeds["input_ids"].shape == (2, 20)
    assert named(CONTRACTS["at least two"], "primes").feeds["input_ids"].shape == (2, 20)


def test_every_dim_is_tried_at_its_least_its_opt_and_its_largest(io: IOContract) -> None:
    found = [check_feeds(io, case.feeds) for case in inputs.cases(io)]
    for dim in io.dims:
        assert {dim.min, dim.max} <= {sizes[dim.name] for sizes in found}
        assert any(sizes == {each.name: each.min for each in io.dims} for sizes in found)
    assert any(all(sizes[dim.name] == dim.opt for dim in io.dims if dim.name != "batch") for sizes in found)


def test_a_batch_of_large_items_is_tried_up_to_fewer_of_them_and_the_report_says_so() -> None:
    image = TensorSpec("pixels", "float32", ("batch", 3, 224, 224))
    io = IOContract(inputs=(image,), outputs=(), dims=(Dim("batch", 1, 8, 64),), masks=(), positions="none")
    batches = {case.feeds["pixels"].shape[0] for case in inputs.cases(io)}
    assert (min(batches), max(batches)) == (1, 13)
    assert untried(io) == ["batch was tried up to 13, and goes to 64"]


def test_no_two_cases_of_sizes_alone_are_the_same(io: IOContract) -> None:
    plain = [case for case in inputs.cases(io) if case.group == "sizes" and case.name != "usual sizes"]
    sizes = [tuple(check_feeds(io, case.feeds).values()) for case in plain]
    further = [
        size for case, size in zip(plain, sizes, strict=True) if case.name.split()[0] in ("all", "opt", "largest")
    ]
    assert len(set(further)) == len(further)
    assert all(sizes.count(size) == 1 for size in further)


def test_opt_sizes_and_the_largest_batch_cost_no_more_than_the_longest() -> None:
    for name in ("keep", "cross", "prefix"):
        tokens = {case.name: case.feeds["input_ids"].size for case in inputs.cases(CONTRACTS[name])}
        assert max(tokens["opt sizes"], tokens["largest batch"]) <= tokens["longest"]
    assert named(CONTRACTS["keep"], "opt sizes").feeds["input_ids"].shape == (4, 128)
    assert named(CONTRACTS["keep"], "largest batch").feeds["input_ids"].shape == (64, 4)


def test_one_of_several_lengths_at_its_least_is_decoding_and_prefill_behind_a_cache() -> None:
    past = TensorSpec("cache_mask", "int64", ("batch", "past"))
    keys = TensorSpec("past_keys", "float32", ("batch", 2, "past", 4))
    dims = (BATCH, Dim("seq", 1, 16, 64), Dim("past", 1, 100, 300))
    io = IOContract((IDS, keys, past), (HIDDEN,), dims, (MaskSpec(("padding",), "cache_mask"),))
    step, prefill = named(io, "seq at its least"), named(io, "past at its least")
    assert (step.feeds["input_ids"].shape, step.feeds["cache_mask"].shape) == ((2, 1), (2, 32))
    assert not step.feeds["cache_mask"].all()
    assert (prefill.feeds["input_ids"].shape, prefill.feeds["cache_mask"].shape) == ((2, 16), (2, 1))
    assert not [case.name for case in inputs.cases(CONTRACTS["keep"]) if case.name == "seq at its least"]


def test_values_are_random_below_the_limit_and_the_same_for_a_seed() -> None:
    io = CONTRACTS["keep"]
    one, again, other = (
        next(case.feeds["input_ids"] for case in inputs.cases(io, seed) if case.name == "no padding")
        for seed in (0, 0, 1)
    )
    assert one.min() >= 0
    assert one.max() < 100
    assert len(np.unique(one)) > 20
    assert (one == again).all()
    assert (one != other).any()
    x = named(CONTRACTS["no mask"], "usual sizes").feeds["x"]
    assert x.dtype == np.float16
    assert 0.8 < x.std() < 1.2


def test_padding_holds_tokens_of_its_own_so_that_a_leak_shows() -> None:
    case = named(CONTRACTS["keep"], "right padding")
    assert len(np.unique(case.feeds["input_ids"][case.feeds["mask"] == 0])) > 5


@pytest.mark.parametrize("name", ["keep", "hide", "additive", "half"])
def test_every_polarity_compares_the_same_rows(name: str) -> None:
    for case, expected in zip(inputs.cases(CONTRACTS[name]), inputs.cases(CONTRACTS["keep"]), strict=True):
        assert (case.valid["hidden"] == expected.valid["hidden"]).all()


def test_padded_rows_are_left_out_but_an_item_without_keys_is_compared() -> None:
    case = named(CONTRACTS["keep"], "one row fully masked")
    keep = case.feeds["mask"] == 1
    assert case.valid["hidden"][-1].all()
    assert (case.valid["hidden"][:-1] == keep[:-1]).all()
    assert not case.valid["hidden"].all()
    assert case.valid["pooled"].shape == (4,)
    assert case.valid["pooled"].all()


def test_the_dims_of_the_mask_say_which_axis_of_an_output_is_keys() -> None:
    mask = TensorSpec("mask", "int64", ("batch", "seq"))
    outputs = (
        TensorSpec("turned", "float32", ("seq", "batch", 8)),
        TensorSpec("heads", "float32", ("batch", 4, "seq", "seq")),
        TensorSpec("alien", "float32", ("batch", "other")),
    )
    dims = (BATCH, SEQ, Dim("other", 1, 5, 9))
    io = IOContract((IDS, mask, TensorSpec("z", "float32", ("batch", "other"))), outputs, dims, CONTRACTS["keep"].masks)
    case = named(io, "right padding")
    keep = case.feeds["mask"] == 1
    assert (case.valid["turned"] == keep.T).all()
    assert (case.valid["heads"] == np.broadcast_to(keep[:, None, :], case.valid["heads"].shape)).all()
    assert case.valid["alien"].all()


def test_each_padding_mask_rules_the_outputs_of_its_own_length() -> None:
    case = named(CONTRACTS["cross"], "right padding")
    assert (case.valid["hidden"] == (case.feeds["mask"] == 1)).all()
    assert (case.valid["memory"] == (case.feeds["src_mask"] == 1)).all()


def test_causal_and_padding_are_both_in_a_square_mask() -> None:
    allowed = named(CONTRACTS["square"], "right padding").feeds["mask"]
    assert not np.triu(allowed[0, 0], 1).any()
    assert allowed[0, 0].any(axis=1).all()
    assert not allowed[-1, 0, :, -1].any()


def test_a_padding_mask_has_every_layout_and_lengths_those_that_they_can_say() -> None:
    every = ("no padding", "right padding", "left padding", "interior padding", "one row fully masked")
    assert layouts_of(MaskSpec(("padding",), "m")) == layouts_of(MaskSpec(("bias",), "m", "additive")) == every
    assert layouts_of(MaskSpec(("padding",), "m", carries="lengths")) == (every[0], every[1], every[4])


def test_lengths_are_the_same_layouts_as_a_mask_and_rule_the_same_rows() -> None:
    masks = {case.name: case for case in inputs.cases(CONTRACTS["keep"])}
    assert named(CONTRACTS["lengths"], "longest").feeds["mask"].tolist() == [512]  # padding inside is not a length
    for case in (case for case in inputs.cases(CONTRACTS["lengths"]) if case.name != "longest"):
        assert (lengths := case.feeds["mask"]).dtype == np.int32
        assert (lengths == masks[case.name].feeds["mask"].sum(1)).all()
        assert (case.valid["hidden"] == masks[case.name].valid["hidden"]).all()
    assert named(CONTRACTS["lengths"], "one row fully masked").feeds["mask"][-1] == 0
    padded = named(CONTRACTS["lengths"], "right padding").feeds["mask"]
    assert padded.min() >= 1
    assert padded.max() == 32
    assert len(set(padded)) == 4
    assert inputs.real_tokens(CONTRACTS["lengths"], named(CONTRACTS["lengths"], "right padding").feeds) == padded.sum()


def test_lengths_that_may_count_the_keys_of_several_dims_are_refused_until_they_say_which() -> None:
    memory, lengths = TensorSpec("x", "float32", ("batch", "mem", 8)), TensorSpec("n", "int64", ("batch",))
    dims = (BATCH, SEQ, Dim("mem", 1, 100, 300))
    io = IOContract((IDS, memory, lengths), (HIDDEN,), dims, (MaskSpec(("padding",), "n", carries="lengths"),))
    with pytest.raises(UsageError, match=r"lengths of which dim\? The inputs have seq, mem beside batch"):
        inputs.cases(io)
    said = IOContract(io.inputs, io.outputs, dims, (MaskSpec(("padding",), "n", carries="lengths", keys="mem"),))
    case = named(said, "longest")
    assert case.feeds["n"].max() == 300
    assert case.valid["hidden"].all()  # it has no axis of those keys
    other = IOContract(io.inputs, io.outputs, dims, (MaskSpec(("padding",), "n", carries="lengths", keys="men"),))
    with pytest.raises(UsageError, match="got keys='men'; the inputs have the dims batch, seq, mem"):
        inputs.cases(other)


def test_prefixes_are_none_some_of_several_lengths_and_all() -> None:
    io = CONTRACTS["prefix"]
    assert named(io, "prefix of none").feeds["mask"].tolist() == [0] * 4
    assert named(io, "prefix of all").feeds["mask"].tolist() == [32] * 4
    some = named(io, "prefixes of several lengths").feeds["mask"]
    assert len(set(some)) == 4
    assert some.min() == 0
    assert some.max() < 32
    assert named(io, "primes").valid["hidden"].all()


def test_documents_are_one_several_sorted_ones_and_some_with_padding_between() -> None:
    io = CONTRACTS["ids"]
    assert (named(io, "one document").feeds["mask"] == 1).all()
    some = named(io, "documents of several lengths").feeds["mask"]
    assert (np.diff(some, axis=1) >= 0).all()
    assert all(len(set(np.unique(row, return_counts=True)[1])) > 2 for row in some)
    between = named(io, "padding between documents")
    ids = between.feeds["mask"]
    assert (ids[:, 1:-1] == 0).any(axis=1).all()
    assert (between.valid["hidden"] == (ids != 0)).all()


def test_global_tokens_are_none_the_first_and_random_ones() -> None:
    io = CONTRACTS["marks"]
    assert not named(io, "no global token").feeds["mask"].any()
    assert named(io, "first token global").feeds["mask"].sum(1).tolist() == [1] * 4
    random = named(io, "random global tokens").feeds["mask"]
    assert 1 < random.sum() < random.size / 2
    assert (random[0] != random[1]).any()


def test_windows_are_tried_around_their_width() -> None:
    sizes = {case.name: case.feeds["input_ids"].shape[1] for case in inputs.cases(CONTRACTS["marks"])}
    assert {f"length {n}": n for n in (15, 16, 17, 32)}.items() <= sizes.items()
    assert not [case.name for case in inputs.cases(CONTRACTS["keep"]) if case.name.startswith("length")]
    wide = text(TensorSpec("mask", "bool", ("batch", "seq")), MaskSpec(("window", "padding"), "mask", window=300))
    assert {"length 299", "length 301"} <= {case.name for case in inputs.cases(wide)}
    assert "length 600" not in {case.name for case in inputs.cases(wide)}
    narrow = IOContract(
        (IDS,), (HIDDEN,), (BATCH, Dim("seq", 4, 128, 512)), (MaskSpec(("window",), window=1), MaskSpec(("causal",)))
    )
    assert not [case.name for case in inputs.cases(narrow) if case.name.startswith("length")]  # 1 and 2 are too short


def test_a_mask_over_pairs_is_the_one_that_its_kinds_mean() -> None:
    square = named(CONTRACTS["square prefix"], "prefixes of several lengths").feeds["mask"]
    lengths = named(CONTRACTS["prefix"], "prefixes of several lengths").feeds["mask"]
    assert (~square == prefix(lengths, 32, 32)).all()
    ids = named(CONTRACTS["ids"], "documents of several lengths").feeds["mask"]
    packed = MaskSpec(("documents", "causal"), "mask", carries="ids")
    added = named(CONTRACTS["square documents"], "documents of several lengths").feeds["mask"]
    assert (np.isneginf(added) == ~build(packed, ids, 32, 32)[:, 0]).all()
    near = named(CONTRACTS["square global"], "no global token").feeds["mask"]
    assert near.shape == (4, 4, 32, 32)
    assert near[2, 3].sum(1).max() == 5
    assert named(CONTRACTS["square global"], "first token global").feeds["mask"][2, 3, 0].all()


def test_an_explicit_mask_has_a_query_without_keys_in_one_case_only() -> None:
    rows = {case.name: case.feeds["mask"].any(-1).all() for case in inputs.cases(CONTRACTS["explicit"])}
    assert not rows["one row fully masked"]
    assert rows["no padding"]


def test_every_customary_spelling_of_hidden_in_an_additive_mask_is_read() -> None:
    io = CONTRACTS["additive"]
    for hidden in (-np.inf, np.finfo(np.float32).min, -1e9, -1e4):
        mask = np.array([0, -3.5, hidden], dtype=np.float32).reshape(1, 1, 1, 3)
        feeds = {"input_ids": np.zeros((1, 3), dtype=np.int64), "mask": mask}
        assert inputs.validity(io, feeds)["hidden"].tolist() == [[True, True, False]]


def test_a_full_case_has_no_padding_and_is_named_by_its_sizes() -> None:
    case = inputs.full_case(CONTRACTS["keep"], {"batch": 8})
    assert case.name == "batch=8,seq=128"
    assert case.feeds["mask"].all()
    assert inputs.real_tokens(CONTRACTS["keep"], case.feeds) == 8 * 128


def test_real_tokens_leave_padding_out() -> None:
    case = named(CONTRACTS["keep"], "right padding")
    assert inputs.real_tokens(CONTRACTS["keep"], case.feeds) == case.feeds["mask"].sum() < case.feeds["mask"].size
    x = inputs.full_case(CONTRACTS["no mask"], {"batch": 3, "seq": 5})
    assert inputs.real_tokens(CONTRACTS["no mask"], x.feeds) == 15


def test_given_feeds_are_checked_against_the_contract() -> None:
    feeds = dict(named(CONTRACTS["keep"], "primes").feeds)
    assert inputs.case(CONTRACTS["keep"], "mine", "given", feeds).group == "given"
    feeds["mask"] = feeds["mask"].astype(np.int32)
    with pytest.raises(FeedError, match=r"mask.*int32.*int64"):
        inputs.case(CONTRACTS["keep"], "mine", "given", feeds)


def test_lengths_that_no_memory_takes_are_not_tried_and_said() -> None:
    ids = TensorSpec("ids", "int64", ("batch", "seq"), 9)
    samples = TensorSpec("samples", "float32", ("batch", "time"))
    dims = Dim("batch", 1, 8, 64), Dim("seq", 1, 128, 131072), Dim("time", 400, 16000, 480000)
    io = IOContract((ids, samples), (ids,), dims, (MaskSpec(("causal", "window"), window=4096),))
    assert max(case.feeds["ids"].shape[1] for case in inputs.cases(io)) == 2048
    assert max(case.feeds["samples"].shape[1] for case in inputs.cases(io)) == 32000
    assert untried(io) == [
        "seq was tried up to 2048, and goes to 131072",
        "time was tried up to 32000, and goes to 480000",
    ]
