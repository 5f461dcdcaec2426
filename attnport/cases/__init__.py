"""Inputs to try a model with: random ones, masks, extremes, sizes, sentences, a file of the user's."""
