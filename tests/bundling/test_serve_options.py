"""What `serve` refuses before an engine starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from attnport_bundle.errors import BundleError, RuntimeMissing
from attnport_bundle.serve_options import ENGINES, Options
from attnport_bundle.serving import named, serve


def test_bundles_are_named_by_their_manifest_or_by_the_caller(app: Path) -> None:
    (own,) = named([], app)
    assert named([f"v1={app}", "v2=elsewhere"], app) == {own: app, "v1": app, "v2": Path("elsewhere")}


@pytest.mark.parametrize("wrong", ["app", "=app", "v1=", "a/b=app", "a b=app", "é=app"])
def test_a_name_that_does_not_fit_into_an_address_is_refused(wrong: str) -> None:
    with pytest.raises(BundleError, match="NAME=FOLDER"):
        named([wrong])


def test_no_bundle_and_two_of_one_name_are_refused(app: Path) -> None:
    with pytest.raises(BundleError, match="no bundle to serve"):
        named([])
    (own,) = named([], app)
    with pytest.raises(BundleError, match="that no other has"):
        named([f"{own}=elsewhere"], app)


def test_numbers_out_of_range_are_refused_by_name() -> None:
    with pytest.raises(BundleError, match=r"replicas: got 0; expected 1 or more\."):
        Options(replicas=0)
    with pytest.raises(BundleError, match=r"threads: got -1; expected 0 or more\."):
        Options(threads=-1)


def test_an_engine_that_is_not_installed_is_named_with_its_extra(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for engine, extra in ENGINES.items():
        monkeypatch.setitem(sys.modules, engine, None)
        with pytest.raises(RuntimeMissing, match=rf'pip install "attnport-bundle\[{extra}\]"'):
            serve({"app": app}, engine)
    with pytest.raises(BundleError, match="expected kserve or ray"):
        serve({"app": app}, "other")
