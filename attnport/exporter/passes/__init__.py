"""Passes over a whole graph; each returns what it changed."""
