"""Bundles: a folder that an application takes over, and the reader that is copied into it (see FORMAT.md)."""
