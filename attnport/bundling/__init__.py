"""Writes bundles: folders for applications, with a copy of the reader in them (see FORMAT.md)."""
