"""Runtimes in processes of their own: the protocol, the worker, and isolated sessions."""
