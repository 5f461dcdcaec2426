"""Everything that times: workloads, processes that take turns, clocks, statistics, regressions."""
