"""test-all goes on where it stopped, and never counts as passed what did not pass."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "test_all.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("test_all_tool", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git checkout with three test files: one that passes, one that fails, one with nothing to run."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # plugins are most of the time that a start takes
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_good.py").write_text(
        "import pathlib, pytest\n"
        "def test_one():\n    with open('runs.log', 'a') as log: log.write('x')\n"
        "def test_two(): pass\n"
        "@pytest.mark.skip(reason='no')\ndef test_three(): pass\n"
    )
    (tests / "test_bad.py").write_text("def test_one(): assert 1 == 2\ndef test_two(): pass\n")
    (tests / "test_empty.py").write_text("")
    (tmp_path / ".gitignore").write_text(".cache/\nruns.log\n__pycache__/\n.pytest_cache/\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def run(tool: ModuleType, project: Path, *names: str, limit_s: float = 60) -> tuple[int, ...]:
    return run_groups(tool, project, [[f"tests/{name}.py"] for name in names], limit_s)


def run_groups(tool: ModuleType, project: Path, groups: list[list[str]], limit_s: float = 60) -> tuple[int, ...]:
    total = tool.run(project, groups, limit_s, False, ["-p", "no:cacheprovider"])
    return total.passed, total.failed, total.skipped


def runs(project: Path) -> int:
    log = project / "runs.log"
    return len(log.read_text()) if log.exists() else 0


def test_passed_failed_and_skipped_are_counted(tool: ModuleType, project: Path) -> None:
    assert run(tool, project, "test_good", "test_bad", "test_empty") == (3, 1, 1)


def test_what_passed_is_not_run_again_and_still_counts(tool: ModuleType, project: Path) -> None:
    assert run(tool, project, "test_good") == (2, 0, 1)
    assert run(tool, project, "test_good") == (2, 0, 1)
    assert runs(project) == 1


def test_what_failed_is_run_again(tool: ModuleType, project: Path) -> None:
    assert run(tool, project, "test_bad") == (1, 1, 0)
    (project / "tests" / "test_bad.py").write_text("def test_one(): pass\ndef test_two(): pass\n")
    assert run(tool, project, "test_bad") == (2, 0, 0)


def test_any_change_of_the_tree_runs_everything_again(tool: ModuleType, project: Path) -> None:
    run(tool, project, "test_good")
    (project / "module.py").write_text("x = 1\n")
    run(tool, project, "test_good")
    assert runs(project) == 2


def test_files_of_one_process_are_counted_each_and_run_alone_where_one_fails(tool: ModuleType, project: Path) -> None:
    (project / "tests" / "test_good_2.py").write_text("class TestAll:\n    def test_one(self): pass\n")
    group = [f"tests/{name}.py" for name in ("test_good", "test_good_2", "test_empty")]
    assert run_groups(tool, project, [group]) == (3, 0, 1)
    assert runs(project) == 1
    assert run_groups(tool, project, [[*group, "tests/test_bad.py"]]) == (4, 1, 1)
    assert runs(project) == 1, "what passed in the process of others counts"
    (project / "tests" / "test_dies.py").write_text("import os\ndef test_one(): os._exit(0)\n")
    assert run_groups(tool, project, [["tests/test_dies.py", *group]]) == (3, 1, 1)
    assert runs(project) == 2


def test_files_with_slow_tests_are_first_and_alone(tool: ModuleType, project: Path) -> None:
    (project / "tests" / "test_slow.py").write_text("import pytest\n@pytest.mark.slow\ndef test_one(): pass\n")
    every = ["tests/test_bad.py", "tests/test_empty.py", "tests/test_good.py"]
    assert tool.test_groups(project) == [["tests/test_slow.py"], every]


def test_a_file_past_its_limit_is_a_failure(tool: ModuleType, project: Path) -> None:
    (project / "tests" / "test_slow.py").write_text("import time\ndef test_one(): time.sleep(60)\n")
    assert run(tool, project, "test_slow", limit_s=3) == (0, 1, 0)


def test_a_process_that_dies_is_a_failure(tool: ModuleType, project: Path) -> None:
    (project / "tests" / "test_dies.py").write_text("import os\ndef test_one(): os._exit(0)\n")
    assert run(tool, project, "test_dies") == (0, 1, 0)


def test_a_file_that_cannot_be_imported_is_a_failure(tool: ModuleType, project: Path) -> None:
    (project / "tests" / "test_broken.py").write_text("import no_such_module\n")
    assert run(tool, project, "test_broken") == (0, 1, 0)


def test_a_file_whose_environment_is_not_there_is_a_failure_and_the_others_run(tool: ModuleType, project: Path) -> None:
    (project / "tests" / "serving").mkdir()
    (project / "tests" / "serving" / "test_server.py").write_text("def test_one(): pass\n")
    groups = tool.test_groups(project)
    assert groups[0] == ["tests/serving/test_server.py"]
    assert run_groups(tool, project, groups) == (3, 2, 1)


def test_a_report_cut_short_is_a_failure(tool: ModuleType, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    assert tool.count(report).failed == 1
    report.write_text('<testsuites><testsuite tests="3" failures="0"')
    assert tool.count(report).failed == 1


def test_ignored_files_do_not_change_the_state_of_the_tree(tool: ModuleType, project: Path) -> None:
    before = tool.tree_state(project)
    (project / "runs.log").write_text("x")
    assert tool.tree_state(project) == before
    (project / "tests" / "test_good.py").chmod(0o755)
    assert tool.tree_state(project) != before
