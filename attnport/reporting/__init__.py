"""The HTML page of an artifact folder."""
