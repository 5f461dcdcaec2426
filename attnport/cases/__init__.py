"""Inputs to try a model with.

`inputs` makes them of a contract: sizes, layouts of masks, random and extreme values; `mask_cases` has the layouts of
each kind of mask. `choosing` adds given inputs, sentences, and the steps of a decoder.
"""
