"""The report of an artifact folder, and its renderers."""
