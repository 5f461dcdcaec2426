"""The recognition rules, a file each with `OP_TYPE`, `applies(node)` and `match(node, masks)`.

Of several for an operator, in the order of their names, the first that recognises a node has it. `masks` are the
contracts of the graph's inputs that hold masks.
"""
