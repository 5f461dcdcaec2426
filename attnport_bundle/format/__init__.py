"""What a bundle says and is, as FORMAT.md has it.

Read in this order: `contract` (inputs, outputs, dims, masks; sizes that are expressions), `decoder` (what they are
for in a model that generates), `manifest` (the whole of `bundle.json`), `strict_json` (how it is parsed) and `files`
(the folder against its manifest, and the signature).
"""
