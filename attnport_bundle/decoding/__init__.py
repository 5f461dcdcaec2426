"""Generation of tokens. A bundle carries it for a model that generates.

`generate` takes prompts and options of a caller, and chooses each token; `caches` runs the model, and keeps what it
gives from step to step.
"""
