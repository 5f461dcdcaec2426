"""Runs only the real tokens of a padded batch: what works on a token alone is computed for those alone."""
