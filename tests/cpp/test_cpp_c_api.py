"""The C interface, called from Python's ctypes: the answers of the Python reader, and an answer to every wrong use."""

from __future__ import annotations

import ctypes
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import c_binding as c
import numpy as np
import pytest
from cpp_builds import READER, Build, onnxruntime_library, tool

from attnport_bundle import load

FEEDS = {
    "ids": np.array([[3, 9, 49, 0, 7], [1, 2, 3, 0, 0]]),
    "attention_mask": np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
}


@pytest.fixture
def library(cpp_shared: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> c.Library:
    monkeypatch.setenv("ATTNPORT_ONNXRUNTIME", str(onnxruntime_library()))
    monkeypatch.setenv("ATTNPORT_CACHE", str(tmp_path / "cache"))
    return c.Library(cpp_shared.library)


@pytest.fixture
def model(library: c.Library, made_bundle: Path) -> Iterator[c.Model]:
    with library.open(made_bundle) as opened:
        yield opened


def failure(library: c.Library, status: int) -> tuple[int, str]:
    return status, library.last_error()


def test_outputs_are_those_of_the_python_reader_bit_for_bit(model: c.Model, made_bundle: Path) -> None:
    with load(made_bundle) as reader:
        assert (model.form, model.provider) == (reader.form, reader.provider)
        for length in (5, 16, 1):
            feeds = {name: np.ascontiguousarray(np.resize(array, (2, length))) for name, array in FEEDS.items()}
            got, wanted = model.run(feeds), reader.run(**feeds)
            assert list(got) == list(wanted)
            for name, array in wanted.items():
                assert got[name].dtype == array.dtype
                assert got[name].shape == array.shape
                assert got[name].tobytes() == array.tobytes()
            on_device = model.run(feeds, "attnport_run_device")
            assert {name: array.tobytes() for name, array in on_device.items()} == {
                name: array.tobytes() for name, array in got.items()
            }


def test_masks_are_those_of_the_python_reader(model: c.Model, made_bundle: Path) -> None:
    with load(made_bundle) as reader:
        for lengths, size in (([5, 3], 0), ([1], 9), ([0, 2], 0)):
            got, wanted = model.masks(lengths, size), reader.masks(lengths, size or None)
            assert list(got) == list(wanted)
            assert all(
                np.array_equal(got[name], wanted[name]) and got[name].dtype == wanted[name].dtype for name in got
            )


def test_outputs_stay_when_the_model_is_closed(library: c.Library, made_bundle: Path) -> None:
    model = library.open(made_bundle)
    outputs, one = ctypes.c_void_p(), c.Tensor()
    assert library.call.attnport_run(model.handle, c.tensors(FEEDS), 2, ctypes.byref(outputs)) == c.OK
    model.close()
    assert library.call.attnport_outputs_get(outputs, 0, ctypes.byref(one)) == c.OK
    assert (one.name, one.rank, one.shape[:3]) == (b"hidden", 3, [2, 5, 8])
    assert len(ctypes.string_at(one.data, 2 * 5 * 8 * 4)) == 320
    library.call.attnport_outputs_free(outputs)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"ids": FEEDS["ids"]}, "attention_mask"),
        ({**FEEDS, "more": FEEDS["ids"]}, "more"),
        ({**FEEDS, "ids": FEEDS["ids"].astype(np.int32)}, "int32"),
        ({**FEEDS, "ids": FEEDS["ids"] + 1}, "0 to 49"),
        ({**FEEDS, "ids": FEEDS["ids"][0]}, "[5]"),
    ],
)
def test_inputs_that_do_not_fit_are_bad_use(model: c.Model, wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(c.Failed) as caught:
        model.run({name: np.ascontiguousarray(array) for name, array in wrong.items()})
    assert caught.value.status == c.BAD_USE
    assert says in str(caught.value)


def test_every_exit_code_is_a_status(library: c.Library, app: Path, tmp_path: Path) -> None:
    def status(folder: Path, **values: Any) -> tuple[int, str]:
        with pytest.raises(c.Failed) as caught:
            library.open(folder, **values)
        return caught.value.status, str(caught.value)

    assert status(tmp_path / "nowhere")[0] == c.BAD_USE
    assert status(app, form=b"other") == (c.BAD_USE, "form 'other': the bundle has ort_cpu.")
    assert status(app, onnxruntime=tmp_path / "none.so")[0] == c.RUNTIME_MISSING
    (app / "added").write_text("")
    code, words = status(app)
    assert (code, words.split(": ")[1]) == (c.INTEGRITY, "added")
    library.open(app, trust_files=1).close()


def test_what_the_library_did_not_expect_is_a_bug(library: c.Library, app: Path, cpp_shared: Build) -> None:
    with pytest.raises(c.Failed) as caught:
        library.open(app, onnxruntime=cpp_shared.module("nameless_onnxruntime"))
    assert caught.value.status == c.BUG
    assert str(caught.value).startswith("not expected, please report it: ")


def test_a_pointer_that_is_null_is_bad_use_and_no_crash(library: c.Library, model: c.Model, made_bundle: Path) -> None:
    call, out = library.call, ctypes.c_void_p(1)
    folder, handle, feeds = str(made_bundle).encode(), model.handle, c.tensors(FEEDS)
    lengths = (ctypes.c_int64 * 1)(3)
    for made, status in {
        "folder: got NULL.": lambda: call.attnport_open(None, None, ctypes.byref(out)),
        "where to put the model: got NULL.": lambda: call.attnport_open(folder, None, None),
        "model: got NULL.": lambda: call.attnport_run(None, feeds, 2, ctypes.byref(out)),
        "inputs: got NULL.": lambda: call.attnport_run(handle, None, 2, ctypes.byref(out)),
        "where to put the outputs: got NULL.": lambda: call.attnport_run(handle, feeds, 2, None),
        "lengths: got NULL.": lambda: call.attnport_masks(handle, None, 1, 0, ctypes.byref(out)),
        "outputs: got NULL.": lambda: call.attnport_outputs_get(None, 0, ctypes.byref(c.Tensor())),
    }.items():
        out.value = 1
        assert failure(library, status()) == (c.BAD_USE, made)
        assert made.startswith(("where", "outputs")) or out.value is None, (
            "what was to be made is NULL behind a failure"
        )
    assert failure(library, call.attnport_run_device(None, feeds, 2, ctypes.byref(out))) == (2, "model: got NULL.")
    assert failure(library, call.attnport_masks(None, lengths, 1, 0, ctypes.byref(out))) == (2, "model: got NULL.")
    assert failure(library, call.attnport_masks(handle, lengths, 1, 0, None))[0] == c.BAD_USE
    assert call.attnport_outputs_count(None) == 0
    assert (call.attnport_form(None), call.attnport_provider(None)) == (b"", b"")
    call.attnport_close(None)
    call.attnport_outputs_free(None)


def changed(**values: Any) -> Any:
    """The feeds with members of the first tensor set to something else."""
    made = c.tensors(FEEDS)
    for name, value in values.items():
        setattr(made[0], name, value)
    return made


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"name": None}, "the name of a tensor: got NULL."),
        ({"dtype": 99}, "input 'ids': got dtype number 99; expected one of attnport_dtype."),
        ({"dtype": -1}, "input 'ids': got dtype number 4294967295; expected one of attnport_dtype."),
        ({"place": 7}, "input 'ids': got place number 7; expected one of attnport_place."),
        ({"rank": 2**63}, "input 'ids': got rank 9223372036854775808; expected at most 64."),
        ({"shape": None}, "input 'ids': its shape is NULL."),
        ({"data": None}, "input 'ids': its data is NULL."),
        ({"shape": (ctypes.c_int64 * 2)(-2, 5)}, "-2"),
        ({"shape": (ctypes.c_int64 * 2)(2**62, 2**62)}, ""),
        ({"name": b"\xff\x1b[2J"}, "input '"),
    ],
)
def test_a_tensor_of_garbage_is_bad_use(library: c.Library, model: c.Model, values: Any, words: str) -> None:
    for function in (library.call.attnport_run, library.call.attnport_run_device):
        out = ctypes.c_void_p(1)
        status, said = failure(library, function(model.handle, changed(**values), 2, ctypes.byref(out)))
        assert (status, out.value) == (c.BAD_USE, None)
        assert words in said
        assert said.isprintable()


def test_a_count_of_garbage_reads_no_more_tensors_than_the_model_takes(library: c.Library, model: c.Model) -> None:
    feeds = c.tensors({**FEEDS, "more": FEEDS["ids"]})
    out = ctypes.c_void_p()
    status, said = failure(library, library.call.attnport_run(model.handle, feeds, 2**60, ctypes.byref(out)))
    assert (status, said) == (c.BAD_USE, "input 'more': the model has no such input; expected ids, attention_mask.")


SIZE = ctypes.sizeof(c.Options)


@pytest.mark.parametrize("size", [0, 8, SIZE - 1, SIZE + 8, 2**63])
def test_options_of_another_version_are_refused(library: c.Library, made_bundle: Path, size: int) -> None:
    out = ctypes.c_void_p(1)
    given = c.Options(struct_bytes=size)
    call = library.call.attnport_open(str(made_bundle).encode(), ctypes.byref(given), ctypes.byref(out))
    status, said = failure(library, call)
    assert (status, out.value) == (c.BAD_USE, None)
    assert said.startswith(f"attnport_options: got struct_bytes {size}; expected {SIZE}")


def test_options_that_make_no_sense_are_refused(library: c.Library, made_bundle: Path) -> None:
    for values, words in (({"threads": -1}, "got threads -1"), ({"public_key": b""}, "got an empty public_key")):
        with pytest.raises(c.Failed, match=words) as caught:
            library.open(made_bundle, **values)
        assert caught.value.status == c.BAD_USE


def test_an_index_beyond_the_outputs_is_bad_use(library: c.Library, model: c.Model) -> None:
    out = ctypes.c_void_p()
    library.check(library.call.attnport_run(model.handle, c.tensors(FEEDS), 2, ctypes.byref(out)))
    for index in (2, 2**64 - 1):
        status = library.call.attnport_outputs_get(out, index, ctypes.byref(c.Tensor()))
        assert failure(library, status) == (c.BAD_USE, f"got index {index}; there are 2 outputs.")
    library.call.attnport_outputs_free(out)


def test_lengths_that_make_no_sense_are_bad_use(library: c.Library, model: c.Model) -> None:
    for lengths, size in (([5], 3), ([-1], 0), ([5], -1), ([], 0)):
        with pytest.raises(c.Failed, match="lengths: got") as caught:
            model.masks(lengths, size)
        assert caught.value.status == c.BAD_USE
    out, one = ctypes.c_void_p(), (ctypes.c_int64 * 1)(1)
    assert library.call.attnport_masks(model.handle, one, 2**62, 0, ctypes.byref(out)) == c.BAD_USE


def test_every_thread_has_the_message_of_its_own_failure(library: c.Library, model: c.Model, tmp_path: Path) -> None:
    both, seen = threading.Barrier(2), {}

    def fail(name: str) -> None:
        seen[name, "before"] = library.last_error()
        with pytest.raises(c.Failed):
            library.open(tmp_path / name)
        both.wait()  # the other one has failed as well
        seen[name, "after"] = library.last_error()

    threads = [threading.Thread(target=fail, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in ("one", "two"):
        assert seen[name, "before"] == ""
        assert seen[name, "after"].startswith(f"{tmp_path / name} ")


def test_threads_may_share_a_model(model: c.Model) -> None:
    alone, wrong = model.run(FEEDS), []

    def work() -> None:
        for _ in range(50):
            got = model.run(FEEDS)
            wrong.extend(name for name in alone if got[name].tobytes() != alone[name].tobytes())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_program_in_c_uses_it_well_and_badly_under_sanitizers(cpp_build: Build, made_bundle: Path) -> None:
    done = cpp_build.run("c_calls", made_bundle)
    assert (done.returncode, done.stdout) == (0, "every answer is as it should be\n"), done.stderr


def test_the_version_is_that_of_the_header_and_the_binding_has_its_layout(library: c.Library, tmp_path: Path) -> None:
    program = tmp_path / "layout.c"
    program.write_text(
        "#include <stdio.h>\n#include <attnport/attnport.h>\n"
        "int main(void) {\n"
        '    printf("%d %d ", ATTNPORT_ABI_VERSION, (int)sizeof(attnport_tensor));\n'
        '    printf("%d\\n", (int)sizeof(attnport_options));\n'
        '    printf("%d %d\\n", (int)offsetof(attnport_tensor, data), (int)offsetof(attnport_options, tokenize));\n'
        "    return 0;\n}\n"
    )
    strict = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", f"-I{READER / 'include'}"]
    subprocess.run([tool("gcc"), *strict, str(program), "-o", str(tmp_path / "layout")], check=True)
    said = subprocess.run([str(tmp_path / "layout")], capture_output=True, text=True, check=True).stdout.split()
    sizes = [ctypes.sizeof(kind) for kind in (c.Tensor, c.Options)]
    layout = [*sizes, c.Tensor.data.offset, c.Options.tokenize.offset]
    assert list(map(int, said)) == [library.call.attnport_abi_version(), *layout]


def test_only_the_interface_is_shown(cpp_shared: Build) -> None:
    shown = subprocess.run(
        [tool("nm"), "-D", "--defined-only", "-C", str(cpp_shared.library)], capture_output=True, text=True, check=True
    ).stdout
    names = [line.split(" ", 2)[2] for line in shown.splitlines()]
    assert sum(name.startswith("attnport_") for name in names) == 15
    foreign = [name for name in names if "attnport" not in name]
    assert not foreign
    assert not [name for name in names if "attnport::reader::" in name.split("(")[0]]


def test_the_comparison_of_bytes_can_fail(model: c.Model) -> None:
    other = {**FEEDS, "ids": FEEDS["ids"][::-1].copy()}
    assert model.run(FEEDS)["hidden"].tobytes() != model.run(other)["hidden"].tobytes()
