"""From a module to ONNX, and from there to the graph of each target.

`capture` traces a module and returns its ONNX graph (`patching` and `loops`: what is changed in torch meanwhile;
`translations`: what torch.onnx cannot write); `imported` takes a graph that was made elsewhere in its place. `counting`
counts the attentions, `fusion` recognises them, `targets` writes each in a target's own form, of parts in `forms`.
`tokens` leaves padding out, `precision` chooses types, and `engine` builds engines of TensorRT. `builder`, `naming`,
`graph` and `storage` are what all of them use of a graph.
"""
