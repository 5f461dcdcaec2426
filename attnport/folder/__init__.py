"""The artifact folder as verbs see it: opened, changed all at once, and the model that it came from loaded again."""
