"""What a person meets in a terminal: how a verb is run, and how its result is shown. Only `cli` uses it."""
