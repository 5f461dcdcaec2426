"""Builds the files of a release from the last commit, and tries them in bare environments. Nothing is uploaded.

    python tools/release.py [--out dist] [--full 3.11]...

attnport is installed with everything, PyTorch too, for the Pythons of `--full` (default: this one), and elsewhere
without PyTorch. Its bundle is then read by attnport-bundle on every Python that it is for. A Python that is not on this
machine is said and left out.
"""

from __future__ import annotations

import argparse
import email.parser
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READER_PYTHONS = ("3.10", "3.11", "3.12", "3.13")
PYTHONS = ("3.11", "3.12", "3.13")
MODEL = "bert_encoder"
WITHOUT_TORCH = "--help, doctor, list, inspect and verify"
TEXT_OF_MODULE = "import attnport; print(attnport.__version__)"


class ReleaseError(Exception):
    """What is wrong with the release."""


def run(command: Sequence[str | Path], folder: Path, **more: str) -> str:
    """Runs a command and returns what it prints. Raises ReleaseError with its last lines if it fails."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env={**kept, **more}, text=True, capture_output=True)
    if done.returncode:
        last = "\n".join(f"{done.stdout}{done.stderr}".strip().splitlines()[-15:])
        raise ReleaseError(f"{' '.join(words)} ended with {done.returncode}:\n{last}")
    return done.stdout


def versions(root: Path) -> dict[str, str]:
    """Where the version is written, and what is written there."""
    own = re.search(r'__version__ = "(.*)"', (root / "attnport" / "version.py").read_text("utf-8"))
    whole, reader = (
        tomllib.loads((root / name).read_text("utf-8")) for name in ("pyproject.toml", "attnport_bundle/pyproject.toml")
    )
    asked = next(one for one in whole["project"]["dependencies"] if one.startswith("attnport-bundle"))
    return {
        "attnport/version.py": own[1] if own else "",
        "attnport_bundle/pyproject.toml": reader["project"]["version"],
        "pyproject.toml, dependency": asked.partition("==")[2],
    }


def the_version(root: Path) -> str:
    """The version. Raises ReleaseError if it is not one number everywhere, or has no section in the changes."""
    found = versions(root)
    version = found["attnport/version.py"]
    if set(found.values()) != {version}:
        raise ReleaseError(f"the version is not the same everywhere: {found}")
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ReleaseError(f"{version} is not MAJOR.MINOR.PATCH.")
    if not re.search(rf"^## {re.escape(version)} \(.+\)$", (root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE):
        raise ReleaseError(f"CHANGELOG.md has no section `## {version} (DATE)`.")
    return version


def built(out: Path, scratch: Path) -> tuple[Path, Path]:
    """Writes wheels and source archives of the last commit into `out`; returns the wheels, attnport's first."""
    for earlier in out.glob("attnport*"):
        earlier.unlink()
    tree = scratch / "tree"
    tree.mkdir()
    run(["git", "archive", "--format=tar", f"--output={scratch / 'tree.tar'}", "HEAD"], ROOT)
    run(["tar", "-xf", scratch / "tree.tar", "-C", tree], scratch)
    when = run(["git", "log", "-1", "--format=%ct"], ROOT).strip()  # so that the same commit gives the same bytes
    for folder in (tree / "attnport_bundle", tree):
        build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, folder]
        run(build, scratch, SOURCE_DATE_EPOCH=when)
    (reader,), (whole,) = (list(out.glob(f"{name}-*.whl")) for name in ("attnport_bundle", "attnport"))
    for wheel, packaged in ((whole, tree / "attnport"), (reader, tree / "attnport_bundle")):
        if lacking := lacks(wheel, packaged):
            raise ReleaseError(f"{wheel.name} lacks {', '.join(lacking[:5])} and so {len(lacking)} files.")
    run([sys.executable, "-m", "twine", "check", "--strict", *sorted(out.iterdir())], scratch)
    run([Path(sys.executable).with_name("check-wheel-contents"), whole, reader], scratch)
    return whole, reader


def lacks(wheel: Path, package: Path) -> list[str]:
    """The files of a package's folder that are not in its wheel; links are followed, hidden files are no part."""
    inside = set(zipfile.ZipFile(wheel).namelist())
    here = [
        Path(place) / name for place, _, names in os.walk(package, followlinks=True) for name in names if name[0] != "."
    ]
    names = (path.relative_to(package.parent).as_posix() for path in here)
    made = ("/pyproject.toml", ".egg-info/", "/build/", "/cpp/README.md")
    return sorted(name for name in names if name not in inside and not any(part in name for part in made))


def needs(wheel: Path) -> list[str]:
    """What a wheel requires without an extra."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.parser.Parser().parsestr(archive.read(name).decode())
    return [one for one in metadata.get_all("Requires-Dist", []) if "extra ==" not in one]


def find_python(version: str) -> str | None:
    """A Python of that version: this one, one on the path, or one of pyenv."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    names = [*map(str, kept), f"python{version}"]
    for name in filter(None, map(shutil.which, names)):
        asked = [name, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        if subprocess.run(asked, capture_output=True, text=True).stdout.strip() == version:
            return name
    return None


class Bare:
    """A new environment of one Python, with nothing in it."""

    def __init__(self, python: str, folder: Path) -> None:
        self._folder = folder
        if python == sys.executable:
            venv.create(folder, with_pip=True)
        else:
            run([python, "-m", "venv", folder], folder.parent)

    def install(self, *wanted: str | Path) -> None:
        """Installs packages."""
        pip = ("python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
        self.run(*pip, *wanted)

    def run(self, program: str, *words: str | Path, at: Path | None = None) -> str:
        """Runs one of its programs in a folder."""
        return run([self._folder / "bin" / program, *words], at or self._folder, HF_HUB_OFFLINE="1")


def try_whole(bare: Bare, wheels: tuple[Path, Path], at: Path) -> Path:
    """Installs attnport with PyTorch and ONNX Runtime, and takes a model all the way; returns the bundle."""
    whole, reader = wheels
    bare.install("--constraint", ROOT / "constraints.txt", reader, f"{whole}[cpu]")
    for words in (
        f"export {MODEL} -o out",
        "fuse out --target ort_cpu --target onnx_18",
        "check out",
        # The newest onnxruntime for Python 3.10 runs the second form alone.
        "bundle out -o app --form ort_cpu --form onnx_18 --lang python --lang cpp",
        "verify app",
        "doctor",
    ):
        bare.run("attnport", *words.split(), at=at)
    return at / "app"


def try_without_torch(bare: Bare, wheels: tuple[Path, Path], app: Path) -> None:
    """Installs attnport without PyTorch, and runs what goes without it."""
    whole, reader = wheels
    others = [one for one in needs(whole) if not one.startswith(("torch", "attnport"))]
    bare.install(*others, "onnxruntime")
    bare.install("--no-deps", reader, whole)
    bare.run("python", "-c", TEXT_OF_MODULE)
    for words in (["--help"], ["doctor"], ["list", "targets"], ["inspect", app], ["verify", app]):
        bare.run("attnport", *words)


def try_reader(bare: Bare, reader: Path, app: Path) -> None:
    """Installs the reader with ONNX Runtime, and has it test and run a bundle."""
    bare.install(f"{reader}[onnxruntime]")
    bare.run("python", "-m", "attnport_bundle", "selftest", app)
    program = "import sys, attnport_bundle as a\nwith a.load(sys.argv[1]) as m: print(m.form, a.__file__)"
    said = bare.run("python", "-c", program, app)
    if "site-packages" not in said:
        raise ReleaseError(f"the reader that ran is not the installed one: {said}")


def head(version: str) -> list[str]:
    """What the files are of, and what to see to before they are published."""
    commit = run(["git", "log", "-1", "--format=%h"], ROOT).strip()
    told = [f"attnport and attnport-bundle {version}, of commit {commit}"]
    if run(["git", "status", "--porcelain"], ROOT).strip():
        told.append("note: the working tree has changes, which are not in these files.")
    if f"## {version} (unreleased)" in (ROOT / "CHANGELOG.md").read_text("utf-8"):
        told.append("note: CHANGELOG.md says that it is unreleased; write the date there before it is tagged.")
    return told


def tried(wheels: tuple[Path, Path], full: Sequence[str], scratch: Path) -> Iterator[str]:
    """Tries the wheels on every Python that is here; yields a line on each."""
    app: Path | None = None
    for python in sorted(PYTHONS, key=lambda one: one not in full):
        if (where := find_python(python)) is None:
            yield f"attnport on Python {python}: not tried, it is not on this machine."
            continue
        bare = Bare(where, scratch / f"attnport-{python}")
        if python in full:
            (at := scratch / f"work-{python}").mkdir()
            app = try_whole(bare, wheels, at)
            yield f"attnport on Python {python}: exports, fuses, checks, bundles and verifies a model."
        elif app is not None:
            try_without_torch(bare, wheels, app)
            yield f"attnport on Python {python}: without PyTorch {WITHOUT_TORCH}; the rest was not tried."
    if app is None:
        raise ReleaseError(f"no Python of --full ({', '.join(full)}) is here, so there is no bundle to read.")
    for python in READER_PYTHONS:
        if (where := find_python(python)) is None:
            yield f"attnport-bundle on Python {python}: not tried, it is not on this machine."
            continue
        try_reader(Bare(where, scratch / f"reader-{python}"), wheels[1], app)
        yield f"attnport-bundle on Python {python}: opens a bundle, and its selftest passes."


def main(out: Path, full: Sequence[str]) -> None:
    """Builds, tries, and prints what was tried and what was not."""
    version = the_version(ROOT)
    with tempfile.TemporaryDirectory(prefix="attnport-release-") as folder:
        wheels = built(out, Path(folder))
        for line in itertools.chain(head(version), tried(wheels, full, Path(folder))):
            print(line, flush=True)
    print(*sorted(out.iterdir()), sep="\n")


if __name__ == "__main__":
    this = f"{sys.version_info.major}.{sys.version_info.minor}"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the files go, in place of earlier ones")
    parser.add_argument(
        "--full", action="append", choices=PYTHONS, help="a Python to try with PyTorch; may be repeated"
    )
    arguments = parser.parse_args()
    try:
        main(arguments.out.resolve(), arguments.full or [this])
    except ReleaseError as err:
        sys.exit(f"error: {err}")
