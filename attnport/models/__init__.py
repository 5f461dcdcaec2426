"""The models of the project: one file a model, with its SPEC and its nn.Module; a SPEC is called by the file's name."""
