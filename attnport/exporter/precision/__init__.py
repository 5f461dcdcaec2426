"""The types that a graph computes in. `plan` writes half precision; `islands` marks the nodes that stay in float32, and
`parts` are what a search chooses them from; `integers` writes linear layers in int8 or with weights of 4 bits."""
