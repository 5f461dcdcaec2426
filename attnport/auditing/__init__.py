"""Finds what a file reveals: where and by whom it was made, notes and source lines, data among its constants."""
