"""The names that files of a bundle may have."""

from __future__ import annotations

import pytest

from attnport_bundle.format.manifest import check_names


@pytest.mark.parametrize("name", ["a/b.txt", "a.b-c_d", "one two/3 (4).x"])
def test_plain_names_are_fine(name: str) -> None:
    check_names({name: None})


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/a",
        "a/",
        "a//b",
        "./a",
        "a/..",
        "a\\b",
        "a:b",
        "a ",
        "a.",
        "a\n",
        "x" * 256,
        "Bundle.JSON",
        "\ud800",
        "ünï/çode",
        "straße",
        "a\x7f",
    ],
)
def test_names_that_are_not_plain_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"plain path|may be one file"):
        check_names({name: None})
    with pytest.raises(ValueError, match="may be one file"):
        check_names({"strasse": None, "STRASSE": None})
