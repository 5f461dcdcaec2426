"""Recognition: attentions and masks found in an ONNX graph by what they compute.

Read `recognise` first: an attention is found around its softmax, back to q and k and on to v, by a rule of `rules/`.
`elements` reads an element of a tensor as a formula; `formula` has these formulas, and what a single condition means.
`indices` moves indices through operators, and tells which axes count batch items and heads. `mask` reads what an
attention's mask allows and adds, and `kinds` proves which kinds of mask that is. `rewrites/` brings graphs of other
exporters into spellings that are known here.
"""
