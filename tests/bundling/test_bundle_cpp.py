"""`attnport bundle --lang cpp`: what it puts beside the Python reader, and the page that it writes for the model."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from bundle_folders import tree

from attnport.bundling.readme_cpp import program_cpp, readme_cpp
from attnport.bundling.write import CPP
from attnport.verbs.bundle import bundle
from attnport_bundle.format import files
from attnport_bundle.format.contract import IO, Dim, MaskSpec, Profile, TensorSpec
from attnport_bundle.format.manifest import Form, Parity, Requires, read

ROOT = Path(__file__).resolve().parents[2]
READER = ROOT / "attnport" / "bundling" / "cpp"


def test_the_cpp_reader_is_added_and_nothing_else_changes(
    made_artifact: Path, made_bundle: Path, tmp_path: Path
) -> None:
    app = bundle(made_artifact, tmp_path / "app", lang=["cpp"])
    assert files.check(app, read(app)) == []
    found, plain = tree(app), tree(made_bundle)
    added = {name for name in found if name.startswith("cpp/")}
    assert found.keys() - added == plain.keys()
    changed = {name for name in plain if found[name] != plain[name]}
    assert changed == {"README.md", "bundle.json"}
    assert b"cpp/README.md" in found["README.md"]
    source = {path.relative_to(READER).as_posix() for path in READER.rglob("*") if path.is_file()}
    hidden = {".clang-tidy", ".clang-format"}
    assert added == {f"cpp/{name}" for name in (source - hidden) | {"README.md"}}
    assert tree(bundle(made_artifact, tmp_path / "again", lang=["python", "cpp"])) == found


def test_every_source_is_compiled_and_packaged() -> None:
    listed = re.findall(r"\bsrc/([\w/]+\.cpp)", (READER / "CMakeLists.txt").read_text())
    assert sorted(listed) == sorted(
        path.relative_to(READER / "src").as_posix() for path in READER.rglob("src/**/*.cpp")
    )
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["attnport"]
    packaged = {path for pattern in told for path in (ROOT / "attnport").glob(pattern)}
    assert {path for pattern in CPP for path in READER.glob(pattern)} <= packaged


def contract(*inputs: TensorSpec, masks: tuple[MaskSpec, ...] = ()) -> IO:
    return IO(inputs, (TensorSpec("y", "float32", ("b",), None),), (Dim("b", 1, 2, 4), Dim("t", 1, 3, 6)), masks)


def test_the_program_has_a_variable_for_each_input_whatever_its_name_is() -> None:
    names = ("x", "class", "a.b", 'q"\\', "_x", "a__b", "model")
    code = program_cpp(contract(*(TensorSpec(name, "int32", ("b", "t"), None) for name in names)))
    variables = re.findall(r"std::vector<std::int32_t> (\w+)\(2 \* 3, 1\);", code)
    assert variables == ["x_values", "class_values", "input_2", "input_3", "input_4", "input_5", "model_values"]
    assert r'inputs.emplace_back("q\"\\", input_3, attnport::Shape{2, 3});' in code


@pytest.mark.parametrize(
    ("dtype", "made"),
    [
        ("float16", "std::vector<attnport::Float16> x_values(2 * 3, attnport::Float16{0x3C00});"),
        ("bool", 'inputs.emplace_back("x", x_values.data(), attnport::DType::Bool, attnport::Shape{2, 3});'),
        ("float64", "std::vector<double> x_values(2 * 3, 1);"),
    ],
)
def test_the_program_makes_the_inputs_dtype(dtype: str, made: str) -> None:
    assert made in program_cpp(contract(TensorSpec("x", dtype, ("b", "t"), None)))


def test_what_hides_is_zero_and_what_says_padding_is_made_by_the_reader() -> None:
    hides = MaskSpec(("explicit",), "x", "hide", "upper_left", 0, "mask", None)
    code = program_cpp(contract(TensorSpec("x", "bool", ("b", "t"), None), masks=(hides,)))
    assert "x_values(2 * 3, 0);" in code
    padding = MaskSpec(("padding",), "m", "keep", "upper_left", 0, "mask", None)
    code = program_cpp(contract(TensorSpec("m", "bool", ("b", "t"), None), masks=(padding,)))
    assert "model.masks({3, 3});" in code
    assert "m_values" not in code


@pytest.mark.parametrize(
    ("runtime", "told", "untold"),
    [
        ("onnxruntime", "-DONNXRUNTIME_INCLUDE_DIR=...", "OpenVINO_DIR=..."),
        ("openvino", "-DOpenVINO_DIR=...", "ONNXRUNTIME_INCLUDE_DIR=..."),
        ("tensorrt_rtx", "-DTENSORRT_INCLUDE_DIR=... -DCUDA_INCLUDE_DIR=...", "ONNXRUNTIME_INCLUDE_DIR=..."),
    ],
)
def test_the_page_names_what_the_bundles_own_forms_need(runtime: str, told: str, untold: str, tmp_path: Path) -> None:
    parity = Parity("PASS", "NOT_RUN", "PASS", "", (), None)
    engine = runtime == "tensorrt_rtx"
    form = Form(
        file="f.onnx",
        external=(),
        plan="fp32",
        runtime=runtime,  # any of the format's runtimes, as text
        provider="CPUExecutionProvider" if runtime == "onnxruntime" else None,
        dtypes={},
        profiles=(Profile((Dim("b", 1, 2, 4),)),) if engine else (),
        requires=Requires("1.2.3", engine, None if engine else 23, ()),
        proof="graph-only",
        parity=parity,
        fusion=None,
    )
    page = readme_cpp("m", contract(TensorSpec("x", "int32", ("b",), None)), None, tmp_path, {"one": form})
    assert told in page
    assert untold not in page
    assert "1.2.3" in page
