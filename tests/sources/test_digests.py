"""What a model depends on: a file or a package that is another is found by every verb, and named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loaded import load

from attnport.artifacts import ModelSpec
from attnport.sources import digests

X = "x=float32[batch,4]"
MODULE = """
import os, sys, torch
from pathlib import Path
{imports}
HERE = Path(__file__).parent
class Scaled(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
    def forward(self, x):
        return x * self.scale
def make():
    {scale}
    return Scaled(scale)
"""
LOADERS = {
    "numpy": "import numpy; scale = float(numpy.load(HERE / 'scale.npy'))",
    "numpy_mapped": "import numpy; scale = float(numpy.load(HERE / 'scale.npy', mmap_mode='r'))",
    "torch": "scale = float(torch.load(HERE / 'scale.pt', weights_only=True)['scale'])",
    "torch_mapped": "scale = float(torch.load(HERE / 'scale.pt', weights_only=True, mmap=True)['scale'])",
    "safetensors": (
        "from safetensors.torch import load_file; scale = float(load_file(HERE / 'scale.safetensors')['scale'])"
    ),
    "safe_open": (
        "from safetensors import safe_open\n"
        "    with safe_open(HERE / 'scale.safetensors', 'pt') as file: scale = float(file.get_tensor('scale'))"
    ),
    "json": "import json; scale = json.loads((HERE / 'scale.json').read_text())",
    "os": "handle = os.open(HERE / 'scale.json', os.O_RDONLY); scale = float(os.read(handle, 99)); os.close(handle)",
    "thread": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "    with ThreadPoolExecutor(1) as pool: scale = float(pool.submit((HERE / 'scale.json').read_text).result())"
    ),
    "exec": "space = {}; exec((HERE / 'scale.py').read_text(), space); scale = space['scale']",
}


def write_scale(folder: Path, scale: float) -> None:
    import torch
    from safetensors.torch import save_file

    np.save(folder / "scale.npy", np.float64(scale))
    torch.save({"scale": torch.tensor(scale)}, folder / "scale.pt")
    save_file({"scale": torch.tensor(scale)}, folder / "scale.safetensors")
    (folder / "scale.json").write_text(str(scale))
    (folder / "scale.py").write_text(f"scale = {scale}\n")


def depends(file: Path, name: str = "make") -> dict[str, str]:
    return dict(load(f"{file}:{name}", inputs=[X]).depends)


def write(file: Path, imports: str = "", scale: str = "scale = 2.0") -> Path:
    file.write_text(MODULE.format(imports=imports, scale=scale))
    return file


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose modules can be imported; none of them stays imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "modules", sys.modules)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("how", LOADERS)
def test_a_file_that_the_factory_reads_counts(how: str, place: Path) -> None:
    write_scale(place, 2.0)
    file = write(place / f"reads_{how}.py", scale=LOADERS[how])
    first = depends(file)
    assert depends(file) == first, "the same in a second load"
    write_scale(place, 3.0)
    (told,) = digests.changes(first, depends(file))
    assert told.startswith("scale.")
    assert told.endswith(" is another")


def test_safetensors_is_as_it_was_after_a_load(place: Path) -> None:
    import safetensors
    import safetensors.torch

    before = safetensors.safe_open, safetensors.torch.safe_open
    write_scale(place, 2.0)
    depends(write(place / "keeps.py", "from safetensors import safe_open", LOADERS["safe_open"]))
    assert (safetensors.safe_open, safetensors.torch.safe_open) == before
    assert sys.modules["attnport_source_keeps"].safe_open is before[0]


IMPORTS = {
    "function": ("from helper_a import scaled", "scale = scaled(1.0)"),
    "number": ("from helper_a import SCALE", "scale = SCALE"),
    "late": ("", "import helper_a; scale = helper_a.SCALE"),
    "by_name": ("", "import importlib; scale = importlib.import_module('helper_a').SCALE"),
    "star": ("from helper_a import *", "scale = SCALE"),
    "through_another": ("import helper_b", "scale = helper_b.scale()"),
    "relative": ("from package_c.inner import scale as of_c", "scale = of_c()"),
    "around": ("import package_c.alone", "scale = 2.0"),
}
HELPERS = {
    "helper_a.py": "SCALE = 2.0\ndef scaled(x): return x * SCALE\n",
    "helper_b.py": "def scale():\n    from helper_a import SCALE\n    return SCALE\n",
    "package_c/__init__.py": "SIZE = 2.0\n",
    "package_c/values.py": "from . import SIZE\nVALUE = SIZE\n",
    "package_c/inner.py": "from .values import VALUE\ndef scale(): return VALUE\n",
    "package_c/alone.py": "",
}


def write_helpers(place: Path) -> None:
    for name, text in HELPERS.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text)
        # Python takes a file of the same size and the same second for the one that it has compiled.
        os.utime(place / name, (0, 0))


@pytest.mark.parametrize("how", IMPORTS)
def test_what_is_imported_counts_whether_it_was_imported_before_or_not(how: str, place: Path) -> None:
    write_helpers(place)
    imports, scale = IMPORTS[how]
    file = write(place / f"imports_{how}.py", imports, scale)
    first = depends(file)
    changed = "package_c/__init__.py" if how in ("relative", "around") else "helper_a.py"
    assert changed in first
    assert depends(file) == first
    (place / changed).write_text(HELPERS[changed].replace("2.0", "3.0"))
    told = digests.changes(first, depends(file))
    assert told == [f"{changed} is another"]
    if how != "around":
        assert load(f"{file}:make", inputs=[X]).make().scale == 3.0, "the code in memory is not run under a new digest"


def test_another_process_finds_the_same(place: Path) -> None:
    write_helpers(place)
    write_scale(place, 2.0)
    file = write(place / "same.py", "import helper_b", LOADERS["safetensors"])
    first = depends(file)
    loaded = f"load('{file}:make', inputs=['{X}']).depends"
    code = f"from loaded import load; import json; print(json.dumps(dict({loaded})))"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(place), *sys.path])},
    )  # fmt: skip
    assert json.loads(found.stdout) == first


def test_what_a_module_reads_when_it_is_imported_is_not_forgotten(place: Path) -> None:
    write_scale(place, 2.0)
    (place / "table_d.py").write_text(
        "import json\nfrom pathlib import Path\n"
        "TABLE = json.loads((Path(__file__).parent / 'scale.json').read_text())\n"
    )
    file = write(place / "reads_table.py", "import table_d", "scale = table_d.TABLE")
    first = depends(file)
    assert "scale.json" in first
    assert depends(file) == first
    write_scale(place, 3.0)
    assert digests.changes(first, depends(file)) == ["scale.json is another"]
    assert load(f"{file}:make", inputs=[X]).make().scale == 3.0


def test_a_file_that_comes_or_goes_is_told(place: Path) -> None:
    code = "scale = 2.0\n    try: scale = float((HERE / 'given.txt').read_text())\n    except OSError: pass"
    file = write(place / "maybe.py", scale=code)
    without = depends(file)
    assert without["given.txt"] == ""
    (place / "given.txt").write_text("2.0")
    there = depends(file)
    assert digests.changes(without, there) == ["given.txt is there"]
    assert digests.changes(there, without) == ["given.txt is gone"]


def test_temporary_files_and_those_of_the_system_do_not_count(place: Path) -> None:
    code = (
        "import tempfile, locale\n"
        "    open('/proc/self/status').close(); open('/etc/hostname').close()\n"
        "    with tempfile.NamedTemporaryFile('w+') as file: open(file.name).close()\n"
        "    scale = 2.0"
    )
    assert list(depends(write(place / "temporary.py", scale=code))) == ["temporary.py"]


def test_what_an_installer_writes_beside_code_is_no_part_of_a_model(place: Path) -> None:
    code = "scale = 2.0; names = [path.read_text() for path in HERE.glob('*.egg-info/*')]"
    file = write(place / "metadata.py", scale=code)
    before = depends(file)
    (place / "mine.egg-info").mkdir()
    (place / "mine.egg-info" / "entry_points.txt").write_text("[console_scripts]")
    assert depends(file) == before


def install(place: Path, version: str, code: str, *, files: str = "mylib.py") -> None:
    site = place / "site-packages"
    (site / f"mylib-{version}.dist-info").mkdir(parents=True)
    (site / files).write_text(code)
    (site / f"mylib-{version}.dist-info" / "METADATA").write_text(f"Name: mylib\nVersion: {version}\n")
    (site / f"mylib-{version}.dist-info" / "RECORD").write_text(f"{files},sha256={hash(code)},9\n")


def test_a_module_inside_an_installed_package_is_none_of_the_users_whatever_its_name(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "site-packages" / "mylib").mkdir(parents=True)
    install(place, "1.0", "SCALE = 2.0\n", files="mylib/_shared.py")
    monkeypatch.syspath_prepend(str(place / "site-packages" / "mylib"))
    monkeypatch.setattr(digests, "_owners", lambda: {"mylib": ["mylib"]})
    file = write(place / "uses_shared.py", "import _shared", "scale = _shared.SCALE")
    assert list(depends(file)) == ["uses_shared.py"]


def test_the_version_of_an_installed_package_counts_and_so_does_its_code(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    monkeypatch.syspath_prepend(str(place / "site-packages"))
    file = write(place / "uses_package.py", "import mylib", "scale = mylib.SCALE")

    def installed(version: str, code: str) -> dict[str, str]:
        shutil.rmtree(place / "site-packages", ignore_errors=True)
        install(place, version, code)
        digests._owners.cache_clear()
        return depends(file)

    first = installed("1.0", "SCALE = 2.0\n")
    assert sorted(first) == ["mylib", "uses_package.py"]
    assert digests.changes(first, installed("1.1", "SCALE = 2.0\n")) == ["mylib 1.0 became 1.1"]
    assert digests.changes(first, installed("1.0", "SCALE = 3.0\n")) == ["mylib 1.0 has other code"]
    digests._owners.cache_clear()


def test_a_module_in_memory_depends_on_what_its_classes_import(place: Path) -> None:
    import importlib

    from attnport.folder.given import Given

    write_helpers(place)
    write(place / "in_memory.py", "import helper_b")
    module: Any = importlib.import_module("in_memory")
    spec: ModelSpec = Given(module.make().eval(), inputs=[X]).spec()
    assert sorted(spec.depends) == ["helper_a.py", "helper_b.py", "in_memory.py"]


def test_a_sparse_buffer_counts_as_what_it_holds() -> None:
    def module(*places: int) -> Any:
        made = torch.nn.Linear(2, 2)
        made.register_buffer("heads", torch.tensor([at in places for at in range(4)]).to_sparse())
        torch.nn.init.ones_(made.weight)
        torch.nn.init.zeros_(made.bias)
        return made

    one, same, other = (digests.weights_digest("model", module(*places)) for places in ((0, 2), (2, 0), (1,)))
    assert one == same != other
