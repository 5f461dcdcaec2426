"""Prepares what the tests of the C++ reader need on a Debian machine: compilers, libraries, ONNX Runtime's headers.

What is there already is left as it is. Packages are installed with apt-get by root; for anybody else, the libraries'
headers are unpacked under `.cache/cpp`, CMake and Ninja come from pip, and a missing compiler is an error that names
its package. ONNX Runtime's wheel has no headers and this release of Debian may have none either, so those of two later
ones are unpacked: an old and a new state of the interface. They come from where the machine's own packages come from.

    python tools/cpp_setup.py [--all]       --all: clang and clang-tidy too, which only `make cpp-test` needs
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".cache" / "cpp"
UNPACKED = WORK / "packages"
"""What a machine where we are not root gets instead of installed packages."""
SUITES = ("trixie", "sid")
"""Releases of Debian: ONNX Runtime's headers with an old interface (21), and with plug-in providers (23)."""
PROGRAMS = {"g++": "g++", "cmake": "cmake", "ninja": "ninja-build"}
MORE_PROGRAMS = {"clang++": "clang", "clang-tidy": "clang-tidy"}
SANITIZERS = "libclang-rt-dev"
"""What clang's sanitizers and fuzzer are linked with."""
HEADERS = {"nlohmann/json.hpp": "nlohmann-json3-dev", "openssl/evp.h": "libssl-dev"}
FROM_PIP = {"cmake": "cmake", "ninja-build": "ninja"}


class SetupError(Exception):
    """What is missing and cannot be had here."""


def onnxruntime_headers(suite: str) -> Path:
    """The folder of ONNX Runtime's headers as that release of Debian has them."""
    return WORK / "onnxruntime" / suite


def missing(everything: bool) -> list[str]:
    """The packages of what is not there."""
    scripts = sysconfig.get_path("scripts")
    path = os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)])
    programs = PROGRAMS | (MORE_PROGRAMS if everything else {})
    found = [package for program, package in programs.items() if shutil.which(program, path=path) is None]
    if everything and not any(Path("/usr/lib").glob("llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a")):
        found.append(SANITIZERS)
    places = (Path("/usr/include"), Path("/usr/local/include"), UNPACKED / "usr" / "include")
    found += [package for header, package in HEADERS.items() if not any((one / header).exists() for one in places)]
    return found


def install(packages: Sequence[str]) -> None:
    """Installs packages: by root into the system, by others where they can be used from."""
    if shutil.which("apt-get") is None:
        raise SetupError(f"this is no Debian; install by hand what {', '.join(packages)} are here")
    if os.geteuid() == 0:
        run("apt-get", "update")
        run("apt-get", "install", "--yes", "--no-install-recommends", *packages)
        return
    pip = [FROM_PIP[one] for one in packages if one in FROM_PIP]
    unpack = [one for one in packages if one in HEADERS.values() and one != "libssl-dev"]  # that one is optional
    if pip:
        run(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *pip)
    if unpack:
        with tempfile.TemporaryDirectory() as scratch:
            run("apt-get", "download", *unpack, cwd=Path(scratch))
            for package in sorted(Path(scratch).glob("*.deb")):
                run("dpkg-deb", "-x", str(package), str(UNPACKED))
    rest = [one for one in packages if one not in (*FROM_PIP, *unpack, "libssl-dev")]
    if rest:
        raise SetupError(f"only root can install compilers: apt-get install {' '.join(rest)}")


def fetch_onnxruntime(suite: str) -> None:
    """Unpacks ONNX Runtime's headers of a release of Debian, with lists of packages of its own."""
    target = onnxruntime_headers(suite)
    WORK.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        scratch = Path(folder)
        for name in ("sources", "lists/partial", "cache/archives/partial", "unpacked"):
            (scratch / name).mkdir(parents=True)
        for number, (text, suffix) in enumerate(sources_of(suite, codename(), Path("/etc/apt"))):
            (scratch / "sources" / f"{number}{suffix}").write_text(text)
        if not any((scratch / "sources").iterdir()):
            raise SetupError(f"no sources of packages for {codename()} under /etc/apt, so none for {suite}")
        apt = ["apt-get", "-o", "Dir::Etc::sourcelist=/dev/null", "-o", f"Dir::Etc::sourceparts={scratch / 'sources'}",
               "-o", f"Dir::State::lists={scratch / 'lists'}", "-o", f"Dir::Cache={scratch / 'cache'}",
               "-o", "APT::Sandbox::User=root"]  # fmt: skip
        run(*apt, "update")
        run(*apt, "download", "libonnxruntime-dev", cwd=scratch)
        for package in scratch.glob("*.deb"):
            run("dpkg-deb", "-x", str(package), str(scratch / "unpacked"))
        headers = scratch / "unpacked" / "usr" / "include" / "onnxruntime"
        if not (headers / "onnxruntime_c_api.h").is_file():
            raise SetupError(f"libonnxruntime-dev of {suite} has no onnxruntime_c_api.h")
        target.parent.mkdir(exist_ok=True)
        headers.replace(target)


def codename() -> str:
    """The release of this machine, such as `bookworm`."""
    try:
        text = Path("/etc/os-release").read_text()
    except OSError as err:
        raise SetupError(f"what system this is cannot be told: {err}") from err
    found = re.search(r'^VERSION_CODENAME="?([a-z]+)"?$', text, re.MULTILINE)
    return found[1] if found else "sid"


def sources_of(suite: str, own: str, folder: Path) -> Iterator[tuple[str, str]]:
    """The machine's own sources of packages with another release in them, in both formats; each with its suffix."""
    for path in sorted((folder / "sources.list.d").glob("*.sources")):
        for stanza in re.split(r"\n\s*\n", path.read_text()):
            suites = re.search(r"^Suites:(.*)$", stanza, re.MULTILINE)
            if suites and own in suites[1].split():
                yield re.sub(r"^Suites:.*$", f"Suites: {suite}", stanza, flags=re.MULTILINE) + "\n", ".sources"
    lists = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*.list"))]
    line = re.compile(rf"^(deb\s+(?:\[[^\]]*\]\s+)?\S+\s+){re.escape(own)}(\s.*)$", re.MULTILINE)
    for path in lists:
        for match in line.finditer(path.read_text()) if path.is_file() else ():
            yield f"{match[1]}{suite}{match[2]}\n", ".list"


def api_version(headers: Path) -> str:
    """The version of the interface that headers of ONNX Runtime are of."""
    found = re.search(r"#define ORT_API_VERSION (\d+)", (headers / "onnxruntime_c_api.h").read_text("utf-8"))
    return found[1] if found else "unknown"


def run(*command: str, cwd: Path | None = None) -> None:
    """Runs a command, shown before; its words are an error's."""
    print(f"  {' '.join(command)}", flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise SetupError(f"{command[0]} said: {said}")


def main() -> int:
    """The command line: exit 3 where something cannot be had."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="clang and clang-tidy too")
    options = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    with (WORK / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            packages = missing(options.all)
            if packages:
                print(f"C++ set-up: installing {', '.join(packages)}")
                install(packages)
            for suite in SUITES:
                headers = onnxruntime_headers(suite)
                if not (headers / "onnxruntime_c_api.h").is_file():
                    print(f"C++ set-up: unpacking ONNX Runtime's headers of Debian {suite}")
                    fetch_onnxruntime(suite)
                print(f"C++ set-up: ONNX Runtime's headers, interface {api_version(headers)}: {headers}")
        except SetupError as err:
            print(f"C++ set-up: {err}", file=sys.stderr)
            return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
