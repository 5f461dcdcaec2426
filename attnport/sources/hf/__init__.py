"""`hf:` with a folder or a hub id: models of transformers, and folders of sentence-transformers. Read in this order:

- `load`: from a place to a ModelSpec; the class by `--task`, the weights, the steps below.
- `files`: what may be read of a folder, its tokenizer, the files that describe it.
- `modules`: how a model, a part of it, or a step of it with its cache is run: what is traced.
- `inputs`: the table from an input's name to its forms, and the numbers in configs that it needs.
- `contract`: the inputs, ranges, masks and outputs of text models, and of any other kind and part.
- `decoding`: those of decoders with their caches.
- `sentence`: what sentence-transformers puts behind a model, and its prompts.
"""
