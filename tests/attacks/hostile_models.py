"""Pieces of model files that ask too much of whoever builds them, written field by field as protobuf has them.

https://protobuf.dev/programming-guides/encoding; field numbers: onnx.proto3. A parser joins a message that is there
twice, so a piece behind the end of a model file adds to it.
"""

from __future__ import annotations

from collections.abc import Callable


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def piece(field: int, *data: bytes) -> bytes:
    content = b"".join(data)
    return varint(field << 3 | 2) + varint(len(content)) + content


def inside(fields: tuple[int, ...], data: bytes) -> bytes:
    """Data inside messages, the outermost first. The heads are joined once: there may be a hundred thousand."""
    heads, length = [], len(data)
    for field in reversed(fields):
        heads.append(varint(field << 3 | 2) + varint(length))
        length += len(heads[-1])
    return b"".join(reversed(heads)) + data


GRAPH, METADATA, TRAINING, FUNCTION = 7, 14, 20, 25  # of the model
NODE, VALUE_INFO, QUANTIZATION, SPARSE = 1, 13, 14, 15  # of a graph
TYPE, ATTRIBUTE, G, GRAPHS = 4, 5, 6, 11  # of a node, but for the last two, of an attribute
DOMAIN = b"hostile"


def node(operator: str, *attributes: bytes, domain: bytes = b"", overload: bytes = b"") -> bytes:
    """A node as a field of a graph."""
    own = piece(7, domain) if domain else b""
    return piece(NODE, piece(TYPE, operator.encode()), *attributes, own, piece(8, overload) if overload else b"")


def call(name: str, *attributes: bytes, domain: bytes = DOMAIN, overload: bytes = b"") -> bytes:
    return node(name, *attributes, domain=domain, overload=overload)


def graph(*nodes: bytes, field: int = G) -> bytes:
    """An attribute that holds a graph, as a field of a node."""
    return piece(ATTRIBUTE, piece(field, *nodes))


def function(name: str, *nodes: bytes, domain: bytes = DOMAIN, overload: bytes = b"", more: bytes = b"") -> bytes:
    """A function as a field of the model; `nodes` as fields of a graph."""
    # The field of a node is 1 in a graph and 7 in a function.
    own = b"".join(varint(7 << 3 | 2) + one[1:] for one in nodes)
    return piece(FUNCTION, piece(1, name.encode()), piece(10, domain), own, piece(13, overload), more)


def nested_ifs(size: int) -> bytes:
    return inside((GRAPH, *(NODE, ATTRIBUTE, G) * size), node("Identity"))


def nested_in_training(size: int) -> bytes:
    return inside((TRAINING, 2, *(NODE, ATTRIBUTE, G) * size), node("Identity"))


def nested_in_function(size: int) -> bytes:
    """Nested graphs in a function that nobody calls."""
    return inside((FUNCTION, 7, ATTRIBUTE, G, *(NODE, ATTRIBUTE, G) * (size - 1)), node("Identity"))


def tree_of_ifs(size: int) -> bytes:
    """Each If has two branches with an If in each, so deep."""
    one = node("Identity")
    for _ in range(size):
        one = node("If", graph(one), graph(one))
    return piece(GRAPH, one)


def graphs_of_one_node(size: int) -> bytes:
    return piece(GRAPH, node("If", piece(ATTRIBUTE, piece(GRAPHS) * size)))


def doubling(size: int) -> bytes:
    """Functions of which each calls the next one twice, but nobody the first."""
    found = [function(f"F{number}", *[call(f"F{number + 1}")] * 2) for number in range(size - 1)]
    return b"".join([*found, function(f"F{size - 1}", *[node("Identity")] * 2)])


def doubling_called(size: int) -> bytes:
    return doubling(size) + piece(GRAPH, call("F0"))


def doubling_in_loop(size: int) -> bytes:
    return piece(GRAPH, node("Loop", graph(call("F0")))) + doubling(size)


def doubling_in_training(size: int) -> bytes:
    return piece(TRAINING, piece(1, call("F0"))) + doubling(size)


def chain(size: int) -> bytes:
    """Functions of which each calls the next one once."""
    found = [function(f"F{number}", call(f"F{number + 1}")) for number in range(size - 1)]
    return piece(GRAPH, call("F0")) + b"".join([*found, function(f"F{size - 1}", node("Identity"))])


def calls_itself(size: int) -> bytes:
    return piece(GRAPH, call("F")) + function("F", call("F"))


def calls_itself_in_a_graph(size: int) -> bytes:
    return piece(GRAPH, call("F")) + function("F", node("If", graph(call("F"))))


def calls_itself_unused(size: int) -> bytes:
    return function("F", node("Identity"), call("F"))


def calls_itself_by_overload(size: int) -> bytes:
    return function("F", call("F", overload=b"a")) + function("F", call("F", overload=b"a"), overload=b"a")


def calls_itself_by_alias(size: int) -> bytes:
    """ONNX's own domain is written in two ways."""
    return function("F", call("F", domain=b""), domain=b"ai.onnx")


def circle(size: int) -> bytes:
    return b"".join(function(f"F{number}", call(f"F{(number + 1) % size}")) for number in range(size))


def deep_by_parts(size: int) -> bytes:
    """A function with nested graphs, in whose innermost one stands a call of another: neither is too deep by itself."""

    def deep(inner: bytes) -> bytes:
        for _ in range(size):
            inner = node("If", graph(inner))
        return inner

    return piece(GRAPH, call("F")) + function("F", deep(call("G"))) + function("G", deep(node("Identity")))


def graph_handed(size: int) -> bytes:
    """A function gets a graph and may repeat it."""
    return piece(GRAPH, call("F", graph(node("Identity")))) + function("F", node("If"))


def graph_by_default(size: int) -> bytes:
    return function("F", node("If"), more=piece(11, piece(G, node("Identity"))))


def function_twice(size: int) -> bytes:
    return function("F", node("Identity")) * 2


def many_functions(size: int) -> bytes:
    return b"".join(function(f"F{number}") for number in range(size))


def sparse_in_nested_function(size: int) -> bytes:
    """A sparse tensor's indices from a file of the machine, in a graph of a function."""
    tensor = piece(2, piece(13, piece(1, b"location"), piece(2, b"/etc/passwd")))
    return function("F", node("If", graph(piece(SPARSE, tensor))))


def sparse_in_training(size: int) -> bytes:
    tensor = piece(1, piece(13, piece(1, b"location"), piece(2, b"/etc/passwd")))
    return piece(TRAINING, piece(1, node("Constant", piece(ATTRIBUTE, piece(22, tensor)))))


def groups(size: int) -> bytes:
    """Groups in groups, which protobuf gave up and parsers still pass over by recursion."""
    return piece(GRAPH, varint(100 << 3 | 3) * size + varint(100 << 3 | 4) * size)


def groups_in_attribute(size: int) -> bytes:
    return piece(GRAPH, node("If", piece(ATTRIBUTE, varint(100 << 3 | 3) * size + varint(100 << 3 | 4) * size)))


def deep_type(size: int) -> bytes:
    """A value that is a sequence of sequences of sequences."""
    return inside((GRAPH, VALUE_INFO, 2, *(4, 1) * size), b"")


def deep_optional_type(size: int) -> bytes:
    return inside((GRAPH, VALUE_INFO, 2, *(9, 1) * size), b"")


def cut_metadata(size: int) -> bytes:
    return piece(METADATA, piece(1, b"key") + b"\x12\x7fvalue")


def cut_quantization(size: int) -> bytes:
    return piece(GRAPH, piece(QUANTIZATION, piece(1, b"tensor") + b"\x12\x7f"))


BUILDERS: dict[str, Callable[[int], bytes]] = {
    builder.__name__: builder
    for builder in (
        nested_ifs, nested_in_training, nested_in_function, tree_of_ifs, graphs_of_one_node, doubling, doubling_called,
        doubling_in_loop, doubling_in_training, chain, calls_itself, calls_itself_in_a_graph, calls_itself_unused,
        calls_itself_by_overload, calls_itself_by_alias, circle, deep_by_parts, graph_handed, graph_by_default,
        function_twice, many_functions, sparse_in_nested_function, sparse_in_training, groups, groups_in_attribute,
        deep_type, deep_optional_type, cut_metadata, cut_quantization,
    )
}  # fmt: skip
