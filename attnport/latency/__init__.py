"""Timing, in the order of reading.

`workloads` says what is run. `measuring` runs it: a process for each runtime, in turns, and then cold starts alone.
`rows` makes figures of the calls, with the intervals of `statistics`. `choice` chooses by them, and `regression`
compares the reports of two runs. `gpu_state` reads clocks and heat of a GPU.
"""
