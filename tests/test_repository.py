"""What holds for every file that git tracks: a bounded size, and nothing of the machine that it was written on."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MOST_LINES = 800
SOURCES = {".py", ".cpp", ".h", ".hpp", ".c", ".cmake", ".js", ".css", ".html", ".sh", ".toml"}
MADE = b"// Made by tools/"
# Written in pieces, so that this file does not hold what it looks for.
FOREIGN = re.compile(
    rb"|".join(
        [
            rb"(?<![\w.])/" + rb"(?:work|root|home|Users|opt)/[\w.]+",
            rb"/tmp/" + rb"(?:dev|bash)",
            rb"file:" + rb"///",
            rb"--(?:extra-)?index" + rb"-url",
            rb"https?://\S+/" + rb"simple\b",
            rb"--find" + rb"-links",
        ]
    )
)


def tracked(root: Path) -> list[Path]:
    """The files git tracks and that are there."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True).stdout
    return [root / name.decode() for name in listed.split(b"\0") if name and (root / name.decode()).is_file()]


def too_long(paths: list[Path]) -> list[str]:
    """Source files of more than `MOST_LINES` lines that no tool made."""
    sources = [(path.read_bytes().splitlines(), path) for path in paths if path.suffix in SOURCES]
    written = [(len(lines), path) for lines, path in sources if not lines or not lines[0].startswith(MADE)]
    return [f"{path}: {lines} lines" for lines, path in written if lines > MOST_LINES]


def foreign(data: bytes) -> list[str]:
    """Paths of a machine and addresses of package indexes in a file's bytes."""
    return [match.group().decode(errors="replace") for match in FOREIGN.finditer(data)]


@pytest.fixture(scope="module")
def files() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    found = tracked(ROOT)
    assert len(found) > 20
    return found


def test_no_source_file_is_over_800_lines(files: list[Path]) -> None:
    assert too_long(files) == []


def test_no_file_holds_a_machine_path_or_an_index_address(files: list[Path]) -> None:
    found = [f"{path.relative_to(ROOT)}: {text}" for path in files for text in foreign(path.read_bytes())]
    assert not found, "\n".join(found)


def test_constraints_pin_exact_public_versions_and_the_pytorch_developed_against(files: list[Path]) -> None:
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", pin)] == []
    assert "torch==2.13.0" in pins
    names = {pin.partition("==")[0].lower().replace("_", "-") for pin in pins}
    assert names >= {"setuptools", "numpy", "onnx", "onnxruntime", "openvino", "transformers", "pytest", "ruff", "mypy"}


@pytest.mark.parametrize("name", ["docs", "release"])
def test_what_builds_the_site_and_a_release_is_installed_by_the_digests_of_its_files(name: str) -> None:
    pins = re.split(r"\n(?! )", re.sub(r"(?m)^#.*\n", "", (ROOT / f"constraints-{name}.txt").read_text()).strip())
    digests = r"( \\\n    --hash=sha256:[0-9a-f]{64})+"
    assert len(pins) > 20
    assert [pin for pin in pins if not re.fullmatch(rf"[A-Za-z0-9._-]+==[A-Za-z0-9.]+{digests}", pin)] == []
    assert "--require-hashes --requirement $<" in (ROOT / "Makefile").read_text()


def test_packages_of_a_gpu_are_pinned_beside_the_others_and_contradict_none(files: list[Path]) -> None:
    pins, others = (
        dict(line.split("==") for line in (ROOT / name).read_text().splitlines() if not line.startswith("#"))
        for name in ("constraints-gpu.txt", "constraints.txt")
    )
    assert [pin for pin in pins.values() if not re.fullmatch(r"[0-9.]+", pin)] == []
    assert not {name.lower().replace("_", "-") for name in pins} & {name.lower().replace("_", "-") for name in others}
    assert pins["onnxruntime-gpu"] == others["onnxruntime"]
    assert pins["tensorrt_cu13"] == pins["tensorrt_cu13_libs"] == pins["tensorrt_cu13_bindings"]
    assert (ROOT / "constraints-gpu.txt").resolve() in files


def test_no_two_test_files_have_one_name(files: list[Path]) -> None:
    """`make test` collects them all at once, and pytest imports each by its name alone."""
    names = [path.name for path in files if path.name.startswith("test_") and path.suffix == ".py"]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_a_long_file_is_found(tmp_path: Path) -> None:
    fine, long = tmp_path / "fine.py", tmp_path / "long.py"
    fine.write_text("x = 1\n" * MOST_LINES)
    long.write_text("x = 1\n" * (MOST_LINES + 1))
    assert too_long([fine, long]) == [f"{long}: {MOST_LINES + 1} lines"]


@pytest.mark.parametrize(
    "text",
    [
        "open('/" + "home/someone/model.onnx')",
        "see /" + "root/.cache",
        "\x00\x01/" + "work/thing\x00",
        "pip install --index" + "-url x",
        "pip install --extra-index" + "-url x",
        "https://example.org/" + "simple",
        "pip install --find" + "-links wheels",
    ],
)
def test_a_planted_path_or_address_is_found(text: str) -> None:
    assert len(foreign(text.encode())) == 1


@pytest.mark.parametrize(
    "text",
    ["framework/model", "https://pytorch.org/docs", "a simple/rule", "x / y", "./" + "work/a"],
)
def test_ordinary_text_is_no_path_of_a_machine(text: str) -> None:
    assert foreign(text.encode()) == []
