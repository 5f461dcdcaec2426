"""The lowering targets. `base` has the steps that all share; each other file is one target: its choice of a form, its
`LOWERING`, and the forms and passes that it alone uses."""
