"""The artifact folder as verbs see it.

Read `workspace` first: a folder is opened, created, changed all at once, and a stage is left out that was done before;
which of its files a runtime opens, and what its parity report is still true of. `given` is the model that `export` is
given; `loading` loads it again, and says whose code that may run. `machine` describes where numbers were measured;
`refusals` and `portable` are what people are told: errors of files, and reasons without paths.
"""
