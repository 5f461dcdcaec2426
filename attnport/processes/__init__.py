"""Runtimes in processes of their own: the protocol, the worker, and sessions that live in one."""
