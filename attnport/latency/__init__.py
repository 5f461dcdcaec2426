"""Timing: workloads, processes that take turns, statistics, regressions."""
