"""Nothing that torch.onnx alone gets right is refused or wrong in attnport."""

from __future__ import annotations

import gc

import pytest
from door_case import Case
from door_compare import all_cases, through_attnport, torch_alone

CASES = all_cases()
QUICK = ("masked_cache", "nested_dict_input", "rope_complex")
"""A sum of sizes, inputs inside of others, and complex numbers that become pairs."""
STILL_WRONG: dict[str, str] = {}
"""What torch.onnx alone gets right, and attnport not yet; the list only shrinks."""


def _param(case: Case) -> object:
    wrong = STILL_WRONG.get(case.name)
    marks = [pytest.mark.xfail(reason=wrong, strict=True)] if wrong else []
    return pytest.param(case, id=case.name, marks=marks if case.name in QUICK else [*marks, pytest.mark.slow])


@pytest.mark.filterwarnings("ignore")  # torch's exporter and scripting warn about themselves
@pytest.mark.parametrize("case", [_param(case) for case in CASES])
def test_what_torch_alone_gets_right_is_right(case: Case) -> None:
    ours = through_attnport(case)
    gc.collect()
    if not ours.right:
        alone = torch_alone(case)
        assert not alone.right, f"torch.onnx alone is right at all ten sizes; attnport: {ours.reason}"


def test_cases_have_ten_sizes_and_names_of_their_own() -> None:
    assert {case.name for case in CASES} >= set(QUICK)
    assert len(CASES) >= 44
    assert len({case.name for case in CASES}) == len(CASES)
    for case in CASES:
        dims = {dim for spec in case.specs for dim in spec.dims if isinstance(dim, str) and dim.isidentifier()}
        assert len({tuple(sizes.items()) for sizes in case.sizes}) == 10, case.name
        assert all(set(sizes) == dims for sizes in case.sizes), case.name
