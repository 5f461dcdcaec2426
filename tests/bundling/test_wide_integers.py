"""OpenVINO computes int64 in 32 bits: what does not fit is refused, since the lower half would be a wrong answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import wide_integers

from attnport_bundle import FeedError, load
from attnport_bundle.runtimes.openvino import _reason

pytest.importorskip("openvino")


def test_why_openvino_compiles_nothing_is_said_and_not_where_in_its_source() -> None:
    said = "Exception from src/core.cpp:117:\nException from src/plugin.cpp:54:\n\nCheck 'a' failed\nmore"
    assert _reason(said) == "Check 'a' failed"
    assert _reason("Exception from src/core.cpp:117:") == "Exception from src/core.cpp:117:"
    assert _reason("") == ""


@pytest.mark.parametrize("value", wide_integers.BEYOND.values(), ids=list(wide_integers.BEYOND))
def test_an_integer_beyond_32_bits_is_refused(value: int, app: Path) -> None:
    with load(wide_integers.make(app)) as model:
        with pytest.raises(FeedError) as caught:
            model.run(x=np.array([[1, value]], dtype=np.int64))
        assert str(caught.value) == wide_integers.words(value)
        held = np.array([[wide_integers.LEAST, wide_integers.MOST]], dtype=np.int64)
        assert (model.run(x=held)["y"] == held.astype(np.float32)).all()  # to the last one that fits
