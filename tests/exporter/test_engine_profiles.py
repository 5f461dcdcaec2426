"""The optimization profiles that an engine is built for: what is refused before the builder starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_graphs import contract, decomposed, profile

from attnport.dims import Dim, Profile
from attnport.errors import ProfileError
from attnport.exporter.engine import build as building
from attnport.exporter.engine.build import build_engine

pytest.importorskip("tensorrt_rtx")


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ((Dim("batch", 1, 1, 1), Dim("seq", 1, 1, 512)), "takes seq from 1 to 256"),
        ((Dim("batch", 1, 1, 1), Dim("sequence", 1, 1, 16)), "the model's are batch, seq"),
        ((Dim("batch", 1, 1, 1),), "the model's are batch, seq"),
        ((Dim("batch", 1, 1, 1), Dim("seq", 1, 1, 8), Dim("seq", 1, 1, 16)), "the model's are batch, seq"),
    ],
)
def test_profile_that_does_not_fit_is_refused(tmp_path: Path, dims: tuple[Dim, ...], message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        build_engine(
            "tensorrt_rtx",
            decomposed(tmp_path / "m.onnx"),
            contract(),
            tmp_path / "e.engine",
            profiles=(Profile(dims),),
        )


def test_profile_given_twice_is_refused() -> None:
    with pytest.raises(ProfileError, match="given twice"):
        building.check_profiles(contract(), (profile(), profile()))


def test_profile_whose_tensors_cannot_be_counted_is_refused() -> None:
    huge = contract(seq=2**26)
    with pytest.raises(ProfileError, match="elements at its largest"):
        building.check_profiles(huge, ())


def test_profile_dims_in_another_order_are_put_in_the_models() -> None:
    (checked,) = building.check_profiles(contract(), (Profile(profile().dims[::-1]),))
    assert checked == profile()
