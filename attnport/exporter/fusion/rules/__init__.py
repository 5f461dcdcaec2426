"""One way to find an attention a file: each defines `match(node)`, found by its file."""
