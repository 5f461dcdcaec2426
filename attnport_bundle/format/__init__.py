"""What a bundle says and is, as FORMAT.md has it.

Read in this order: `contract` (inputs, outputs, dims, masks; sizes that are `expressions`), `decoder` (what they are
for in a model that generates), `manifest` (the whole of `bundle.json`), `strict_json` (how it is parsed), `files` (the
folder against its manifest, and the signature) and `onnx_file` (what a model file may refer to and contain).
"""
