"""What the reader counts in a model file: a model at a limit is taken, one beyond it is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ATTACKS = Path(__file__).resolve().parents[1] / "attacks"
if str(ATTACKS) not in sys.path:
    sys.path.append(str(ATTACKS))  # where the pieces of models are

import hostile_models as pieces  # noqa: E402 - see above

from attnport.bundling.model_file import external_files  # noqa: E402 - behind those
from attnport.errors import ArtifactError  # noqa: E402 - behind those
from attnport_bundle.format.onnx_file import references  # noqa: E402 - behind those

AT_A_LIMIT = {
    "nested graphs": (pieces.nested_ifs, 32),
    "nested graphs in training": (pieces.nested_in_training, 32),
    "functions that call each other": (pieces.chain, 32),
    "nested graphs in two functions": (pieces.deep_by_parts, 15),
    "functions": (pieces.many_functions, 10_000),
    "graphs": (pieces.graphs_of_one_node, 49_999),
    # 2 nodes and then each time twice as many, with 2 calls more: 44 * 2**n - 42 nodes.
    "nodes of functions": (pieces.doubling, 15),
    "graphs in graphs": (pieces.tree_of_ifs, 14),
}


@pytest.mark.parametrize("what", AT_A_LIMIT)
def test_the_last_model_within_a_limit_is_taken_and_the_next_is_not(what: str, tmp_path: Path) -> None:
    make, size = AT_A_LIMIT[what]
    file = tmp_path / "model.onnx"
    file.write_bytes(make(size))
    assert references(file) == []
    file.write_bytes(make(size + 1))
    with pytest.raises(ValueError, match=r"more than|deeper than"):
        references(file)


FINE = {
    "a function that has the name of another domain's": pieces.function("F", pieces.call("F", domain=b"other")),
    "an overload that calls another": pieces.function("F", pieces.call("F", overload=b"a"))
    + pieces.function("F", pieces.node("Identity"), overload=b"a"),
    "a function that is called with a tensor": pieces.piece(
        pieces.GRAPH, pieces.call("F", pieces.piece(pieces.ATTRIBUTE, pieces.piece(5, b"")))
    )
    + pieces.function("F"),
    "a function that is called in a graph": pieces.doubling_in_loop(5),
    "an If that is no function": pieces.piece(pieces.GRAPH, pieces.node("If", pieces.graph(pieces.node("Identity")))),
}


@pytest.mark.parametrize("what", FINE)
def test_what_only_looks_like_a_circle_or_a_graph_handed_on_is_taken(what: str, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(FINE[what])
    assert references(tmp_path / "model.onnx") == []


def test_the_writer_refuses_what_readers_would(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(pieces.circle(2))
    with pytest.raises(ArtifactError, match="functions that call themselves"):
        external_files(tmp_path, "model.onnx")
