"""The cpp/README.md of a bundle: how to build the C++ reader and use it, with a program made for the bundle's model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from attnport.artifacts import NO_PROMPTS, Prompts
from attnport.bundling.readme import (
    contract,
    cut_at,
    expected,
    filled_with_zeros,
    indent,
    is_embedder,
    made_by_masks,
    reads_by_itself,
    usual_shape,
)
from attnport_bundle.batches import scoring
from attnport_bundle.format.contract import IO, TensorSpec
from attnport_bundle.format.manifest import Form
from attnport_bundle.text import reads_text

_TYPES = {
    "float32": "float",
    "float16": "attnport::Float16",
    "float64": "double",
    "int32": "std::int32_t",
    "int64": "std::int64_t",
    "bool": "std::uint8_t",  # std::vector<bool> has no array of bool
}
_ONES = {"float16": "attnport::Float16{0x3C00}"}
_ZEROS = {"float16": "attnport::Float16{0}"}
RUNTIMES = {
    "onnxruntime": "ONNX Runtime {} or later",
    "openvino": "OpenVINO {} or later",
    "tensorrt": "TensorRT {}, that release",
    "tensorrt_rtx": "TensorRT-RTX {}, that release",
}


def readme_cpp(
    name: str,
    io: IO,
    tokenizer: str | None,
    folder: Path,
    forms: Mapping[str, Form],
    prompts: Prompts = NO_PROMPTS,
    text_limit: int | None = None,
) -> str:
    """The page.

    Args:
        name: The model's name.
        io: The contract; the program is made for it.
        tokenizer: The bundle's tokenizer file, for models that read text.
        folder: The folder with that file, to test whether the reader can read it.
        forms: The forms of the bundle, the preferred one first.
        prompts: What the model expects before a text.
        text_limit: The most tokens of a text for an embedder, if that is fewer than it takes.
    """
    parts = [
        f"# {name} in C++",
        "A C++17 library that reads the bundle this folder stands in, with the answers of the Python reader beside it "
        "and without Python. Linux, and macOS untried; g++ 12 and clang 14 or later.",
        _forms(forms),
        *_build(forms),
        "## Use it",
        "Here the bundle is `app/`, beside the program. Keep your own files, and the build, out of it: an added file "
        "is refused like a changed one.",
        *_from_text(io, tokenizer, folder, prompts, text_limit),
        indent(program_cpp(io)),
        *_link(),
        "## What goes in and out",
        *contract(io),
        *_rules(),
        *_trust(),
    ]
    return "\n\n".join(parts) + "\n"


def program_cpp(io: IO) -> str:
    """A program that opens the bundle in `app/` and runs it once on inputs of the usual sizes."""
    masked, lengths = made_by_masks(io)
    zeros = filled_with_zeros(io)
    lines = ['    const attnport::Model model("app");']
    if masked:
        lines.append(f"    const auto masks = model.masks({{{_listed(lengths)}}});  // the length of each item")
        lines.append("    attnport::Inputs inputs(masks.begin(), masks.end());")
    else:
        lines.append("    attnport::Inputs inputs;")
    for number, spec in enumerate(io.inputs):
        if spec.name not in masked:
            lines += _input(spec, usual_shape(spec, io), number, zero=spec.name in zeros)
    return _whole(lines)


def _input(spec: TensorSpec, shape: tuple[int, ...], number: int, *, zero: bool) -> list[str]:
    plain = re.fullmatch(r"[A-Za-z](_?[A-Za-z0-9])*", spec.name)
    variable = f"{spec.name}_values" if plain else f"input_{number}"  # neither can be a keyword of C++
    count = " * ".join(map(str, shape)) or "1"
    value = _ZEROS.get(spec.dtype, "0") if zero else _ONES.get(spec.dtype, "1")
    data = f"{variable}.data(), attnport::DType::Bool" if spec.dtype == "bool" else variable
    return [
        f"    const std::vector<{_TYPES[spec.dtype]}> {variable}({count}, {value});",
        f"    inputs.emplace_back({_literal(spec.name)}, {data}, attnport::Shape{{{_listed(shape)}}});",
    ]


def _whole(lines: list[str]) -> str:
    outputs = [
        "    for (const attnport::Tensor& output : model.run(inputs)) {",
        '        std::cout << output.name() << ": " << output.size() << " elements\\n";',
        "    }",
    ]
    return _program([*lines, *outputs])


def _program(lines: list[str]) -> str:
    return "\n".join(
        [
            "#include <attnport/bundle.hpp>",
            "",
            "#include <cstdint>",
            "#include <iostream>",
            "#include <vector>",
            "",
            "int main() try {",
            *lines,
            "} catch (const attnport::Error& error) {",
            "    std::cerr << error.what() << '\\n';",
            "    return error.exit_code();",
            "}",
        ]
    )


def _literal(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _listed(numbers: list[int] | tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def _forms(forms: Mapping[str, Form]) -> str:
    lines = ["Its forms, the preferred one first; the first that can be opened here is:"]
    for name, form in forms.items():
        provider = f", {form.provider}" if form.provider else ""
        lines.append(f"- `{name}`: {RUNTIMES[form.runtime].format(form.requires.runtime)}{provider}, {form.plan}")
    return "\n".join(lines)


def _build(forms: Mapping[str, Form]) -> list[str]:
    runtimes = {form.runtime for form in forms.values()}
    variables = ["onnxruntime" in runtimes and "ONNXRUNTIME_INCLUDE_DIR", "openvino" in runtimes and "OpenVINO_DIR"]
    if runtimes & {"tensorrt", "tensorrt_rtx"}:
        variables += ["TENSORRT_INCLUDE_DIR", "CUDA_INCLUDE_DIR"]
    settings = "".join(f" -D{name}=..." for name in variables if name)
    parts = [
        "## Build it",
        "    apt-get install g++ cmake nlohmann-json3-dev libssl-dev\n"
        f"    cmake -S app/cpp -B build -DCMAKE_BUILD_TYPE=Release{settings}\n"
        "    cmake --build build -j\n"
        "    build/attnport-selftest app",
        "nlohmann/json 3.7 and OpenSSL 1.1.1, or later ones, are needed. Of what follows CMake says what it found, and "
        "one runtime has to be there; a form of a runtime that was left out is passed over, and the message says so.",
    ]
    lines = []
    if "onnxruntime" in runtimes:
        lines.append(
            "- ONNX Runtime: its headers alone, of any release from 1.21: Debian 13's `libonnxruntime-dev`, with which "
            "`ONNXRUNTIME_INCLUDE_DIR` is left out (Debian 12 has none), or the `include` folder of a release. The "
            "library is loaded when a model is opened: `Options::onnxruntime`, else `$ATTNPORT_ONNXRUNTIME`, else "
            "`libonnxruntime.so.1`. So one build runs on many releases; that of the Python package is "
            "`onnxruntime/capi/libonnxruntime.so.*`. Debian's library is too old to open a form of a later release."
        )
    if "openvino" in runtimes:
        lines.append(
            '- OpenVINO: its CMake files, in `OpenVINO_DIR`; of the Python package, `python -c "import openvino.utils '
            'as u; print(u.get_cmake_path())"`. It is linked, and a build runs on that release only.'
        )
    if runtimes & {"tensorrt", "tensorrt_rtx"}:
        lines.append(
            "- TensorRT and TensorRT-RTX: the folders of `NvInferRuntime.h` and `cuda_runtime_api.h`, in "
            "`TENSORRT_INCLUDE_DIR` and `CUDA_INCLUDE_DIR`. The libraries are loaded when a model is opened."
        )
    parts += [
        "\n".join(lines),
        "Options of ours: `ATTNPORT_SHARED` (a shared library, which the C interface `attnport/attnport.h` is for), "
        "`ATTNPORT_PROGRAMS`, `ATTNPORT_INSTALL`, `ATTNPORT_WERROR`, and `ATTNPORT_SANITIZE=address,undefined` or "
        "`thread`. `-DCMAKE_DISABLE_FIND_PACKAGE_OpenVINO=ON` and `-DONNXRUNTIME_INCLUDE_DIR=OFF` "
        "leave out what is there.",
        "`attnport-selftest` compares every file with its digest, then runs known inputs and compares the outputs: "
        "exit 0 = fine, 2 = no bundle, 3 = no fitting runtime, 4 = the numbers are off, 6 = a file differs.",
    ]
    return parts


def _from_text(io: IO, tokenizer: str | None, folder: Path, prompts: Prompts, limit: int | None) -> list[str]:
    if not tokenizer or not reads_text(io):
        return []
    if not reads_by_itself(folder / tokenizer):
        return [
            "Its tokenizer is of a kind that this library does not read. Give `attnport::Options::tokenize` a function "
            "from a text to ids of another library, with the special tokens around it and cut to the length that it "
            "gets; `Model::embed`, and `attnport::Tokenizer` with that function, make padding and masks of them.",
            *_prompts(io, prompts),
        ]
    scores = next((spec for spec in io.outputs if spec.name == scoring(io)), None)
    if is_embedder(io):
        program = _program(
            [
                '    const attnport::Model model("app");',
                '    const attnport::Tensor vectors = model.embed({"A sentence.", "Another one, longer."});',
                '    std::cout << vectors.shape()[0] << " vectors of " << vectors.shape()[1] << " numbers\\n";',
            ]
        )
    elif scores and scores.dims[1:] in ((), (1,)):
        program = _program(
            [
                '    const attnport::Model model("app");',
                '    for (const auto& one : model.rank("A query", {"A document.", "Another one, longer."})) {',
                '        std::cout << "document " << one.index << " " << one.score << "\\n";',
                "    }",
            ]
        )
    elif scores:
        program = _program(
            [
                '    const attnport::Model model("app");',
                '    const attnport::Tensor scores = model.predict({"A text.", "Another one, longer."});',
                '    std::cout << scores.shape()[0] << " texts, " << scores.shape()[1] << " classes\\n";',
            ]
        )
    else:
        chars = Path(tokenizer).with_suffix(".chars").as_posix()
        program = _whole(
            [
                '    const attnport::Model model("app");',
                f'    const attnport::Tokenizer tokenizer("app/{tokenizer}", "app/{chars}", model.io());',
                '    const auto fed = tokenizer.encode({"A sentence.", "Another one, longer."});',
                "    const attnport::Inputs inputs(fed.begin(), fed.end());",
            ]
        )
    return [f"From text. {cut_at(io, limit)}", indent(program), *_prompts(io, prompts), "From arrays:"]


def _prompts(io: IO, prompts: Prompts) -> list[str]:
    return expected(prompts, 'MapOptions::prompt = "{}"') if is_embedder(io) else []


def _link() -> list[str]:
    return [
        "In a CMake project that holds the bundle:",
        "    add_subdirectory(app/cpp)\n    target_link_libraries(program PRIVATE attnport::bundle)",
        "or, behind `cmake --install build --prefix ...`:",
        "    find_package(attnport_bundle 1 REQUIRED)\n    target_link_libraries(program PRIVATE attnport::bundle)",
    ]


def _rules() -> list[str]:
    return [
        "A wrong name, dtype, rank, size or value throws `attnport::FeedError`, which says which tensor, what was got "
        "and what is expected. Everything that is thrown is an `attnport::Error`, whose `exit_code()` is that of the "
        "selftest. Inputs are read where they are; outputs own their memory. Rows of padded positions are unspecified "
        "but finite. `run` may be called from several threads at once; a model is closed by its destructor, which no "
        "call may outlive.",
    ]


def _trust() -> list[str]:
    return [
        "## Trust",
        "`Model` compares every file with `bundle.json` before it opens one, and refuses a file that differs, is "
        "missing or was added, links, and a manifest that breaks its format. This catches accidents. Somebody who can "
        "write to the folder can write a manifest that fits, and this reader's source too: take the reader from "
        "elsewhere, and set `Options::require_signature` to a public key from elsewhere; nothing that is not "
        "signed with it opens.",
    ]
