"""Runtimes, one in each file, found by the file's name."""
