"""Forms of attention that several targets share.

`canonical` brings q, k and v into one layout; `operands` writes what goes into a form, the mask too; `standard` and
`blocks` are forms.
"""
