"""The recognition rules, a file each with `OP_TYPE`, `applies(node)` and `match(node, context)`.

Of several for an operator, in the order of their names, the first that recognises a node has it.
"""
