"""One export, one artifact folder and one bundle of a tiny attention a session; tests that change one get a copy."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import tiny_attention as tiny
from kept import kept_folder

from attnport.verbs.bundle import bundle
from attnport_bundle import Model, load


@pytest.fixture(scope="session")
def exported() -> Path:
    def export(folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's exporter warns about itself
            tiny.export(folder)

    return kept_folder("tiny_attention", export)


@pytest.fixture(scope="session")
def arrays() -> dict[str, Any]:
    return tiny.goldens()


@pytest.fixture(scope="session")
def made_artifact(tmp_path_factory: pytest.TempPathFactory, exported: Path, arrays: dict[str, Any]) -> Path:
    return tiny.make(tmp_path_factory.mktemp("artifact") / "out", exported, arrays, tiny.parity())


@pytest.fixture(scope="session")
def made_bundle(tmp_path_factory: pytest.TempPathFactory, made_artifact: Path) -> Path:
    return bundle(made_artifact, tmp_path_factory.mktemp("bundle") / "app")


@pytest.fixture
def model(made_bundle: Path) -> Model:
    return load(made_bundle, threads=1)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A place for what a reader keeps, of the test's own."""
    return tmp_path / "cache"


@pytest.fixture
def artifact(made_artifact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made_artifact, tmp_path / "out"))


@pytest.fixture
def app(made_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made_bundle, tmp_path / "app"))
