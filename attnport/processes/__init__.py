"""Runtimes in processes of their own.

In order: `worker`, what runs in the process, and its protocol; `child`, the caller's side of a process; `isolated`, a
session there, and what a runtime's probe finds there.
"""
