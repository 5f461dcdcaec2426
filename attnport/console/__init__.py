"""The terminal: how a verb is run, and how its result is shown. Only `cli` uses this package."""
