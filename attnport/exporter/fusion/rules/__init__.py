"""The recognition rules, one per file: each defines `OP_TYPE`, `applies(node)` and `match(node, context)`."""
