"""The version of this project; `attnport.__version__` is the same."""

__version__ = "0.1.0"
