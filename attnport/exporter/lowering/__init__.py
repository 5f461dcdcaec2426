"""One lowering target a file: each defines `LOWERING`, called by the file's name."""
