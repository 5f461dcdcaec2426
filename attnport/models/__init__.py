"""The built-in models: each file has a SPEC, which has the file's name, and its nn.Module."""
