"""Runtimes in processes of their own.

In order: `worker`, what runs in the process, and its protocol; `isolated`, the caller's side: a process, a session in
it, and what a runtime's probe finds there.
"""
