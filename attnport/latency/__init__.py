"""Timing: workloads, processes that take turns, clocks, statistics, regressions."""
