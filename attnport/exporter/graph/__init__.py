"""What is known of a graph: `sizes` infers shapes, by the rules of `size_rules`; `opset` lowers it to an older one."""
