"""The C++ reader as another project takes it: in a subdirectory, or installed; and what it exports."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import cpp_builds
import pytest
from cpp_builds import NEW, Build, cmake, environment
from cpp_consumers import PROJECT, built, consumer

from attnport.verbs.bundle import bundle
from attnport_bundle.format import files, manifest

pytestmark = pytest.mark.slow
LOOSE = ("-DCMAKE_CXX_FLAGS=-O0", "-DCMAKE_DISABLE_FIND_PACKAGE_OpenVINO=ON")
"""Compiles fast."""
SUBDIRECTORY = "set(BUILD_SHARED_LIBS OFF)\nadd_subdirectory(app/cpp)\n"
INSTALLED = "find_package(attnport_bundle 1.0 REQUIRED)\n"


@pytest.fixture(scope="module")
def cpp_app(made_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny bundle, with the C++ reader in it. Not to be changed."""
    return bundle(made_artifact, tmp_path_factory.mktemp("with cpp") / "app", lang=["cpp"])


def programs(page: Path) -> list[str]:
    """The C++ programs of a page."""
    found = re.findall(r"^    #include.*\n(?:    .*\n|\n)*?    }\n(?=\n)", page.read_text("utf-8"), re.MULTILINE)
    return [re.sub(r"^    ", "", one, flags=re.MULTILINE) for one in found]


def installed(build: Build, prefix: Path) -> Path:
    """The reader of a build, installed."""
    build.make("attnport_bundle", "attnport-selftest", "attnport-search")
    done = cmake("--install", build.folder, "--prefix", prefix)
    assert done.returncode == 0, done.stdout + done.stderr
    return prefix


def test_the_program_of_the_bundles_page_runs_in_a_project_that_holds_the_bundle(cpp_app: Path) -> None:
    (program,) = programs(cpp_app / "cpp" / "README.md")
    assert len(program.splitlines()) < 25
    with cpp_builds.locked("consumer"):
        folder = consumer("subdirectory", cpp_app, PROJECT.format(SUBDIRECTORY), program)
        done = built(folder, f"-DONNXRUNTIME_INCLUDE_DIR={cpp_builds.headers(NEW)}", *LOOSE)
    assert done.stdout == "hidden: 80 elements\npooled: 16 elements\n", done.stderr
    cache = (folder / "build" / "CMakeCache.txt").read_text()
    ours = r"(?i)attnport|ONNXRUNTIME_INCLUDE_DIR|CMAKE_|OPENSSL|nlohmann|OpenVINO|Threads|PKG|pkgcfg|FIND_PACKAGE"
    added = [
        line
        for line in cache.splitlines()
        if re.match(r"^[A-Za-z]\w*:(?!INTERNAL)\w+=", line) and not re.match(ours, line)
    ]
    assert [line for line in added if not line.startswith("consumer")] == []
    assert files.check(folder / "app", manifest.read(folder / "app")) == []


@pytest.mark.parametrize("kind", ["shared", "static"])
def test_an_installed_reader_is_found_by_its_package(
    kind: str, cpp_app: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    build = request.getfixturevalue({"shared": "cpp_shared", "static": "cpp_asan"}[kind])
    prefix = installed(build, tmp_path / "prefix")
    library = {"shared": "libattnport_bundle.so.1", "static": "libattnport_bundle.a"}[kind]
    assert [path.name for path in prefix.glob(f"lib*/**/{library}")] == [library]
    (program,) = programs(cpp_app / "cpp" / "README.md")
    with cpp_builds.locked("consumer"):
        folder = consumer(kind, cpp_app, PROJECT.format(INSTALLED), program)
        options = [f"-Dattnport_bundle_DIR={next(prefix.glob('lib*/**/attnport_bundleConfig.cmake')).parent}"]
        if kind == "static":  # a shared one brings along what it is linked with
            options.append(f"-DOpenVINO_DIR={cpp_builds.openvino_cmake()}")
        done = built(folder, *options)
    assert done.stdout == "hidden: 80 elements\npooled: 16 elements\n", done.stderr
    command = [str(prefix / "bin" / "attnport-selftest"), str(cpp_app)]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_another_major_version_is_not_taken(cpp_shared: Build, cpp_app: Path, tmp_path: Path) -> None:
    prefix = installed(cpp_shared, tmp_path / "prefix")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(PROJECT.format("find_package(attnport_bundle 2.0 REQUIRED)\n"))
    (folder / "main.cpp").write_text("int main() {}\n")
    done = cmake(
        "-S", folder, "-B", folder / "build", *cpp_builds.common("g++"), "-GNinja", f"-Dattnport_bundle_ROOT={prefix}"
    )
    assert done.returncode != 0
    assert "1.0.0" in done.stderr


@pytest.mark.parametrize("where", ["build", "cpp", "cpp/build"])
def test_a_build_inside_of_the_bundle_is_refused(where: str, made_artifact: Path, tmp_path: Path) -> None:
    app = bundle(made_artifact, tmp_path / "app", lang=["cpp"])
    done = cmake("-GNinja", "-S", app / "cpp", "-B", app / where, *cpp_builds.common("g++"))
    assert done.returncode != 0
    assert "Build outside of the bundle" in done.stderr


def test_without_any_runtime_nothing_is_built_and_the_message_says_what_to_install(tmp_path: Path) -> None:
    off = ["-DONNXRUNTIME_INCLUDE_DIR=OFF", "-DTENSORRT_INCLUDE_DIR=OFF", "-DCMAKE_DISABLE_FIND_PACKAGE_OpenVINO=ON"]
    done = cmake("-GNinja", "-S", cpp_builds.READER, "-B", tmp_path, *cpp_builds.common("g++"), *off)
    assert done.returncode != 0
    for wanted in ("libonnxruntime-dev", "OpenVINO_DIR", "TENSORRT_INCLUDE_DIR"):
        assert wanted in done.stderr


def test_headers_that_are_not_where_they_were_said_to_be_are_an_error(tmp_path: Path) -> None:
    named = f"-DONNXRUNTIME_INCLUDE_DIR={tmp_path}"
    done = cmake("-GNinja", "-S", cpp_builds.READER, "-B", tmp_path / "b", *cpp_builds.common("g++"), named)
    assert done.returncode != 0
    assert "has no onnxruntime_c_api.h" in re.sub(r"\s+", " ", done.stderr)


@pytest.mark.parametrize(("package", "named"), [("nlohmann_json", "nlohmann-json3-dev"), ("OpenSSL", "libssl-dev")])
def test_a_library_that_is_needed_and_missing_is_named(tmp_path: Path, package: str, named: str) -> None:
    off = f"-DCMAKE_DISABLE_FIND_PACKAGE_{package}=ON"
    done = cmake("-GNinja", "-S", cpp_builds.READER, "-B", tmp_path, *cpp_builds.common("g++"), off)
    assert done.returncode != 0
    assert named in done.stderr


def strangers(names: list[str]) -> list[str]:
    """Symbols that are not of the reader's public interface: not its C functions, nor what stands in `attnport`."""
    public = re.compile(r"attnport_\w+$|_Z(?:TI|TS|TV|N|NK)(?:N)?8attnport(?!6reader)")
    return [name for name in names if not public.match(name)]


def test_the_shared_library_exports_its_own_names_alone(cpp_shared: Build) -> None:
    command = ["nm", "--dynamic", "--defined-only", "--format=posix", str(cpp_shared.library)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = [line.split()[0] for line in listed.splitlines()]
    assert strangers(names) == []
    assert {"attnport_open", "attnport_run", "attnport_close", "attnport_last_error"} <= set(names)
    assert strangers(["_ZN8attnport5ModelC1Ev", "_ZTIN8attnport5ErrorE", "attnport_open"]) == []
    for foreign in ("_ZN8attnport6reader4jsonEv", "_ZSt4moveIiEvT_", "deflate", "_ZN8nlohmann4json"):
        assert strangers([foreign]) == [foreign]
