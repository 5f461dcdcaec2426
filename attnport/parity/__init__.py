"""Everything that judges numbers, in the order to read it.

`metrics` measures an output against its float64 reference, `bound` judges that, and `invariance` does both for padding.
`evaluate` runs a session over cases, and `comparing` is the whole of `check`, with PyTorch's own errors, by which the
others are judged. `golden` and `sizes` judge in the same way what export stores; `layers` looks inside of a model.
`finer` searches for what must stay in a finer precision, by the metrics of `scoring`.
"""
