from __future__ import annotations

import pytest

from attnport.dims import Dim
from attnport.errors import ProfileError, UsageError
from attnport.latency.workloads import MOST, parse_grid

DIMS = (Dim("batch", 1, 4, 32), Dim("seq", 1, 16, 512))


def test_a_grid_is_every_combination_the_last_dim_varying_fastest() -> None:
    found = parse_grid("batch=1/8,seq=64/128", DIMS)
    assert [tuple(sizes.values()) for sizes in found] == [(1, 64), (1, 128), (8, 64), (8, 128)]


def test_one_size_each_is_one_shape_and_a_dim_left_out_takes_its_usual_size() -> None:
    assert parse_grid("seq=7", DIMS) == [{"batch": 4, "seq": 7}]
    assert parse_grid(" batch = 2 , seq=3", DIMS) == [{"batch": 2, "seq": 3}]


def test_a_size_that_is_given_twice_is_measured_once() -> None:
    assert parse_grid("batch=2/2,seq=3", DIMS) == [{"batch": 2, "seq": 3}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("batch", "cannot read 'batch'"),
        ("batch=", "cannot read 'batch='"),
        ("batch=1/", "cannot read 'batch=1/'"),
        ("batch=1/x", "cannot read 'batch=1/x'"),
        ("batch=0", "batch"),
        ("batch=1/64", "1 to 32"),
        ("head=1", "the model's dims are batch, seq"),
        ("batch=1,batch=2", "given twice"),
        ("batch=1:8:32", "cannot read 'batch=1:8:32'"),
        ("batch=1|8", "cannot read 'batch=1|8'"),
        ("seq=" + "/".join(map(str, range(1, MOST + 2))), f"at most {MOST}"),
    ],
)
def test_what_is_no_grid_is_refused_with_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_grid(text, DIMS)
    assert said in str(caught.value)
    assert caught.value.hint or isinstance(caught.value, ProfileError) or "at most" in said
