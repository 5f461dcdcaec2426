"""A small ONNX model with everything in it that can carry a note, and something planted in each place."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LEAK = "/" + "home/alice/secret.py"


def model() -> onnx.ModelProto:
    """A graph with a branch, a function and a weight; nothing planted."""
    one = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", 4])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["B", 4])
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("Add", ["x", "w"], [f"{name}_out"], name=f"{name}_add")],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, ["B", 4])],
            value_info=[helper.make_tensor_value_info(f"{name}_inner", TensorProto.FLOAT, [4])],
        )
        for name in ("then", "else")
    }
    function = helper.make_function(
        "own", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"], name="twice")],
        [helper.make_opsetid("", 20)],
    )  # fmt: skip
    nodes = [
        helper.make_node("If", ["flag"], ["chosen"], name="if", **branches),
        helper.make_node("Twice", ["chosen"], ["y"], name="call", domain="own"),
    ]
    graph = helper.make_graph(
        nodes, "main", [one, flag], [out], [numpy_helper.from_array(np.ones(4, np.float32), "w")],
        value_info=[helper.make_tensor_value_info("chosen", TensorProto.FLOAT, ["B", 4])],
    )  # fmt: skip
    made: onnx.ModelProto = helper.make_model(
        graph,
        functions=[function],
        opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("own", 1)],
        ir_version=10,
    )
    onnx.checker.check_model(made)
    return made


def branch(made: onnx.ModelProto) -> Any:
    """The graph of the then-branch."""
    return next(attribute for attribute in made.graph.node[0].attribute if attribute.name == "then_branch").g


def places(made: onnx.ModelProto) -> dict[str, Any]:
    """By name: every kind of message that carries notes and doc strings."""
    training = made.training_info.add() if not made.training_info else made.training_info[0]
    training.algorithm.name = "training"
    return {
        "model": made,
        "graph": made.graph,
        "node": made.graph.node[1],
        "input": made.graph.input[0],
        "output": made.graph.output[0],
        "value": made.graph.value_info[0],
        "initializer": made.graph.initializer[0],
        "branch": branch(made),
        "node in a branch": branch(made).node[0],
        "value in a branch": branch(made).value_info[0],
        "function": made.functions[0],
        "node in a function": made.functions[0].node[0],
        "training": training.algorithm,
        "attribute": made.graph.node[0].attribute[0],
        "type": made.graph.input[0],
    }


def note(message: Any, key: str, value: str) -> None:
    """Adds an entry of metadata."""
    entry = message.metadata_props.add()
    entry.key, entry.value = key, value
