"""The built-in models: `base` defines and finds them, `blocks` has what they share; each other file has several."""
