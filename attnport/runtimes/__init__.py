"""Runtimes: one file each, found by its name."""
