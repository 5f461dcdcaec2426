"""The artifact folder as verbs see it: opened, changed all at once; its model, given to `export` or loaded again."""
