"""The lowering targets: each file defines `LOWERING`, a target with the file's name."""
